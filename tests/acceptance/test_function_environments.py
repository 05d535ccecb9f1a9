"""Functions in environments of their own, on real workers: built once, told while built, kept apart."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.local_cluster import LocalCluster, local_cluster
from support.waiting import eventually
from typer.testing import CliRunner

import corral
from acceptance.test_environments import write_wheel
from corral.cli.functions.fn import app as fn_app
from corral.client.environments.lock import Lock, PackageNotFound, RequirementsConflict
from corral.client.environments.lock_cache import LockCache
from corral.files.locks import exclusive
from corral.functions import backend
from corral.functions.http_backend import HttpBackend
from corral.worker.prepare.environments import Environments

pytestmark = pytest.mark.timeout(300)

# What this process starts.
STARTED: list[str] = []


def _note(event: str, args: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen" and "pip" in args[1]:
        STARTED.append(" ".join(args[1]))


sys.addaudithook(_note)


class Place:
    """A stack, a folder of wheels, and what the worker built."""

    def __init__(self, stack: LocalCluster, folder: Path) -> None:
        self.stack, self.folder = stack, folder
        self.wheels = folder / "wheels"

    def built(self) -> dict[str, int]:
        """Each environment of the host; one that is built anew has another number."""
        found = (self.stack.home / "worker" / "environments" / "envs").iterdir()
        return {path.name: path.stat().st_ino for path in found}

    def app(self, name: str, *python: str, **given: Any) -> corral.App:
        return corral.App(name, python=python, wheels=str(self.wheels), **given)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("environments")
    with local_cluster(folder / "home", lease_s=5.0) as made:
        found = Place(made, folder)
        found.wheels.mkdir()
        for version in ("1.0", "2.0", "3.0"):
            write_wheel(found.wheels, "hay", version)
        write_wheel(found.wheels, "straw", "1.0")
        made.own_worker(slots=20)
        yield found


@pytest.fixture(scope="module", autouse=True)
def remote(place: Place) -> Iterator[HttpBackend]:
    made = HttpBackend(place.stack.client(), "default")
    before = backend.set_backend(made)
    yield made
    backend.set_backend(before)


def waits(call: corral.Call[Any], words: str) -> str | None:
    told = call.waiting()
    return told if told is not None and words in told else None


def version_of_hay() -> str:
    from importlib.metadata import version  # noqa: PLC0415 - asked where it runs

    return version("hay")


def test_two_versions_of_a_package_live_side_by_side_and_a_built_one_costs_nothing(place: Place) -> None:
    """RF-D39, RF-D41, RF-D43: one environment for each lock, and nothing that nobody asked for.

    RF-D44: it stays on the host that built it; no call waits until a cache has been sent somewhere.

    The folder of wheels is the only source, and holds no cloudpickle: the functions travel by value all the
    same.
    """
    old, new = (place.app(f"hay{n}", f"hay=={n}.0") for n in (1, 2))
    first, second = (app.function(name="f")(lambda: version_of_hay()) for app in (old, new))

    assert [first.remote(), second.remote(), first.remote()] == ["1.0", "2.0", "1.0"]

    built = place.built()
    assert len(built) == 2
    again = old.function(name="g")(lambda: (version_of_hay(), os.getpid()))
    assert again.remote()[0] == "1.0"
    assert again.remote()[1] != os.getpid()
    assert place.built() == built, "another instance of the same lock builds nothing"


def test_what_was_resolved_is_remembered_for_the_next_program_and_a_deploy_asks_again(
    place: Place, tmp_path: Path
) -> None:
    """RF-D39: the second program starts no uv either."""
    clock = [1000.0]
    locks = LockCache(tmp_path / "locks", lambda: clock[0])
    member = place.app("kept", "hay").function(name="f")(lambda: 1).member

    def resolved(*, live: bool = True) -> tuple[str, int]:
        """By a program of its own; how many processes it started."""
        program = HttpBackend(place.stack.client(), "default", locks=locks)
        before = len(STARTED)
        environment = program.request(member, "default", live=live).spec.environment
        assert environment is not None
        return environment.lock.split(" ")[0].strip(), len(STARTED) - before

    assert resolved() == ("hay==3.0", 1)
    assert resolved() == ("hay==3.0", 0)
    assert resolved(live=False) == ("hay==3.0", 1)
    clock[0] += 86401
    assert resolved() == ("hay==3.0", 1)
    write_wheel(place.wheels, "hay", "4.0")
    assert resolved() == ("hay==4.0", 1), "another folder of wheels is another question"


def test_whoever_waits_sees_that_an_environment_is_being_built(place: Place, remote: HttpBackend) -> None:
    """RF-D42: progress, and not silence."""
    fn = place.app("seen", "hay==3.0").function(name="f")(lambda: version_of_hay())
    spec = remote.request(fn.member, "default", live=True).spec
    assert spec.environment is not None
    folder = place.stack.home / "worker" / "environments"
    key = Environments(folder, {}).key(Lock(spec.environment.lock, spec.environment.python))

    # As another worker of the host that is building the same.
    with exclusive(folder / "locks" / f"{key}.lock") as held:
        assert held
        call = fn.spawn()
        said = eventually(partial(waits, call, "building"), "a word of the build")
        with pytest.raises(corral.NotFinished, match="building environment"):
            call.result(timeout=0)

    assert "building environment: waiting for another worker" in said
    assert call.result() == "3.0"
    assert call.waiting() is None


def test_an_unknown_package_and_requirements_that_conflict_are_told_in_uv_s_words(place: Place) -> None:
    """RF-D42."""
    unknown = place.app("unknown", "no-such-package").function(name="f")(lambda: 1)
    with pytest.raises(PackageNotFound, match="no-such-package was not found"):
        unknown.remote()

    conflict = place.app("conflict", "hay==1.0", "hay==2.0").function(name="f")(lambda: 1)
    with pytest.raises(RequirementsConflict, match=r"hay==1\.0 and hay==2\.0"):
        conflict.remote()


def test_a_build_that_fails_on_the_host_fails_the_call_in_uv_s_words(
    place: Place, remote: HttpBackend
) -> None:
    fn = place.app("broken", "straw==1.0").function(name="f")(lambda: 1)
    # Resolved and deployed, and gone before the host builds it.
    remote.find(fn.member)
    (place.wheels / "straw-1.0-py3-none-any.whl").unlink()

    with pytest.raises(corral.CannotStart, match="straw") as caught:
        fn.remote()

    assert "cannot be built on this host" in str(caught.value)


def test_only_a_host_that_has_the_system_package_gets_the_call(
    place: Place, remote: HttpBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RF-D40, RF-D42, RF-D49: looked for before anything is built; a host without it says so."""
    fn = corral.App("sys", system=["fiddle-for-tests", "sh"]).function(name="f")(
        lambda: __import__("shutil").which("fiddle-for-tests")
    )

    call = fn.spawn()
    # A host is asked first, and named with what it lacks once it has refused.
    said = eventually(partial(waits, call, "lacks fiddle-for-tests"), "a host that refuses")
    assert said.startswith("a host for its instance; ")
    client = place.stack.client()
    monkeypatch.setenv("CORRAL_HOME", str(place.stack.home))
    file = tmp_path / "needs.py"
    file.write_text(
        "import corral\napp = corral.App('needs', system=['fiddle-for-tests'])\n"
        "@app.function()\ndef f(): ...\n"
    )
    checked = CliRunner().invoke(fn_app, ["check", str(file)])
    assert checked.exit_code == 1
    assert "every host lacks it" in checked.output

    program = tmp_path / "bin" / "fiddle-for-tests"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    worker = place.stack.other_worker(tmp_path / "musician", "musician", slots=2)
    place.stack.kill_worker(worker)
    worker = replace(worker, env={**worker.env, "PATH": f"{program.parent}:{os.environ['PATH']}"})
    place.stack.workers[-1] = worker
    place.stack.start_worker(worker)

    assert call.result(timeout=60) == str(program)
    view = client.endpoints.deploy(remote.request(fn.member, "default", live=False))
    again = replace(remote.find(fn.member), endpoint=view.name, version=0)
    (deployed,) = remote.make(again, [fn._ask((), {})], 30)
    assert deployed.state == "succeeded", "the same holds for what is deployed"
    assert client.runs.get(client.calls.get(call.id).run or "").host == "musician"

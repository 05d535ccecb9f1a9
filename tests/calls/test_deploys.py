"""Versions of a deployed function: one takes over from the other, or does not."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import forked
from support.local_cluster import CLEAN, FINAL_STATES
from support.waiting import eventually

import corral
from calls.conftest import Scene
from corral.domain.errors import CorralError
from corral.functions import backend
from corral.functions.find_app import find_app
from corral.functions.http_backend import HttpBackend
from corral.wire.endpoints import EndpointView

pytestmark = pytest.mark.timeout(300)
CORRAL = str(Path(sys.executable).with_name("corral"))
_NUMBERS = itertools.count(1)


class Harness:
    """An app of one function, `says`, which is written anew for each version."""

    def __init__(self, scene: Scene, folder: Path) -> None:
        self.name = f"deploys{next(_NUMBERS)}"
        self.file = folder / f"{self.name}.py"
        self.scene = scene
        self.remote = scene.use()
        self.deployed = False
        self.endpoint = f"{self.name}.says"

    def write(self, body: str, options: str = "") -> None:
        self.file.write_text(
            f"import corral\napp = corral.App({self.name!r})\n"
            f"@app.function({options})\ndef says(x=0):\n    {body}\n"
        )

    def deploy(self, body: str, options: str = "") -> EndpointView:
        """Of the first one no instance is made until it is called, so that nothing is to be waited for."""
        self.write(body, options)
        sys.modules.pop(self.name, None)
        _, member = find_app(f"{self.file}::says")
        assert member is not None
        request = self.remote.request(member, "default", live=False)
        wait_s = 30.0 if self.deployed or request.scaling.min else 0.0
        self.deployed = True
        return self.remote.corral.endpoints.deploy(request.model_copy(update={"wait_s": wait_s}))

    @property
    def says(self) -> Any:
        return corral.function(self.endpoint)

    def view(self) -> EndpointView:
        return self.remote.corral.endpoints.get("default", self.endpoint)

    def corral(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        env = {**CLEAN, "CORRAL_HOME": str(self.scene.stack.home)}
        return forked.run(arguments, env)


@pytest.fixture
def app(one_host: Scene, tmp_path: Path) -> Iterator[Harness]:
    made = Harness(one_host, tmp_path)
    yield made
    sys.modules.pop(made.name, None)
    if str(tmp_path) in sys.path:
        sys.path.remove(str(tmp_path))
    with suppress(CorralError):
        made.remote.corral.endpoints.remove("default", made.endpoint)
    backend.set_backend(None)


def test_what_is_said_to_be_ready_is_what_answers(app: Harness) -> None:
    """RF-C34, RF-D53: from that answer on no call goes to the old version; nor after a rollback."""
    app.deploy("return 1")
    assert app.says.remote() == 1
    # HOUR4-08: a function `says_` has this name too, and is found under its own.
    assert corral.function(f"{app.endpoint}_").remote() == 1

    view = app.deploy("return 2")
    assert (view.current, view.versions[0].state) == (2, "serving")
    assert list(app.says.map(range(20))) == [2] * 20

    app.remote.corral.endpoints.rollback("default", app.endpoint)
    assert list(app.says.map(range(20))) == [1] * 20


def test_broken_code_leaves_the_old_version_serving(app: Harness) -> None:
    """RF-D21, RF-D53: the command fails, with what the new version said."""
    app.deploy("return 1")
    assert app.says.remote() == 1
    app.write("return 2\nif 'corral.instance.main' in __import__('sys').modules: import lost_at_sea")

    done = app.corral("fn", "deploy", str(app.file))

    assert done.returncode == 1
    assert "lost_at_sea" in done.stderr
    assert "Version 1 keeps serving" in done.stderr
    assert app.says.remote() == 1
    assert [one.state for one in app.view().versions] == ["broken", "serving"]


def test_two_deploys_at_once_leave_one_that_serves(app: Harness) -> None:
    app.deploy("return 0")
    requests = []
    for number in (1, 2):
        app.write(f"return {number}")
        sys.modules.pop(app.name, None)
        _, member = find_app(f"{app.file}::says")
        assert member is not None
        requests.append(app.remote.request(member, "default", live=False).model_copy(update={"wait_s": 30.0}))
    threads = [
        threading.Thread(target=app.remote.corral.endpoints.deploy, args=(request,)) for request in requests
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    view = eventually(partial(_settled, app), "one of them to serve", within_s=60)

    assert [one.version for one in view.versions] == [3, 2, 1]
    assert sum(one.state == "serving" for one in view.versions) == 1
    assert view.current == 3
    assert len(set(app.says.map(range(10)))) == 1


def _settled(app: Harness) -> EndpointView | None:
    view = app.view()
    return None if any(one.state == "rolling" for one in view.versions) else view


def test_the_same_deployed_twice_is_one_version_with_one_digest(app: Harness) -> None:
    """RF-D63."""
    first = app.deploy("return 1")
    assert app.says.remote() == 1
    again = app.deploy("return 1")

    assert [one.version for one in again.versions] == [1]
    assert first.versions[0].digest == again.versions[0].digest


def test_every_option_is_stored_and_run_as_it_was_asked(app: Harness) -> None:
    """RF-C02, RF-C28, RF-D48: asked, stored, running."""
    options = (
        'retries=corral.Retries(2, on=(OSError,), delay="2s", backoff=3, max_delay="9s"), timeout="123s", '
        'ttl="1h", keep="2d", min_instances=1, max_instances=3, idle="77s", concurrency=2, queue_delay="6s", '
        'memory="100MiB", cores=1, env={"COLOUR": "red"}'
    )
    view = app.deploy("return __import__('os').environ['COLOUR']", options)

    asked = view.functions["says"].options
    assert (asked.timeout_s, asked.ttl_s, asked.keep_s) == (123.0, 3600.0, 172800.0)
    assert (asked.retries, asked.retry_on, asked.delay_s) == (2, ["builtins.OSError"], 2.0)
    assert (asked.backoff, asked.max_delay_s) == (3.0, 9.0)
    scaling = view.scaling
    assert (scaling.min, scaling.max, scaling.idle_s, scaling.concurrency) == (1, 3, 77.0, 2)
    assert (scaling.queue_delay_s, scaling.per_instance) == (6.0, None)
    call = app.says.spawn()
    assert call.result(60) == "red"
    run = app.remote.corral.runs.get(app.remote.corral.calls.get(call.id).run or "")
    assert run.spec.resources.min_cores == 1
    assert run.spec.resources.min_ram == 100 << 20
    assert run.spec.service is not None
    assert run.spec.service.concurrency == 2


def test_what_is_stored_changes_only_with_a_record_of_it(app: Harness) -> None:
    """RF-D38."""
    app.deploy("return 1")
    scaling = app.view().scaling
    assert app.corral("fn", "scale", app.endpoint, "--max", "5", "--idle", "9").returncode == 0

    assert app.view().scaling == scaling.model_copy(update={"max": 5, "idle_s": 9.0})
    entries = app.remote.corral.audit.newest()
    mine = [one.action for one in entries if one.target == f"default/{app.endpoint}"]
    assert mine[0] == "endpoint.scale"


def test_a_removed_function_ends_its_instances(app: Harness) -> None:
    """RF-D51, RF-D58: from nothing but a token, what one has can be listed and removed."""
    app.deploy("return 1")
    call = app.says.spawn()
    call.result(60)
    run = app.remote.corral.calls.get(call.id).run or ""

    def listed() -> str:
        # Also those that are being removed: until then they can be found by name.
        done = app.corral("fn", "ls", "--all", "--json")
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert app.endpoint in listed()

    assert app.corral("fn", "stop", "--rm", app.endpoint).returncode == 0

    # Told to stop, and cancelled: whichever reaches it first.
    eventually(lambda: app.remote.corral.runs.get(run).state in FINAL_STATES, "its instance to end")
    eventually(lambda: app.endpoint not in listed(), "it to be gone")
    with pytest.raises(corral.FunctionError, match=app.endpoint):
        corral.function(app.endpoint)


def test_serve_takes_over_each_change_and_clears_up_at_the_end(app: Harness) -> None:
    """RF-C26, RF-C34, RF-D55: on this machine, with no account; what does not import changes nothing."""
    app.write("print('one is said'); return 1")
    env = {**CLEAN, "CORRAL_HOME": str(app.scene.stack.home), "PYTHONUNBUFFERED": "1"}
    log = app.file.with_suffix(".log")
    with log.open("wb") as out:
        serving = subprocess.Popen([CORRAL, "fn", "serve", str(app.file)], env=env, stdout=out, stderr=out)
    try:
        eventually(lambda: b"version 1" in log.read_bytes(), "it to serve")
        app.endpoint = f"dev.{app.endpoint}"
        assert app.says.remote() == 1
        # HOUR-08: what it prints, and each call when it has ended.
        eventually(lambda: b" one is said" in log.read_bytes(), "its output to be shown")
        eventually(lambda: b"says succeeded" in log.read_bytes(), "the call to be shown")
        _changed(app, "return 2")
        eventually(_says(app, 2), "the change to serve", within_s=60)
        _changed(app, "return (")
        eventually(lambda: b"cannot be imported" in log.read_bytes(), "the mistake to be told")
        assert app.says.remote() == 2
        _changed(app, "return 3")
        eventually(_says(app, 3), "the next change to serve", within_s=60)
        serving.send_signal(signal.SIGINT)
        assert serving.wait(60) == 0
    finally:
        serving.kill()
        serving.wait(120)
    eventually(lambda: app.endpoint not in {one.name for one in app.remote.corral.endpoints.all()}, "its end")


def test_serve_leaves_what_is_deployed_as_it_is(app: Harness) -> None:
    """HOUR4-06: a draft took the deployed endpoints over, and removed them with their versions at Ctrl-C."""
    app.deploy("return 'deployed'")
    app.file.write_text(
        f"import corral\napp = corral.App({app.name!r})\n"
        "@app.function(schedule=corral.Period('1h'))\ndef other():\n    return 'draft'\n"
        "@app.function()\ndef calls():\n    return other.remote()\n"
    )
    env = {**CLEAN, "CORRAL_HOME": str(app.scene.stack.home), "PYTHONUNBUFFERED": "1"}
    log = app.file.with_suffix(".log")
    with log.open("wb") as out:
        serving = subprocess.Popen([CORRAL, "fn", "serve", str(app.file)], env=env, stdout=out, stderr=out)
    try:
        eventually(lambda: log.read_bytes().count(b"version 1") == 2, log.read_text, within_s=30)
        # `says` is not in the draft, and is served all the same; members of the draft call each other.
        assert app.says.remote() == "deployed"
        assert corral.function(f"dev.{app.name}.calls").remote() == "draft"
        assert app.remote.corral.endpoints.get("default", f"dev.{app.name}.other").next_at is None
        serving.send_signal(signal.SIGINT)
        assert serving.wait(60) == 0
    finally:
        serving.kill()
        serving.wait(120)
    assert f"removed dev.{app.name}.calls, dev.{app.name}.other".encode() in log.read_bytes()
    # HOUR4-11: instances that said nothing are not listed as if they had.
    assert b"(queued)" not in log.read_bytes()
    assert (app.view().current, app.says.remote()) == (1, "deployed")


def test_an_app_with_the_name_of_a_draft_is_not_deployed(app: Harness) -> None:
    """HOUR4-06: a draft of another app would take it over."""
    app.name = f"dev.{app.name}"
    app.write("return 1")
    done = app.corral("fn", "deploy", str(app.file))
    assert done.returncode != 0
    assert "only `corral fn serve` gives" in done.stderr


def test_the_output_of_instances_is_followed(app: Harness) -> None:
    """HOUR-08, NEW-16: `corral fn logs -f`."""
    app.deploy("import time; print(f'said at {time.time()}'); return 1")
    app.says.remote()
    env = {**CLEAN, "CORRAL_HOME": str(app.scene.stack.home), "PYTHONUNBUFFERED": "1"}
    log = app.file.with_suffix(".log")
    with log.open("wb") as out:
        command = [CORRAL, "fn", "logs", "-f", app.endpoint]
        following = subprocess.Popen(command, env=env, stdout=out, stderr=out)
    try:
        eventually(lambda: log.read_bytes().count(b"said at") == 1, "what was said before")
        app.says.remote()
        assert eventually(lambda: log.read_bytes().count(b"said at") == 2, "what is said now")
    finally:
        following.kill()
        following.wait(120)


def _changed(app: Harness, body: str) -> None:
    app.write(body)
    # A clock of files may be coarse.
    later = app.file.stat().st_mtime + 5
    os.utime(app.file, (later, later))


def _says(app: Harness, value: int) -> Callable[[], bool]:
    return lambda: app.says.remote() == value


def test_functions_of_an_app_have_their_own_versions_of_a_module(app: Harness, tmp_path: Path) -> None:
    """RF-D41 in part: code that was shipped before is not changed by what is shipped later."""
    helper = tmp_path / f"{app.name}_helper.py"
    helper.write_text("VALUE = 'old'\n")
    app.deploy(f"import {helper.stem}; return {helper.stem}.VALUE")
    assert app.says.remote() == "old"
    helper.write_text("VALUE = 'new'\n")
    assert app.says.remote() == "old"

    app.deploy(f"import {helper.stem}; return {helper.stem}.VALUE")

    assert app.says.remote() == "new"
    assert isinstance(app.remote, HttpBackend)

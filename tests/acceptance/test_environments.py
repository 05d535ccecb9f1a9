"""A lock becomes one environment per host, whoever asks, whoever dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.clock import ManualClock
from uv import find_uv_bin

from corral.client.environments.installer import InstallerStopped
from corral.client.environments.lock import Lock, resolve
from corral.worker.prepare.environments import (
    START_GRACE_S,
    EnvironmentFailed,
    Environments,
    NoWheelForHost,
    PythonNotFound,
    activate_env,
)

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"

# One builder in a process of its own, as another worker on the host would be.
BUILDER = """
import os, sys
from pathlib import Path
from corral.client.environments.lock import Lock
from corral.worker.prepare.environments import Environments
root, wheels, uv, text, python = sys.argv[1:]
host = Environments(Path(root), os.environ, find_links=[Path(wheels)], uv=Path(uv))
print(host.build(Lock(text, python), lambda line: print(line, flush=True)), flush=True)
"""


def write_wheel(folder: Path, name: str, version: str, *, tag: str = "py3-none-any") -> None:
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-{tag}.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", f"def main():\n    print({name!r}, {version!r})\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        wheel.writestr(f"{info}/entry_points.txt", f"[console_scripts]\n{name} = {name}:main\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    write_wheel(folder, "hay", "1.0")
    write_wheel(folder, "hay", "2.0")
    write_wheel(folder, "iron", "1.0", tag="cp311-cp311-win_amd64")
    return folder


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "empty-index").mkdir()
    (tmp_path / "home").mkdir()
    index = (tmp_path / "empty-index").as_uri()
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home"), "UV_DEFAULT_INDEX": index}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def host(root: Path, env: dict[str, str], wheels: Path) -> Environments:
    return Environments(root, env, find_links=[wheels])


@pytest.fixture
def hanging_uv(tmp_path: Path) -> Iterator[Path]:
    """Makes the venv, then never ends its installation. What it leaves is killed afterwards."""
    pids = tmp_path / "hanging"
    body = f'if [ "$3" = pip ]; then echo $$ >> {pids}; echo Hanging >&2; exec sleep 300; fi'
    yield wrapped_uv(tmp_path / "hanging-uv", body)
    for pid in pids.read_text().split() if pids.exists() else []:
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            continue


def wrapped_uv(path: Path, body: str) -> Path:
    path.write_text(f'#!/bin/sh\n{body}\nexec {find_uv_bin()} "$@"\n')
    path.chmod(0o755)
    return path


def output(command: list[str | Path], env: Mapping[str, str]) -> str:
    return subprocess.run(command, env=dict(env), check=True, capture_output=True, text=True).stdout.strip()


def start_builder(
    root: Path, wheels: Path, uv: Path, text: str, env: Mapping[str, str]
) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BUILDER, str(root), str(wheels), str(uv), text, PYTHON]
    return subprocess.Popen(command, env=dict(env), stdout=subprocess.PIPE, text=True)


def leftovers(root: Path) -> list[Path]:
    return [path for name in ("building", "trash") for path in (root / name).iterdir()]


def test_an_environment_has_what_its_lock_names_and_its_scripts_run(
    host: Environments, env: dict[str, str], tmp_path: Path
) -> None:
    lines: list[str] = []

    python = host.build(Lock("hay==1.0", PYTHON), lines.append)

    assert output([python, "-c", "import hay; hay.main()"], env) == "hay 1.0"
    active = activate_env(python, env | {"PYTHONHOME": "/nowhere"})
    assert output([Path("/bin/sh"), "-c", "hay; echo $VIRTUAL_ENV"], active).splitlines() == [
        "hay 1.0",
        str(python.parent.parent),
    ]
    assert lines[0].startswith("building environment")
    assert " + hay==1.0" in lines
    assert list((tmp_path / "home").iterdir()) == []


def test_an_empty_lock_is_a_bare_environment(host: Environments, env: dict[str, str]) -> None:
    python = host.build(Lock("", PYTHON))

    assert output([python, "-c", "import sys; print(sys.prefix)"], env) == str(python.parent.parent)


def test_the_second_use_needs_no_uv(host: Environments, root: Path) -> None:
    """MT-D42."""
    lock = Lock("hay==1.0", PYTHON)
    python = host.build(lock)
    without_uv = Environments(root, {}, uv=Path("/nonexistent/uv"))

    assert without_uv.build(lock) == python


def test_four_threads_build_once(root: Path, env: dict[str, str], wheels: Path, tmp_path: Path) -> None:
    uv = wrapped_uv(tmp_path / "uv", f'echo "$3" >> {tmp_path}/calls; sleep 0.2')
    notes: list[str] = []
    gate = threading.Barrier(4)

    def build(_: int) -> Path:
        gate.wait()
        own = Environments(root, env, find_links=[wheels], uv=uv)
        return own.build(Lock("hay==1.0", PYTHON), notes.append)

    with ThreadPoolExecutor(4) as pool:
        pythons = set(pool.map(build, range(4)))

    assert len(pythons) == 1
    assert (tmp_path / "calls").read_text().split() == ["venv", "pip"]
    assert sum(note.startswith("building") for note in notes) == 1
    assert sum(note.startswith("waiting for another") for note in notes) == 3


def test_four_processes_build_once(root: Path, env: dict[str, str], wheels: Path, tmp_path: Path) -> None:
    uv = wrapped_uv(tmp_path / "uv", f'echo "$3" >> {tmp_path}/calls; sleep 0.5')

    builders = [start_builder(root, wheels, uv, "hay==1.0", env) for _ in range(4)]
    outputs = [builder.communicate(timeout=60)[0].splitlines() for builder in builders]

    assert len({lines[-1] for lines in outputs}) == 1
    assert (tmp_path / "calls").read_text().split() == ["venv", "pip"]


def test_a_builder_killed_midway_leaves_nothing_in_the_way(
    host: Environments, root: Path, env: dict[str, str], wheels: Path, hanging_uv: Path
) -> None:
    builder = start_builder(root, wheels, hanging_uv, "hay==1.0", env)
    assert builder.stdout is not None
    assert any(line.strip() == "Hanging" for line in builder.stdout)
    builder.kill()
    builder.communicate()
    assert leftovers(root) != []

    python = host.build(Lock("hay==1.0", PYTHON))

    assert output([python, "-c", "import hay; hay.main()"], env) == "hay 1.0"
    assert leftovers(root) == []


def test_a_builder_may_be_killed_at_any_moment(
    host: Environments, root: Path, env: dict[str, str], wheels: Path
) -> None:
    midway = 0
    for delay_ms in (0, 10, 20, 30, 40, 60, 80, 120):
        builder = start_builder(root, wheels, Path(find_uv_bin()), "hay==1.0", env)
        assert builder.stdout is not None
        assert builder.stdout.readline() != ""
        time.sleep(delay_ms / 1_000)
        builder.kill()
        builder.communicate()
        midway += not any((root / "envs").iterdir())

    assert midway > 0
    python = host.build(Lock("hay==1.0", PYTHON))

    assert output([python, "-c", "import hay; hay.main()"], env) == "hay 1.0"


def test_an_environment_whose_python_has_gone_is_built_anew(host: Environments, env: dict[str, str]) -> None:
    lock = Lock("hay==1.0", PYTHON)
    python = host.build(lock)
    python.unlink()
    python.symlink_to("/nonexistent/python")

    assert host.build(lock) == python
    assert output([python, "-c", "import hay; hay.main()"], env) == "hay 1.0"


def test_an_unknown_package_fails_in_uvs_words_and_leaves_nothing(host: Environments, root: Path) -> None:
    with pytest.raises(EnvironmentFailed, match="straw was not found") as caught:
        host.build(Lock("straw==1.0", PYTHON))

    assert "UV_DEFAULT_INDEX" in caught.value.hint
    assert leftovers(root) == []
    assert list((root / "envs").iterdir()) == []


def test_pins_that_conflict_fail_the_build(host: Environments) -> None:
    with pytest.raises(EnvironmentFailed, match=r"hay==1\.0"):
        host.build(Lock("hay==1.0\nhay==2.0", PYTHON))


def test_a_wheel_with_another_hash_is_refused(host: Environments, root: Path) -> None:
    with pytest.raises(EnvironmentFailed, match=r"(?i)hash"):
        host.build(Lock(f"hay==1.0 --hash=sha256:{'0' * 64}", PYTHON))

    assert list((root / "envs").iterdir()) == []


def test_a_wheel_for_another_platform_is_named_with_its_platform(
    host: Environments, env: dict[str, str], wheels: Path
) -> None:
    lock = resolve(["iron"], python="3.11", env=env, find_links=[wheels])

    with pytest.raises(NoWheelForHost, match=r"(?s)iron==1\.0.*win_amd64"):
        host.build(lock)


def test_a_missing_python_lists_what_the_host_has(host: Environments) -> None:
    with pytest.raises(PythonNotFound, match=rf"no Python 3\.99; found: .*{PYTHON}\.\d+ \(/"):
        host.build(Lock("", "3.99"))


def test_a_build_that_is_told_to_stop_kills_uv(
    root: Path, env: dict[str, str], wheels: Path, hanging_uv: Path, tmp_path: Path
) -> None:
    host = Environments(root, env, find_links=[wheels], uv=hanging_uv)
    lines: list[str] = []

    with pytest.raises(InstallerStopped):
        host.build(Lock("hay==1.0", PYTHON), lines.append, should_stop=lambda: "Hanging" in lines)

    pid = int((tmp_path / "hanging").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert leftovers(root) == []


def test_a_builder_that_waits_for_another_can_be_stopped(
    host: Environments, root: Path, env: dict[str, str], wheels: Path, hanging_uv: Path
) -> None:
    other = start_builder(root, wheels, hanging_uv, "hay==1.0", env)
    assert other.stdout is not None
    assert any(line.strip() == "Hanging" for line in other.stdout)
    notes: list[str] = []

    with pytest.raises(InstallerStopped, match="waiting"):
        host.build(Lock("hay==1.0", PYTHON), notes.append, should_stop=lambda: len(notes) > 0)

    assert notes[0].startswith("waiting for another worker")
    other.kill()
    other.communicate()


def test_collection_takes_the_longest_unused_and_spares_what_is_in_use(
    root: Path, env: dict[str, str], wheels: Path
) -> None:
    clock = ManualClock(time.time())
    host = Environments(root, env, find_links=[wheels], clock=clock.now)
    locks = [Lock("hay==1.0", PYTHON), Lock("hay==2.0", PYTHON), Lock("", PYTHON)]
    for lock in locks:
        host.build(lock)
        clock.advance(1)
    running, idle, fresh = map(host.key, locks)
    clock.advance(START_GRACE_S)
    host.build(locks[2])

    removed = host.collect(in_use={running}, max_bytes=0)

    assert [one.key for one in removed] == [idle]
    assert removed[0].size_bytes > 0
    assert {path.name for path in (root / "envs").iterdir()} == {running, fresh}
    assert leftovers(root) == []


def test_collection_by_age_keeps_the_recently_used(root: Path, env: dict[str, str], wheels: Path) -> None:
    clock = ManualClock(time.time())
    host = Environments(root, env, find_links=[wheels], clock=clock.now)
    old, recent = Lock("hay==1.0", PYTHON), Lock("hay==2.0", PYTHON)
    host.build(old)
    clock.advance(86_400)
    host.build(recent)
    clock.advance(2 * START_GRACE_S)

    assert [one.key for one in host.collect(in_use=(), older_than_s=3_600)] == [host.key(old)]
    assert host.collect(in_use=(), max_bytes=10**12) == []


def test_an_environment_still_works_after_uvs_cache_was_collected(
    root: Path, env: dict[str, str], wheels: Path
) -> None:
    host = Environments(root, env, find_links=[wheels])
    python = host.build(Lock("hay==1.0", PYTHON))

    host.collect(in_use=[host.key(Lock("hay==1.0", PYTHON))], max_bytes=0)

    assert not (root / "cache").exists()
    assert output([python, "-c", "import hay; hay.main()"], env) == "hay 1.0"
    host.build(Lock("hay==2.0", PYTHON))


def test_collection_clears_what_a_killed_builder_left_but_not_a_live_build(
    host: Environments, root: Path, env: dict[str, str], wheels: Path, hanging_uv: Path
) -> None:
    builder = start_builder(root, wheels, hanging_uv, "hay==1.0", env)
    assert builder.stdout is not None
    assert any(line.strip() == "Hanging" for line in builder.stdout)
    host.collect(in_use=(), max_bytes=0)
    assert leftovers(root) != []
    builder.kill()
    builder.communicate()

    host.collect(in_use=(), max_bytes=0)

    assert leftovers(root) == []


def test_a_package_of_the_real_index_is_locked_and_built(tmp_path: Path) -> None:
    env = dict(os.environ)
    lock = resolve(["six==1.17.*"], python=PYTHON, env=env)

    python = Environments(tmp_path / "root", env).build(lock)

    assert "--hash=sha256:" in lock.text
    assert output([python, "-c", "import six; print(six.__version__)"], env).startswith("1.17.")

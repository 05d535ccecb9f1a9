"""STO-01: when a host is set aside by its own worker, and when it comes back."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from corral.worker.host.health import (
    CALM_S,
    FIRST_PAUSE_S,
    HostHealth,
    is_hosts,
    is_hosts_at_start,
    look_at_host,
)


class Machine:
    """What a look finds, and what time it is."""

    def __init__(self) -> None:
        self.fault: str | None = None
        self.time = 1000.0
        self.health = HostHealth(Path(), look=lambda _: self.fault, now=lambda: self.time)


def test_a_fault_ends_when_a_look_finds_none_and_a_moment_has_passed() -> None:
    """STO-01."""
    machine = Machine()
    machine.health.found("no space")
    machine.health.look()
    assert machine.health.fault == "no space"
    machine.time += FIRST_PAUSE_S
    machine.health.look()
    assert machine.health.fault is None


def test_a_fault_that_comes_back_is_believed_to_be_gone_later_each_time() -> None:
    """STO-01: a host that fails every run and passes every look would be asked again and again."""
    machine = Machine()
    waited = []
    for _ in range(4):
        machine.health.found("no space")
        begun = machine.time
        while machine.health.fault is not None:
            machine.time += FIRST_PAUSE_S
            machine.health.look()
        waited.append(machine.time - begun)
    assert waited == [1.0, 2.0, 4.0, 8.0]
    machine.time += CALM_S
    machine.health.found("no space")
    machine.time += FIRST_PAUSE_S
    machine.health.look()
    assert machine.health.fault is None


def test_a_look_finds_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """STO-01: a folder that is gone or may not be written to, and a Python that does not start."""
    assert look_at_host(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    assert "cannot write to" in (look_at_host(tmp_path / "gone") or "")
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no such library' >&2; exit 127\n")
    broken.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(broken))
    assert (look_at_host(tmp_path) or "").endswith("does not start: no such library")
    broken.unlink()
    assert "cannot start its Python" in (look_at_host(tmp_path) or "")


@pytest.mark.parametrize("name", ["ENOSPC", "EDQUOT", "EROFS", "EACCES", "EMFILE", "ENFILE", "EIO"])
def test_such_errors_of_the_workers_own_work_are_the_hosts(name: str) -> None:
    """STO-01."""
    assert is_hosts(OSError(getattr(errno, name), name))


def test_a_program_that_is_missing_or_may_not_be_executed_is_the_runs_own_mistake() -> None:
    """STO-01."""
    assert [is_hosts_at_start(n) for n in (None, errno.ENOENT, errno.EACCES, errno.EMFILE)] == [
        False,
        False,
        False,
        True,
    ]

from pathlib import Path

import pytest

from corral.worker.child.oom import OomWatch


@pytest.fixture
def events(tmp_path: Path) -> Path:
    return _counter(tmp_path / "memory.events", 3)


@pytest.fixture
def vmstat(tmp_path: Path) -> Path:
    return _counter(tmp_path / "vmstat", 7)


def _counter(file: Path, value: int) -> Path:
    file.write_text(f"oom 9\noom_kill {value}\noom_group_kill 0\n")
    return file


def test_a_counter_that_stood_still_means_that_memory_did_not_run_out(events: Path, vmstat: Path) -> None:
    assert OomWatch(events, vmstat).verdict(killed_unasked=True) is False


def test_a_kill_in_the_control_group_of_an_only_child_is_laid_to_it(events: Path, vmstat: Path) -> None:
    watch = OomWatch(events, vmstat)
    _counter(events, 4)
    assert watch.verdict(killed_unasked=False) is True


def test_of_two_children_only_the_one_that_was_killed_ran_out_of_memory(events: Path, vmstat: Path) -> None:
    killed, failed = OomWatch(events, vmstat), OomWatch(events, vmstat)
    _counter(events, 4)
    assert killed.verdict(killed_unasked=True) is True
    assert failed.verdict(killed_unasked=False) is None


def test_children_that_never_overlapped_are_each_alone(events: Path, vmstat: Path) -> None:
    OomWatch(events, vmstat).end()
    watch = OomWatch(events, vmstat)
    _counter(events, 4)
    assert watch.verdict(killed_unasked=False) is True


def test_without_a_control_group_a_kill_on_the_machine_proves_nothing(vmstat: Path) -> None:
    watch = OomWatch(None, vmstat)
    _counter(vmstat, 8)
    assert watch.verdict(killed_unasked=True) is None


def test_without_a_control_group_no_kill_on_the_machine_is_proof(vmstat: Path) -> None:
    assert OomWatch(None, vmstat).verdict(killed_unasked=True) is False


def test_without_any_counter_nothing_is_known(tmp_path: Path) -> None:
    assert OomWatch(None, tmp_path / "absent").verdict(killed_unasked=True) is None

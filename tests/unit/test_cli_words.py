"""What the command line says of runs: why they ended, how far they are, what was swept."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest
from pydantic import JsonValue as Json
from support.installation import CLEAN

from corral.cli.display.progress_line import status_line
from corral.cli.display.render import count
from corral.cli.display.runs import WORDS, told
from corral.cli.runs.follow import summary
from corral.cli.runs.ls import differing, in_order
from corral.cli.server.processes import Processes
from corral.domain.runs.reasons import Reason
from corral.wire.runs import RunView


def run(**fields: object) -> RunView:
    given = {
        "id": "r-x",
        "project": "p",
        "name": "n",
        "kind": "command",
        "priority": 0,
        "created_at": 0,
        "state": "running",
    }
    return RunView.model_validate({**given, **fields})


def test_every_reason_has_its_words() -> None:
    assert set(WORDS) == set(Reason)


def test_a_reason_is_told_with_its_words() -> None:
    assert told("released") == "released (the worker restarted or was stopped; given back free of charge)"
    assert told("cancelled") == "cancelled"
    assert told("one of a newer server") == "one of a newer server"
    assert told(None) is None


@pytest.mark.parametrize(("code", "expected"), [(127, "PATH"), (126, "chmod +x")])
def test_a_program_that_never_started_has_no_logs_to_read(code: int, expected: str) -> None:
    ended = run(
        state="failed",
        reason="code_error",
        detail="cannot execute 'x': whatever",
        exit_code=code,
        hint="Read its last lines: `corral logs r-x --tail 50`.",
    )

    lines = summary(ended)

    assert expected in lines[-1]
    assert "corral logs" not in lines[-1]


def test_a_program_that_ended_with_127_itself_has_logs_to_read() -> None:
    ended = run(state="failed", reason="code_error", detail="...", exit_code=127, hint="corral logs")

    assert summary(ended)[-1] == "hint: corral logs"


@pytest.mark.parametrize(
    ("progress", "shown"),
    [
        ({"step": 9, "total": 20}, "[#####.....] 45%  step 9/20  ETA 12s"),
        ({"percent": 45}, "[#####.....] 45%  ETA 12s"),
        ({"step": 0, "total": 20}, "[..........] 0%  step 0/20"),
        ({"step": 20, "total": 20, "phase": "end"}, "[##########] 100%  step 20/20  phase=end"),
        ({"step": 30, "total": 20}, "[##########] 100%  step 30/20"),
        ({"step": 3}, "step=3"),
        ({"step": 3, "total": 0}, "step=3  total=0"),
        ({"step": "three", "total": True}, "step=three  total=True"),
    ],
)
def test_the_status_line_draws_how_far_a_run_is(progress: Mapping[str, Json], shown: str) -> None:
    line = status_line(run(started_at=0, attempt=1, progress=progress), now=9.9)

    assert line == f"r-x running  9.9s  {shown}"


def test_a_later_attempt_has_no_estimate_since_it_may_have_begun_at_a_checkpoint() -> None:
    line = status_line(run(started_at=0, attempt=2, progress={"step": 1, "total": 2}), now=10)

    assert "50%" in line
    assert "ETA" not in line


def test_things_are_counted_in_the_right_number() -> None:
    assert [count(n, "file") for n in (0, 1, 2)] == ["0 files", "1 file", "2 files"]


def test_only_params_that_differ_tell_runs_apart() -> None:
    found = differing({"a": {"lr": 0.1, "same": 1}, "b": {"lr": 0.2, "same": 1}})

    assert found == {"a": {"lr": 0.1}, "b": {"lr": 0.2}}


def test_true_is_another_param_than_one() -> None:
    assert differing({"a": {"x": True}, "b": {"x": 1}}) == {"a": {"x": True}, "b": {"x": 1}}


def test_runs_of_a_group_are_ordered_by_params_and_seed() -> None:
    runs = [run(id="d", seed=1), run(id="c", seed=0), run(id="b", seed=1), run(id="a", seed=0)]
    params = {"a": {"lr": 9}, "b": {"lr": 9}, "c": {"lr": 10}, "d": {"lr": 10}}

    assert [each.id for each in in_order(runs, params)] == ["a", "b", "c", "d"]


def test_runs_without_params_are_ordered_by_age_and_seed() -> None:
    runs = [run(id="old", created_at=1), run(id="b", created_at=2, seed=1), run(id="a", created_at=2, seed=0)]

    assert [each.id for each in in_order(runs, {})] == ["a", "b", "old"]


def test_a_worker_that_was_started_by_hand_is_found_by_its_own_word(tmp_path: Path) -> None:
    wait = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", wait, "corral.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as worker:
        # For a moment after `exec` closed the pipe that Popen waits for, a process has no arguments yet.
        assert worker.stdout is not None
        worker.stdout.readline()
        started = psutil.Process(worker.pid).create_time()
        described = {"pid": worker.pid, "create_time": started}
        (tmp_path / "worker.pid").write_text(json.dumps(described))
        found = Processes(tmp_path).find("worker")
        (tmp_path / "worker.pid").write_text(json.dumps({**described, "create_time": started - 60}))
        earlier = Processes(tmp_path).find("worker")

    assert found is not None
    assert found.pid == worker.pid
    assert earlier is None


def test_the_notes_and_logs_of_processes_are_for_nobody_else(tmp_path: Path) -> None:
    """ATK-20: also a log that an earlier version left open to others."""
    processes = Processes(tmp_path / "home")
    processes.log("worker").parent.mkdir(parents=True)
    processes.log("worker").write_text("from before\n")
    processes.log("worker").chmod(0o644)

    # Without a server, and with a home that it cannot use, it ends by itself.
    worker = processes.start("worker", {**CLEAN, "CORRAL_LEASE_S": "nonsense"})
    worker.wait(60)

    for path in (processes.note("worker"), processes.log("worker")):
        assert path.stat().st_mode & 0o777 == 0o600
    assert processes.log("worker").read_text().startswith("from before\n")


@pytest.mark.parametrize("text", ["", "{", "[]", "1", '{"pid": "x"}'])
def test_half_a_note_of_a_worker_is_no_worker(text: str, tmp_path: Path) -> None:
    (tmp_path / "worker.pid").write_text(text)

    assert Processes(tmp_path).find("worker") is None

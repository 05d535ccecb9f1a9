"""What a run says: lines that the worker understands, and lines that people can read."""

from __future__ import annotations

import io
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.waiting import eventually

from corral.engine.reports.events import EventWriter, StepStatus, TerminalOutput, line
from corral.engine.training.stop_signal import StopRequested, StopSignal
from corral.worker.child.events_file import (
    BadEvent,
    CheckpointEvent,
    MetricEvent,
    NoteEvent,
    ProgressEvent,
    parse,
)


def standing(step: int = 3, **changes: object) -> StepStatus:
    facts: dict[str, object] = {
        "step": step,
        "total": 10,
        "headline": "loss",
        "metrics": {"loss": 0.5, "lr": 1e-4},
        "tokens_per_s": 36_800.0,
        "mfu": 0.41,
        "memory_bytes": 35 * 2**30,
        "eta_s": 125.0,
    }
    return StepStatus(**{**facts, **changes})  # type: ignore[arg-type]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def events_of(path: Path) -> list[object]:
    return [event for text in path.read_bytes().splitlines() for event in parse(text, lambda said: said)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def test_the_worker_understands_every_line(file: Path) -> None:
    events = EventWriter(file, TerminalOutput(io.StringIO()))
    events.phase("loading the model")
    events.step(standing())
    events.metrics(3, {"eval_loss": 0.25})
    events.note("memory ran out")
    events.checkpoint(Path("/checkpoints/step-000003"), step=3, metric=0.25)

    heard = events_of(file)

    assert ProgressEvent({"phase": "loading the model"}) in heard
    assert ProgressEvent({"step": 3, "total": 10}) in heard
    assert MetricEvent("loss", 0.5, 3) in heard
    assert MetricEvent("eval_loss", 0.25, 3) in heard
    assert NoteEvent("memory ran out") in heard
    assert CheckpointEvent("/checkpoints/step-000003", 3, 0.25) in heard
    assert not [event for event in heard if isinstance(event, BadEvent)]


def test_a_long_set_up_is_told_again_and_again_until_the_first_step(file: Path) -> None:
    """MT-D15: a run that says nothing for its `stall_limit` is ended; one that loads or compiles is not."""
    events = EventWriter(file, TerminalOutput(io.StringIO()))
    with events.setting_up(every_s=0.001):
        events.phase("loading the model")
        loading = ProgressEvent({"phase": "loading the model"})
        eventually(lambda: events_of(file).count(loading) >= 3, "three reports of the same phase")
        events.step(standing())
        # Long enough for many more, if it went on.
        time.sleep(0.1)
    told = events_of(file)
    first_step = told.index(ProgressEvent({"step": 3, "total": 10}))

    assert told[:first_step].count(loading) >= 3
    # One may have been on its way as the step ended.
    assert told[first_step:].count(loading) <= 1


def test_the_end_of_a_job_that_made_no_step_is_not_held_up(file: Path) -> None:
    with EventWriter(file, TerminalOutput(io.StringIO())).setting_up(every_s=3600):
        pass
    with EventWriter(None, TerminalOutput(io.StringIO())).setting_up(every_s=0.0):
        pass
    assert not file.exists()


def test_progress_says_speed_use_memory_and_time_left(file: Path) -> None:
    """MT-C45."""
    events = EventWriter(file, TerminalOutput(io.StringIO()))
    events.step(standing())

    said = next(e for e in events_of(file) if isinstance(e, ProgressEvent) and "mfu" in e.values)

    assert said.values == {
        "phase": "training",
        "tok/s": 36800.0,
        "mfu": "41.0%",
        "memory": "35.0 GiB",
        "eta": "2m 5s",
    }


def test_numbers_that_are_not_finite_are_not_sent(file: Path) -> None:
    events = EventWriter(file, TerminalOutput(io.StringIO()))
    events.step(standing(metrics={"loss": math.nan, "lr": 1e-4}))
    events.metrics(1, {"loss": math.inf})
    events.checkpoint(Path("c"), step=1, metric=math.nan)

    assert [e for e in events_of(file) if isinstance(e, MetricEvent)] == [MetricEvent("lr", 1e-4, 3)]
    assert json.loads(file.read_bytes().splitlines()[-1]) == {"checkpoint": "c", "step": 1}


def test_a_line_for_people_leaves_out_what_is_not_known() -> None:
    known = standing()
    assert line(known) == "step 3/10  loss 0.5000  36.8k tok/s  MFU 41%  35.0 GiB  ETA 2m 5s"
    assert line(standing(tokens_per_s=None, mfu=None, memory_bytes=None, eta_s=None)) == (
        "step 3/10  loss 0.5000"
    )


def test_a_log_gets_a_line_now_and_then_and_always_the_first_and_the_last() -> None:
    out, now = io.StringIO(), [0.0]
    screen = TerminalOutput(out, clock=lambda: now[0])
    for step in range(1, 11):
        screen.step(standing(step))
        now[0] += 0.5

    steps = [int(text.split()[1].partition("/")[0]) for text in out.getvalue().splitlines()]

    assert steps == [1, 5, 9, 10]


def test_a_terminal_gets_one_line_that_changes_and_notes_above_it() -> None:
    out = Terminal()
    events = EventWriter(None, TerminalOutput(out))
    events.step(standing(1))
    events.note("the data is odd")
    events.step(standing(10))

    text = out.getvalue()

    assert text.startswith("[##..................]  step 1/10")
    assert "\r\x1b[Knote: the data is odd\n" in text
    assert text.endswith("\n")


def test_a_stop_gives_up_work_that_may_be_lost_and_waits_for_the_rest() -> None:
    stop = StopSignal()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        stop.install()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked == signal.SIGTERM
        with pytest.raises(StopRequested):
            stop.check()
        stop.asked = None
        with pytest.raises(StopRequested), stop.interruptible():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_the_worker_hears_that_the_engine_starts_before_torch_is_loaded(tmp_path: Path) -> None:
    """HOUR-09: importing it takes seconds, and on a busy machine a minute."""
    events = tmp_path / "events"
    env = {**os.environ, "CORRAL_EVENTS": str(events), "CORRAL_SPEC": str(tmp_path / "none")}

    done = subprocess.run([sys.executable, "-m", "corral.engine"], env=env, capture_output=True, check=False)

    assert done.returncode != 0
    assert events_of(events)[0] == ProgressEvent({"phase": "starting the engine"})

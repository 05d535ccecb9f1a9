"""What a run does to its own folder costs nobody else a slot, and never the worker."""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.watched_worker import WatchedWorker

PRELUDE = "import json, os, pathlib, sys\nE = os.environ['CORRAL_EVENTS']\n"
INSTEAD_OF_EVENTS = {
    "a pipe": "os.unlink(E); os.mkfifo(E)",
    "a link to a device": "os.unlink(E); os.symlink('/dev/zero', E)",
    "a link to a pipe": "os.mkfifo('pipe'); os.unlink(E); os.symlink(os.path.abspath('pipe'), E)",
    "a folder": "os.unlink(E); os.mkdir(E)",
    "a file of holes": "os.truncate(E, 1 << 42)",
}


@pytest.fixture(scope="module")
def one_slot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedWorker]:
    # Shared with the host's user, so that the child can do what it likes to its folder.
    home = tmp_path_factory.mktemp("fleet") / "home"
    made = WatchedWorker(home, CORRAL_WORKER_SLOTS="1", CORRAL_ISOLATION="off")
    made.start_server()
    made.start_worker()
    yield made
    made.close()


@pytest.mark.parametrize("what", INSTEAD_OF_EVENTS)
def test_whatever_takes_the_place_of_the_events_the_slot_comes_back(
    one_slot: WatchedWorker, what: str
) -> None:
    """SEC-08: the only slot is free for the next run."""
    run = one_slot.submit(sys.executable, "-c", PRELUDE + INSTEAD_OF_EVENTS[what])

    assert one_slot.final(run).state == "succeeded"
    assert one_slot.final(one_slot.submit("true")).state == "succeeded"


def test_a_worker_whose_run_has_a_pipe_for_its_events_ends_when_it_is_told_to(tmp_path: Path) -> None:
    """SEC-08: SIGTERM always ends the worker."""
    made = WatchedWorker(tmp_path / "home", CORRAL_WORKER_SLOTS="1", CORRAL_ISOLATION="off")
    try:
        made.start_server()
        made.start_worker()
        code = (
            PRELUDE + "os.unlink(E); os.mkfifo(E); print('there', flush=True); import time; time.sleep(600)"
        )
        run = made.submit(sys.executable, "-c", code, grace=0.1)
        made.printed(run, "there")

        made.worker.send_signal(signal.SIGTERM)

        assert made.worker.wait(30) == 0
    finally:
        made.close()


def test_an_output_folder_that_became_a_link_is_not_followed(one_slot: WatchedWorker, tmp_path: Path) -> None:
    """SEC-08: else a run that may not read a file itself could have the worker upload it."""
    (tmp_path / "secret.txt").write_text("not the run's")
    code = f"O = os.environ['CORRAL_OUTPUT_DIR']; os.rmdir(O); os.symlink({str(tmp_path)!r}, O)"

    done = one_slot.final(one_slot.submit(sys.executable, "-c", PRELUDE + code))

    assert (done.state, done.reason, done.artifact_id) == ("failed", "bad_output", None)


def test_nobody_else_on_the_machine_can_read_what_server_and_worker_keep(one_slot: WatchedWorker) -> None:
    """SEC-21, MT-C09."""
    code = "import os; os.mkdir('made'); open('file', 'w').close(); print(oct(os.umask(0)), flush=True)"
    run = one_slot.submit(sys.executable, "-c", code + "\nimport time; time.sleep(600)", grace=0.1)
    one_slot.printed(run, "0o")
    before = os.umask(0)
    os.umask(before)

    kept = [path for path in one_slot.home.rglob("*") if path.suffix != ".err" and "work" not in path.parts]
    leases = one_slot.home / "worker" / "leases"

    assert one_slot.output(run) == f"{oct(before)}\n"  # the run's own files are as the run wants them
    assert {path.name for path in leases.rglob("*")} >= {"spec.json", "job.json", "events.jsonl"}
    assert [str(path) for path in kept if stat.S_IMODE(path.lstat().st_mode) & 0o077] == []
    one_slot.corral.runs.cancel(run)
    one_slot.final(run)

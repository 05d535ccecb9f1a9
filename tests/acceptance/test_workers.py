"""The worker against a real server: what a run may do, and what may happen to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.waiting import eventually
from support.watched_worker import WatchedWorker

from corral.client.environments.lock import Lock
from corral.client.files.download import download

PRELUDE = "import json, os, sys, time, signal, pathlib\n"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedWorker]:
    """For tests that leave server and worker alone."""
    made = WatchedWorker(tmp_path_factory.mktemp("fleet") / "home")
    made.start_server()
    made.start_worker()
    yield made
    made.close()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[WatchedWorker]:
    """For tests that kill."""
    made = WatchedWorker(tmp_path / "home")
    made.start_server()
    made.start_worker()
    yield made
    made.close()


def test_a_run_leaves_its_log_its_metrics_and_its_artifact(fleet: WatchedWorker, tmp_path: Path) -> None:
    """FL-C08, FL-C24, MT-D48."""
    run = fleet.submit(
        sys.executable,
        "-c",
        PRELUDE
        + """
print("hello", sys.argv[1])
with open(os.environ["CORRAL_EVENTS"], "a") as events:
    for step in range(3):
        print(json.dumps({"metrics": {"loss": 1 / (step + 1)}, "step": step}), file=events)
    print(json.dumps({"note": "halfway"}), file=events)
(pathlib.Path(os.environ["CORRAL_OUTPUT_DIR"]) / "model.txt").write_text("weights")
""",
        "{params.lr}",
        params={"lr": 0.5},
    )

    done = fleet.final(run)

    assert (done.state, done.exit_code) == ("succeeded", 0)
    assert fleet.output(run) == "hello 0.5\n"
    assert [(p.step, p.value) for p in fleet.corral.runs.iter_metrics(run)] == [(0, 1), (1, 0.5), (2, 1 / 3)]
    assert done.metrics["loss"] == pytest.approx(1 / 3)
    assert "note" in [event.type for event in fleet.corral.runs.events(run).items]
    assert done.artifact_id is not None
    download(fleet.corral.artifacts, done.artifact_id, fleet.corral.source("default"), tmp_path / "got")
    assert (tmp_path / "got" / "model.txt").read_text() == "weights"
    assert not fleet.corral.artifacts.verify(done.artifact_id).problems
    eventually(lambda: not fleet.lease_folders() or None, "the workspace is removed")


def test_ten_thousand_lines_arrive_in_order(fleet: WatchedWorker) -> None:
    run = fleet.python("for n in range(10000): print(n)")

    assert fleet.final(run).state == "succeeded"
    assert fleet.output(run) == "".join(f"{n}\n" for n in range(10_000))


@pytest.mark.parametrize(
    ("code", "reason", "exit_code", "number"),
    [
        ("sys.exit(3)", "code_error", 3, None),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "code_error", None, signal.SIGSEGV),
        ("os.kill(os.getpid(), signal.SIGTERM)", "unknown", None, signal.SIGTERM),
    ],
)
def test_how_a_run_ended_is_kept(
    fleet: WatchedWorker, code: str, reason: str, exit_code: int | None, number: int | None
) -> None:
    done = fleet.final(fleet.python(PRELUDE + code))

    assert (done.state, done.reason, done.exit_code, done.signal) == ("failed", reason, exit_code, number)


def test_the_detail_of_a_failure_holds_the_last_lines_of_stderr(fleet: WatchedWorker) -> None:
    done = fleet.final(fleet.python("raise ValueError('no such thing')"))

    assert "exit code 1" in (done.detail or "")
    assert "ValueError: no such thing" in (done.detail or "")


def test_a_command_that_does_not_exist_is_named(fleet: WatchedWorker) -> None:
    done = fleet.final(fleet.submit("no-such-command-anywhere"))

    assert (done.state, done.reason) == ("failed", "code_error")
    assert "no-such-command-anywhere" in (done.detail or "")


def test_a_secret_never_shows_in_log_note_or_output(fleet: WatchedWorker) -> None:
    value = "correct-horse-battery"
    fleet.corral.secrets.set("default", "API_KEY", value)
    run = fleet.python(
        PRELUDE
        + """
import base64
key = os.environ["API_KEY"]
sys.stdout.write("key " + key[:7]); sys.stdout.flush(); time.sleep(0.5)
sys.stdout.write(key[7:] + " end\\n")
print(base64.b64encode(key.encode()).decode(), file=sys.stderr)
print(json.dumps({"note": "it is " + key}), file=open(os.environ["CORRAL_EVENTS"], "a"))
sys.exit(1)
""",
        secrets=["API_KEY"],
    )

    done = fleet.final(run)

    assert fleet.output(run) == "key [secret API_KEY] end\n"
    assert fleet.output(run, "stderr") == "[secret API_KEY]\n"
    events = fleet.corral.runs.events(run).model_dump_json()
    assert "it is [secret API_KEY]" in events
    assert value not in events + (done.detail or "")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("os.symlink('/etc/passwd', out / 'link')", "link"),
        ("os.mkfifo(out / 'pipe')", "pipe"),
        ("(out / 'leak.txt').write_text(os.environ['API_KEY'])", "API_KEY"),
    ],
)
def test_an_output_that_cannot_be_kept_fails_the_run(fleet: WatchedWorker, code: str, why: str) -> None:
    fleet.corral.secrets.set("default", "API_KEY", "correct-horse-battery")
    run = fleet.python(
        PRELUDE + f"out = pathlib.Path(os.environ['CORRAL_OUTPUT_DIR']); {code}", secrets=["API_KEY"]
    )

    done = fleet.final(run)

    assert (done.state, done.reason) == ("failed", "bad_output")
    assert why in (done.detail or "")


def test_a_line_of_64_megabytes_takes_little_memory(fleet: WatchedWorker) -> None:
    run = fleet.python("import sys\nfor _ in range(64): sys.stdout.write('x' * (1 << 20))")

    assert fleet.final(run).state == "succeeded"
    assert sum(len(line.text) for line in fleet.corral.runs.iter_logs(run)) == 64 << 20
    assert psutil.Process(fleet.worker.pid).memory_info().rss < 250 << 20


def test_binary_output_is_kept_as_text(fleet: WatchedWorker) -> None:
    run = fleet.python("import os; os.write(1, bytes(range(256)) * 8)")

    assert fleet.final(run).state == "succeeded"
    assert "\0\1\2" in fleet.output(run)


def test_a_cancelled_child_that_ignores_sigterm_is_killed(fleet: WatchedWorker) -> None:
    run = fleet.python(
        PRELUDE + "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf'); time.sleep(600)", grace=0.5
    )
    fleet.printed(run, "deaf")

    fleet.corral.runs.cancel(run, reason="enough")

    done = fleet.final(run)
    assert (done.state, done.signal) == ("cancelled", signal.SIGKILL)


def test_the_wall_limit_is_kept_by_the_worker(fleet: WatchedWorker) -> None:
    run = fleet.python(PRELUDE + "print('on'); time.sleep(600)", wall_limit=1.5)

    done = fleet.final(run)

    assert (done.state, done.reason) == ("failed", "wall_limit")


def test_what_forks_away_does_not_outlive_its_run(fleet: WatchedWorker) -> None:
    run = fleet.python(
        PRELUDE
        + """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.environ.clear()
        print("away", os.getpid())
        time.sleep(600)
    os._exit(0)
time.sleep(0.5)
"""
    )

    assert fleet.final(run).state == "succeeded"
    pid = int(fleet.output(run).split()[1])
    assert not psutil.pid_exists(pid)


def test_a_second_worker_on_one_home_is_refused(fleet: WatchedWorker) -> None:
    assert fleet.pid_file()["pid"] == fleet.worker.pid
    done = subprocess.run(
        [sys.executable, "-m", "corral.worker"],
        env={**os.environ, "CORRAL_HOME": str(fleet.home)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "another worker runs" in done.stderr


def test_code_and_inputs_are_there_and_inputs_cannot_be_changed(fleet: WatchedWorker, tmp_path: Path) -> None:
    """MT-C41 and MT-D21."""
    (tmp_path / "code" / "pkg").mkdir(parents=True)
    (tmp_path / "code" / "pkg" / "words.py").write_text("HELLO = 'from the code'")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.csv").write_text("1,2,3")
    code = fleet.keep(tmp_path / "code", "code")
    data = fleet.keep(tmp_path / "data", "input")
    look = (
        PRELUDE
        + """
from pkg.words import HELLO
rows = pathlib.Path(os.environ["CORRAL_INPUT_DIR"]) / "data" / "rows.csv"
print(HELLO, rows.read_text(), oct(rows.stat().st_mode & 0o777))
pathlib.Path("pkg/words.py").write_text("HELLO = 'spoilt'")
"""
    )

    for _ in range(2):
        run = fleet.python(look, code=code, inputs={"data": data})
        assert fleet.final(run).state == "succeeded"
        assert fleet.output(run) == "from the code 1,2,3 0o400\n"
    eventually(lambda: not fleet.lease_folders() or None, "read-only inputs are removed too")


def test_a_locked_environment_is_built_and_runs_the_command(fleet: WatchedWorker) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    built = {"python": version, "lock": "", "digest": Lock("", version).digest}
    run = fleet.submit("python", "-c", "import sys; print(sys.prefix)", environment=built)

    done = fleet.final(run)

    assert done.state == "succeeded", done.detail
    assert fleet.output(run).startswith(str(fleet.home / "worker" / "environments"))
    assert "building environment" in fleet.output(run, "corral")


def test_an_environment_that_cannot_be_built_fails_the_run_with_its_words(fleet: WatchedWorker) -> None:
    """MT-D21."""
    built = {"python": "3.99", "lock": "", "digest": Lock("", "3.99").digest}
    done = fleet.final(fleet.submit("python", "-c", "1", environment=built))

    assert (done.state, done.reason) == ("failed", "environment")
    assert "no Python 3.99" in (done.detail or "")


def test_a_lost_lease_stops_its_child(own: WatchedWorker, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    run = own.python(
        PRELUDE
        + f"""
print("attempt", os.environ["CORRAL_ATTEMPT"], os.getpid())
while not os.path.exists({str(gate)!r}): time.sleep(0.05)
"""
    )
    own.printed(run, "attempt 1")
    old = int(own.output(run).split()[2])

    own.pose_as_a_new_boot()

    own.printed(run, "attempt 2")
    eventually(lambda: not psutil.pid_exists(old) or None, "the child of the lost lease is killed")
    gate.touch()
    done = own.final(run)
    assert (done.state, done.attempt) == ("succeeded", 2)


def test_a_flood_of_lines_stays_within_its_quota(tmp_path: Path) -> None:
    fleet = WatchedWorker(tmp_path / "home", CORRAL_LOG_QUOTA_BYTES="1000000")
    fleet.start_server()
    fleet.start_worker()
    try:
        run = fleet.python("import sys\nfor _ in range(3000): sys.stdout.write('y\\n' * 1000)\nprint('end')")
        assert fleet.final(run).state == "succeeded"
        said = fleet.output(run, "corral")
        assert "log quota used up, 1000000 bytes" in said
        assert fleet.output(run).endswith("y\nend\n")
        assert len(fleet.output(run)) < 1_000_000
    finally:
        fleet.close()


TRAIN = (
    PRELUDE
    + """
start = 0
if "CORRAL_RESUME_DIR" in os.environ:
    start = int((pathlib.Path(os.environ["CORRAL_RESUME_DIR"]) / "state.txt").read_text())
print("start", start)
folder = pathlib.Path(os.environ["CORRAL_CHECKPOINT_DIR"])
def save(step):
    at = folder / f"step-{step}"
    at.mkdir()
    (at / "state.txt").write_text(str(step))
    with open(os.environ["CORRAL_EVENTS"], "a") as events:
        print(json.dumps({"checkpoint": f"step-{step}", "step": step, "metric": 1 / step}), file=events)
    # The worker has its own link by then, or soon: a real child rotates its checkpoints.
"""
)


def test_a_run_resumes_from_its_checkpoint_after_its_worker_was_killed(own: WatchedWorker) -> None:
    run = own.python(TRAIN + "if not start:\n    save(7); time.sleep(600)\n")
    eventually(lambda: own.corral.runs.checkpoints(run).items, "the checkpoint is on the server")

    own.kill_worker()
    own.start_worker()

    done = own.final(run)
    assert done.state == "succeeded"
    assert own.output(run) == "start 0\nstart 7\n"


def test_an_outage_of_the_server_loses_nothing(own: WatchedWorker, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    run = own.python(
        PRELUDE
        + f"""
print("before")
while not os.path.exists({str(gate)!r}): time.sleep(0.05)
for n in range(1000): print("during", n)
(pathlib.Path(os.environ["CORRAL_OUTPUT_DIR"]) / "result").write_text("whole")
"""
    )
    own.printed(run, "before")

    own.kill_server()
    gate.touch()
    spool = own.home / "worker" / "leases"
    eventually(lambda: '"output"' in _records(spool) or None, "the child ends during the outage")
    own.start_server()

    done = own.final(run)
    assert (done.state, done.attempt) == ("succeeded", 1)
    assert own.output(run) == "before\n" + "".join(f"during {n}\n" for n in range(1000))
    assert done.artifact_id is not None


def test_a_worker_killed_before_it_could_report_reports_at_its_next_start(own: WatchedWorker) -> None:
    run = own.python(
        PRELUDE
        + """
print("once")
(pathlib.Path(os.environ["CORRAL_OUTPUT_DIR"]) / "result").write_text("whole")
time.sleep(1)
"""
    )
    own.printed(run, "once")
    own.kill_server()
    eventually(lambda: '"output"' in _records(own.home / "worker" / "leases") or None, "the child ends")

    own.kill_worker()
    own.start_server()
    own.start_worker()

    done = own.final(run)
    assert (done.state, done.attempt) == ("succeeded", 1)
    assert own.output(run) == "once\n"
    assert done.artifact_id is not None


def test_sigterm_drains_and_the_next_worker_goes_on(own: WatchedWorker) -> None:
    """FL-D44, FL-C08."""
    run = own.python(
        TRAIN
        + """
if not start:
    signal.signal(signal.SIGTERM, lambda *_: (save(3), sys.exit(0)))
    print("ready"); time.sleep(600)
"""
    )
    own.printed(run, "ready")

    own.worker.send_signal(signal.SIGTERM)

    assert own.worker.wait(timeout=30) == 0
    assert own.corral.runs.get(run).state == "queued"
    # HOUR4-14: it said that it goes.
    assert [host.alive for host in own.corral.hosts.all()] == [False]
    own.start_worker()
    assert own.final(run).state == "succeeded"
    assert own.output(run) == "start 0\nready\nstart 3\n"


def _records(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.glob("*/job.json"))

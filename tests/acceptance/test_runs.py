"""Acting on runs from the command line, one or many, as a user or a script does."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.installation import Installation
from support.waiting import eventually


def submit(corral: Installation, folder: Path, text: str) -> list[str]:
    (folder / "run.toml").write_text(text)
    return corral.ok("submit", str(folder / "run.toml"), "--quiet").split()


def test_a_group_is_cancelled_after_a_look_and_a_yes(corral: Installation, tmp_path: Path) -> None:
    """FL-C09."""
    held = 'name = "many"\nargv = ["true"]\nseeds = [1, 2, 3]\nresources.hosts = ["nobody"]\n'
    ids = submit(corral, tmp_path, held)

    looked = corral("cancel", "--group", "many", "--dry-run")
    assert "3 runs would be cancelled, or told to stop" in looked.stdout
    asked = corral("cancel", "--group", "many")
    assert asked.returncode == 1
    assert "--yes" in asked.stderr
    assert corral.state(ids[0]) == "queued"
    assert "3 runs cancelled" in corral.ok("cancel", "--group", "many", "--yes")
    assert {corral.state(one) for one in ids} == {"cancelled"}
    again = corral("cancel", "--group", "many", "--yes")
    assert (again.returncode, again.stdout) == (0, "")
    assert "nothing was changed" in again.stderr


def test_a_dry_run_on_named_runs_changes_nothing(corral: Installation, tmp_path: Path) -> None:
    """HOUR-20: `requeue RUN --dry-run` queued the run; `--set` is checked without being done."""
    (ended,) = submit(corral, tmp_path, 'argv = ["true"]\n')
    eventually(lambda: corral.state(ended) == "succeeded", "it to end")
    (waiting,) = submit(corral, tmp_path, 'argv = ["true"]\nresources.hosts = ["nobody"]\n')
    before = [run["id"] for run in corral.json("ls")]

    assert "1 run would be queued again" in corral.ok("requeue", ended, "--dry-run")
    assert f"{ended} would be queued again with priority=3" in corral.ok(
        "requeue", ended, "--dry-run", "--set", "priority=3"
    )
    assert "1 run would be cancelled" in corral.ok("cancel", waiting, "--dry-run")
    assert "1 run would be removed" in corral.ok("rm", ended, "--dry-run")
    refused = corral("rm", waiting, "--dry-run")
    assert "left alone: 1 run" in refused.stderr

    assert [run["id"] for run in corral.json("ls")] == before
    assert corral.state(waiting) == "queued"
    corral.ok("cancel", waiting)


def test_of_several_named_runs_each_is_answered_for_itself(corral: Installation, tmp_path: Path) -> None:
    """HOUR5-14: one that had ended hid that another was cancelled, and kept a third from it."""
    waits = 'argv = ["true"]\nseeds = [1, 2]\nresources.hosts = ["nobody"]\n'
    first, second = submit(corral, tmp_path, waits)
    (ended,) = submit(corral, tmp_path, 'argv = ["true"]\n')
    eventually(lambda: corral.state(ended) == "succeeded", "it to end")

    held = corral("hold", first, ended, second)
    assert held.returncode == 1
    assert held.stdout.splitlines() == [
        f"{first} is held: held by operator",
        f"{second} is held: held by operator",
    ]
    cancelled = corral("cancel", first, ended, second)
    assert cancelled.returncode == 1
    assert cancelled.stdout.splitlines() == [f"{first} is cancelled", f"{second} is cancelled"]
    assert f"error: run {ended} is succeeded already" in cancelled.stderr
    assert "Nothing was changed" not in cancelled.stderr


def test_a_gang_says_which_rank_failed_and_where_its_words_are(corral: Installation) -> None:
    """HOUR5-05, HOUR5-06, HOUR5-15: the hint led to rank 0, which had printed nothing, and rank 0 was said
    to have been given back by its worker."""
    code = "import os, time; assert os.environ['RANK'] == '0', 'boom'; time.sleep(600)"
    failed = corral("run", "--replicas", "2", "--", sys.executable, "-c", code)
    assert failed.returncode == 1
    run = corral.show()["id"]
    assert f"hint: Read its last lines: `corral logs {run} --all --tail 50`." in failed.stderr
    assert "AssertionError: boom" in corral("logs", run, "--all", "--tail", "50").stderr
    assert f"rank 0 of {run} has printed nothing; it is failed; `corral logs" in corral("logs", run).stderr
    assert "released (stopped, since another rank failed)" in corral.ok("show", run)


def test_a_command_that_met_its_wall_limit_hears_nothing_of_training(
    corral: Installation, tmp_path: Path
) -> None:
    """HOUR5-18."""
    (run,) = submit(corral, tmp_path, 'argv = ["sleep", "600"]\nwall_limit = "1s"\n')
    eventually(lambda: corral.state(run) == "failed", "its time to be over")
    assert corral.show(run)["hint"] == "Raise `wall_limit` in the run file and submit it again."


def test_a_script_finds_the_server_as_the_commands_do(corral: Installation) -> None:
    """HOUR4-20: only with an address and a token of its own."""
    corral.ok("run", "--name", "seen", "--", "true")
    script = "import corral\nwith corral.connect() as client: print(client.runs.get('latest').name)"
    done = subprocess.run(
        [sys.executable, "-c", script], env=corral.env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "seen\n"


def test_neither_run_nor_filter_is_an_error_and_so_are_both(corral: Installation) -> None:
    for arguments in (["cancel"], ["requeue"], ["hold"], ["release"], ["rm"]):
        done = corral(*arguments)
        assert done.returncode == 1
        assert "no run is named" in done.stderr
    both = corral("cancel", "r-bcdfghjkmnpq", "--group", "g")
    assert both.returncode == 1
    assert "either" in both.stderr


def test_a_failed_sweep_says_why_and_its_failures_are_queued_again(
    corral: Installation, tmp_path: Path
) -> None:
    (tmp_path / "run.toml").write_text(
        'name = "shaky"\nargv = ["sh", "-c", "test {seed} != 2 || { echo no luck >&2; exit 7; }"]\n'
        "seeds = [1, 2]\nmax_running = 1\n"
    )
    done = corral("submit", str(tmp_path / "run.toml"), "--follow")

    assert done.returncode == 1
    assert "1 failed: code_error" in done.stderr
    shown = corral.ok("groups", "show", "shaky")
    assert "1 failed, 1 succeeded" in shown
    assert "code_error" in shown
    assert "shaky" in corral.ok("groups", "ls")
    again = corral.ok("requeue", "--group", "shaky", "--failed", "--yes").split()[-1]
    eventually(lambda: corral.state(again) == "failed", "the new run to fail too")
    assert json.loads(corral.ok("show", again, "--json"))["generation"] == 2


def test_a_run_is_made_again_with_a_change(corral: Installation, tmp_path: Path) -> None:
    """FL-C28."""
    (old,) = submit(corral, tmp_path, 'argv = ["echo", "rate", "{params.rate}"]\nparams.rate = 0.1\n')
    eventually(lambda: corral.state(old) == "succeeded", "the run to end")

    done = corral("requeue", old, "--set", "params.rate=0.5", "--priority", "3", "--follow")

    assert (done.returncode, done.stdout) == (0, "rate 0.5\n")
    shown = json.loads(corral.ok("show", "latest", "--json"))
    assert (shown["generation"], shown["priority"], shown["id"] == old) == (1, 3, False)
    same = corral.ok("requeue", old, "--set", "params.rate=0.1").strip()
    assert json.loads(corral.ok("show", same, "--json"))["generation"] == 2
    wrong = corral("requeue", old, "--set", "params=7")
    assert wrong.returncode == 1
    assert "params" in wrong.stderr


SCRIPT = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.parse_args()
"""


def test_changed_params_are_checked_as_the_first_were(corral: Installation, tmp_path: Path) -> None:
    """HOUR3-03: `requeue --set` took any name and any value, whatever `params_from` says."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (old,) = submit(
        corral,
        tmp_path,
        'argv = ["python3", "train.py", "--lr", "{params.lr}"]\ncode = "."\nparams_from = "train.py"\n'
        'params.lr = 0.1\nresources.hosts = ["nobody"]\n',
    )
    corral.ok("cancel", old)

    for change, said in (
        ("params.lrr=0.2", "`params.lrr` is not an argument of train.py; did you mean `lr`?"),
        ("params.lr=fast", "`params.lr` is 'fast'; --lr takes a number"),
    ):
        for more in ((), ("--dry-run",)):
            done = corral("requeue", old, "--set", change, *more)
            assert (done.returncode, said in done.stderr) == (1, True), done.stderr
    good = corral("requeue", old, "--set", "params.lr=1.0")
    assert corral.json("show", good.stdout.strip())["spec"]["params"] == {"lr": 1}
    assert corral.ok("requeue", old, "--set", "params.lr=0.3", "--dry-run")


def test_a_group_is_made_again_with_a_change(corral: Installation, tmp_path: Path) -> None:
    """HOUR3-13, HOUR3-03: a new name is told once where nothing says which there are."""
    given = 'name = "pair"\nargv = ["true"]\nseeds = [1, 2]\nparams.rate = 1\n'
    olds = submit(corral, tmp_path, given + 'resources.hosts = ["nobody"]\n')
    corral.ok("cancel", "--group", "pair", "--yes")

    done = corral("requeue", "--group", "pair", "--set", "params.rat=2", "--yes")

    assert done.returncode == 0, done.stderr
    said = "note: params.rat is new: the run has no param of that name; did you mean `rate`?"
    assert done.stderr.count(said) == 1
    news = [corral.json("show", one) for one in done.stdout.split() if one.startswith("r-")]
    assert {one["seed"] for one in news} == {1, 2}
    assert all(one["spec"]["params"] == {"rate": 1, "rat": 2} for one in news)
    assert {one["group"] for one in news} == {"pair"}
    assert not {one["id"] for one in news} & set(olds)
    corral.ok("cancel", "--group", "pair", "--yes")


def test_a_run_that_no_host_can_take_is_told_of_at_once(corral: Installation, tmp_path: Path) -> None:
    """HOUR3-07: nothing said so until somebody asked why."""
    (tmp_path / "run.toml").write_text('argv = ["true"]\nresources.hosts = ["nobody"]\n')
    first = corral("submit", str(tmp_path / "run.toml"))
    run = first.stdout.strip()
    shown = corral.ok("show", run)
    corral.ok("cancel", run)
    again = corral("requeue", run)
    detached = corral("run", "-d", "--no-code", "--set", 'resources.hosts=["nobody"]', "--", "true")

    for done in (first, again, detached):
        assert done.returncode == 0, done.stderr
        id_ = done.stdout.strip()
        assert f"note: no host of 1 can take it; see `corral why {id_}`" in done.stderr
    assert "no host of 1 can take it: " in shown.split("waits", 1)[1].splitlines()[0]
    corral.ok("cancel", again.stdout.strip(), detached.stdout.strip())


def test_the_logs_of_an_endpoint_that_is_not_there_are_refused(corral: Installation) -> None:
    """HOUR3-16: it had `no instance yet`, and `-f` waited for ever."""
    done = corral("fn", "logs", "nope")

    assert done.returncode == 1
    assert "no endpoint" in done.stderr


def test_a_run_is_held_released_and_removed(corral: Installation, tmp_path: Path) -> None:
    (run,) = submit(corral, tmp_path, 'argv = ["true"]\nresources.hosts = ["nobody"]\n')

    assert "held by operator" in corral.ok("hold", run)
    assert "held by operator" in corral.ok("ls")
    assert f"{run} is queued" in corral.ok("release", run)
    refused = corral("rm", run, "--yes")
    assert "has ended" in refused.stderr
    corral.ok("cancel", run)
    assert corral("rm", run).returncode == 1
    assert f"{run} is removed" in corral.ok("rm", run, "--yes")
    assert corral("show", run).returncode == 1


def test_schedules_from_the_command_line(corral: Installation, tmp_path: Path) -> None:
    file = tmp_path / "nightly.toml"
    file.write_text('name = "nightly"\nargv = ["echo", "good night"]\n[schedule]\ncron = "0 3 * * *"\n')

    refused = corral("submit", str(file))
    assert refused.returncode == 1
    assert "schedules add" in refused.stderr
    assert "next at" in corral.ok("schedules", "add", str(file))
    assert "already" in corral("schedules", "add", str(file)).stderr
    corral.ok("schedules", "add", str(file), "--replace", "--set", 'schedule.timezone="Europe/Berlin"')
    assert "Europe/Berlin" in corral.ok("schedules", "ls")
    run = corral.ok("schedules", "run-now", "nightly").strip()
    eventually(lambda: corral.state(run) == "succeeded", "the run to end")
    assert corral.ok("ls", "--schedule", "nightly", "--json").count(run) == 1
    corral.ok("schedules", "pause", "nightly")
    assert "paused" in corral.ok("schedules", "show", "nightly")
    corral.ok("schedules", "resume", "nightly")
    assert "it made 1 run" in corral.ok("schedules", "rm", "nightly")
    for wrong, word in ((' "0 0 31 2 *"', "day-of-month"), (' "61 * * * *"', "minute")):
        file.write_text(f'argv = ["true"]\n[schedule]\ncron ={wrong}\n')
        assert word in corral("schedules", "add", str(file)).stderr
    file.write_text('argv = ["true"]\n[schedule]\nevery = "5s"\n')
    assert "10 s" in corral("schedules", "add", str(file)).stderr


def test_a_cancelled_run_ends_its_follower_with_143_and_can_be_requeued(corral: Installation) -> None:
    follower = corral.popen(
        "run", "--name", "slow", "--", sys.executable, "-c", "import time; time.sleep(300)"
    )
    eventually(lambda: '"running"' in corral("ls", "--name", "slow", "--json").stdout, "the run to start")
    run = json.loads(corral.ok("ls", "--name", "slow", "--json"))[0]["id"]

    assert run in corral.ok("cancel", run)

    follower.communicate(timeout=60)
    assert follower.returncode == 143
    again = corral.ok("requeue", run).strip()
    assert again != run
    corral.ok("cancel", again)


def test_ctrl_c_detaches_and_says_how_to_come_back(corral: Installation) -> None:
    """MT-C17, MT-C12: 130, and the run goes on."""
    follower = corral.popen(
        "run", "--name", "left", "--", sys.executable, "-c", "import time; time.sleep(300)"
    )
    eventually(lambda: '"running"' in corral("ls", "--name", "left", "--json").stdout, "the run to start")
    run = json.loads(corral.ok("ls", "--name", "left", "--json"))[0]["id"]

    follower.send_signal(signal.SIGINT)
    _, said = follower.communicate(timeout=30)

    assert follower.returncode == 130
    assert f"corral logs -f {run}" in said
    assert corral.state(run) == "running"
    corral.ok("cancel", run)


@pytest.mark.parametrize("run", ["r-zzzzzzzzzzzz", "../tokens", "a\nb", "r-?x=1"])
def test_a_run_that_does_not_exist_is_a_clear_error(run: str, corral: Installation) -> None:
    done = corral("show", run)

    assert done.returncode == 1
    assert done.stderr.startswith("error:")
    assert "Traceback" not in done.stderr

"""Runs that were submitted together."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest
from support.installation import Installation


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    (tmp_path / "data.txt").write_text("from the input")
    path = tmp_path / "run.toml"
    path.write_text(
        f"""
        name = "sweep"
        argv = [{sys.executable!r}, "-c", "print('lr', '{{params.lr}}', 'seed', '{{seed}}')"]
        seeds = [0, 1]
        [inputs]
        data = "data.txt"
        [sweep]
        lr = [0.1, 0.2]
        """
    )
    return path


def test_a_group_prints_all_ids_and_is_followed_to_its_end(corral: Installation, sweep: Path) -> None:
    done = corral("submit", str(sweep), "--follow", "--json")

    assert done.returncode == 0, done.stderr
    ids = json.loads(done.stdout)["ids"]
    assert len(ids) == 4
    assert {corral.state(run) for run in ids} == {"succeeded"}
    assert corral.ok("logs", ids[3]) == "lr 0.2 seed 1\n"
    group = json.loads(done.stdout)["group_id"]
    listed = corral.ok("ls", "--group", group).splitlines()
    assert [line.split()[0] for line in listed[1:]] == ids
    assert "lr=0.2" in listed[-1]


def test_a_group_is_followed_line_by_line_each_with_its_run(corral: Installation, tmp_path: Path) -> None:
    """NEW-35: while they go on, with what they wrote before; the code says whether all have succeeded."""
    code = (
        "import sys, time; n = int('{seed}'); print('begins', n, flush=True)\n"
        "print('half', end='', flush=True); time.sleep(0.2); print(' a line', n); sys.exit(n == 2)"
    )
    file = tmp_path / "talk.toml"
    file.write_text(f'name = "talk"\nargv = [{sys.executable!r}, "-c", {code!r}]\nseeds = [1, 2]\n')
    answer = json.loads(corral.ok("submit", str(file), "--json"))
    first, second = answer["ids"]

    done = corral("logs", "--follow", "--group", answer["group_id"])
    later = corral("logs", "--group", "talk")

    lines = {
        f"{run}  {text} {n}" for run, n in ((first, 1), (second, 2)) for text in ("begins", "half a line")
    }
    assert set(done.stdout.splitlines()) == set(later.stdout.splitlines()) == lines
    assert done.returncode == 1
    assert f"(for example {second})" in done.stderr


@pytest.fixture(scope="module")
def measured(corral: Installation, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A sweep over a rate whose loss is known: twice the rate, and a little for the seed."""
    code = (
        "import json, os\n"
        "with open(os.environ['CORRAL_EVENTS'], 'a') as file:\n"
        "    for step in range(1, 6):\n"
        "        found = {'loss': 2 * {params.rate} + {seed} / 10 + 1 / step, 'lr': {params.rate}}\n"
        "        print(json.dumps({'metrics': found, 'step': step}), file=file)\n"
    )
    file = tmp_path_factory.mktemp("sweep") / "measured.toml"
    file.write_text(
        f'name = "measured"\nargv = [{sys.executable!r}, "-S", "-c", {code!r}]\nseeds = [0, 1]\n'
        "[sweep]\nrate = [0.5, 0.25]\n"
    )
    done = corral("submit", str(file), "--follow", "--json")
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["group_id"])


def test_a_group_says_which_params_won(corral: Installation, measured: str) -> None:
    """NEW-05: params by seeds, with mean and spread over them; the best is marked."""
    shown = [line.split() for line in corral.ok("groups", "show", measured).splitlines()]

    assert ["rate", "SEED", "0", "SEED", "1", "MEAN", "SPREAD"] in shown
    assert ["0.25", "0.7", "0.8", "0.75", "0.07071", "best"] in shown
    assert ["0.5", "1.2", "1.3", "1.25", "0.07071"] in shown


def test_a_group_is_sorted_by_a_metric(corral: Installation, measured: str) -> None:
    """NEW-05: the best first, and nobody says which learning rate is good unless the user does."""

    def rates(*options: str) -> list[str]:
        rows = [line.split() for line in corral.ok("groups", "show", measured, *options).splitlines()]
        begins = next(index for index, row in enumerate(rows) if row[:1] == ["rate"])
        return [row[0] for row in rows[begins + 1 : begins + 3]]

    assert rates("--sort", "loss") == ["0.25", "0.5"]
    assert rates("--sort", "loss", "--best", "max") == ["0.5", "0.25"]
    assert rates("--sort", "lr") == ["0.5", "0.25"]
    assert "did you mean `loss`" in corral("groups", "show", measured, "--sort", "los").stderr


def test_results_are_for_programs_too(corral: Installation, measured: str) -> None:
    """NEW-05: as CSV and as JSON, with exact numbers; a list of runs has their params."""
    table = list(csv.DictReader(corral.ok("groups", "show", measured, "--csv").splitlines()))
    results = corral.json("groups", "show", measured)["results"]

    assert [row["rate"] for row in table] == ["0.25", "0.5"]
    assert [row["best"] for row in table] == ["yes", ""]
    assert float(table[0]["mean"]) == results["variants"][0]["metrics"]["loss"]["mean"]
    assert float(table[0]["seed 1"]) == pytest.approx(0.8)
    assert sorted(run["params"]["rate"] for run in corral.json("ls", "--group", measured)) == [
        *(0.25, 0.25, 0.5, 0.5)
    ]


def test_the_curves_of_a_group_stand_over_one_another(corral: Installation, measured: str) -> None:
    """NEW-05."""
    shown = corral.ok("groups", "show", measured, "--plot").splitlines()

    curves = [line for line in shown if line.startswith("rate=")]
    assert [line.split()[0] for line in curves] == ["rate=0.25", "rate=0.5"]
    assert [line.split()[-1] for line in curves] == ["0.75", "1.25"]
    assert "█" in curves[1]


def test_a_name_that_several_groups_have_means_the_newest_and_says_so(corral: Installation) -> None:
    """NEW-07."""
    ids = []
    for _ in range(2):
        asked = ("--detach", "--name", "twice", "--set", "seeds=[1, 2]")
        ids.append(corral.ok("run", *asked, "--", "true").split())

    listed = corral("ls", "--group", "twice", "--quiet")

    assert set(listed.stdout.split()) == set(ids[1])
    assert "2 groups are called twice; this is the newest, g-" in listed.stderr
    assert "there is no group 'thrice'" in corral("cancel", "--group", "thrice", "--yes").stderr

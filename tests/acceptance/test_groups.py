"""Runs that were submitted together."""

from __future__ import annotations

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

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

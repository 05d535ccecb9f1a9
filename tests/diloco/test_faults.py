"""Faults at each point of a round: a replica dies, stalls, comes back, is there twice or comes late.
Afterwards all agree bit for bit, and every committed token is counted once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from corral.diloco import records
from corral.diloco.folder_store import FolderStore
from diloco.replica_for_tests import COUNT, REPLACED, ROUNDS, VICTIM

POINTS = ("before payload", "after payload", "after offer", "reducing", "applying")
FAULTS = ("kill", "stall", "restart", "duplicate", "join", "skew")
SEED = int(os.environ.get("CORRAL_DILOCO_SEED", "1"))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("point", POINTS)
def test_all_agree_and_no_token_is_lost_or_counted_twice(tmp_path: Path, point: str, fault: str) -> None:
    """DL-C25, DL-D09, DL-D33, DL-D38: deterministic faults, in processes that are really killed."""
    found = grid(tmp_path, point, fault)
    assert found["broke"]
    ends = {name: os.waitstatus_to_exitcode(code) for name, code in found["codes"].items()}
    victim = ends.pop(str(VICTIM))
    if fault in ("kill", "restart"):
        assert victim == -signal.SIGKILL
    elif fault == "duplicate":
        assert victim in (0, REPLACED)
    else:
        assert victim == 0
    assert set(ends.values()) == {0}
    agree(found["seen"])
    counted_once(tmp_path, found["seen"])


def grid(folder: Path, point: str, fault: str) -> dict[str, Any]:
    script = Path(__file__).with_name("replica_for_tests.py")
    command = [sys.executable, str(script), str(folder), str(folder / "store"), point, fault, str(SEED)]
    # Each replica computes little; more threads would only wait for each other.
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def agree(seen: list[dict[str, Any]]) -> None:
    digests: dict[int, set[str]] = defaultdict(set)
    for one in seen:
        digests[one["round"]].add(one["digest"])
    assert max(digests) >= ROUNDS
    assert {number: len(found) for number, found in digests.items() if len(found) > 1} == {}


def counted_once(folder: Path, seen: list[dict[str, Any]]) -> None:
    """What a replica was told is committed is in that commit with the same tokens, and nothing else of it."""
    store = FolderStore(folder / "store")
    for one in store.list("grid/f0/commits"):
        content = store.get(one.key)
        assert content is not None
        commit = records.read_commit(content[0], one.key)
        told = [said for said in seen if said["round"] == commit.round and said["fate"] == "committed"]
        assert len({said["replica"] for said in told}) == len(told)
        for said in told:
            assert commit.members[said["replica"]] == said["tokens"]
        silent = set(commit.members) - {said["replica"] for said in told}
        # Only one that was killed or replaced may have brought something without hearing that it counted.
        assert silent <= {str(VICTIM)}
        assert len(commit.members) <= COUNT + 1

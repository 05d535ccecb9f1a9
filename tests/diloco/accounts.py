"""What must hold after replicas were through something: the same bits everywhere, and every token counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from corral.diloco.records import Commit, read_commit
from corral.diloco.rounds import RoundRules, Rounds
from corral.diloco.store import RoundStore
from diloco.replica_for_tests import RUN, Params, Place, Plan, digest, model

TESTS = Path(__file__).resolve().parents[1]


def ran(program: str, place: Place, plan: Plan, **more: Any) -> Any:
    """What one of the programs beside this one prints."""
    told = {"folder": str(place.folder), "url": place.url, "endpoint": place.endpoint, "plan": asdict(plan)}
    # Each replica computes little; more threads would only wait for each other.
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-m", f"diloco.{program}", json.dumps({**told, **more})]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    # A replica that failed wrote why.
    assert "Traceback" not in done.stderr, done.stderr
    return json.loads(done.stdout)


def commits(store: RoundStore) -> dict[int, Commit]:
    found = {}
    for one in store.list(f"{RUN}/f0/commits"):
        content = store.get(one.key)
        assert content is not None
        commit = read_commit(content[0], one.key)
        found[commit.round] = commit
    return found


def last_weights(store: RoundStore) -> Params:
    """Those of the last commit, read by one who was not there."""
    params = model()
    size = sum(one.size for one in params.values())
    rounds = Rounds(store, f"{RUN}/f0", "reader", size, RoundRules())
    newest = rounds.newest()
    assert newest is not None
    vector, at = rounds.weights(newest), 0
    for name in sorted(params):
        params[name] = vector[at : at + params[name].size].reshape(params[name].shape)
        at += params[name].size
    return params


def check(place: Place, plan: Plan, *, silent: Collection[str]) -> list[dict[str, Any]]:
    """Only the silent may have brought something without hearing that it counted: they were killed, or
    replaced. Gives what all replicas said."""
    store, seen = place.open(), place.seen()
    digests: dict[int, set[str]] = defaultdict(set)
    for one in seen:
        digests[one["at"]].add(one["digest"])
    made = commits(store)
    assert sorted(made) == list(range(len(made)))
    assert max(digests) == max(made) == plan.rounds
    assert {number: len(found) for number, found in digests.items() if len(found) > 1} == {}
    assert digests[plan.rounds] == {digest(last_weights(store))}

    told = Counter((one["round"], one["replica"]) for one in seen if one["fate"] == "committed")
    assert {key: times for key, times in told.items() if times > 1} == {}
    for one in seen:
        if one["fate"] == "committed":
            assert made[one["round"]].members[one["replica"]] == one["tokens"]
    unheard = {(r, name) for r, commit in made.items() for name in commit.members} - set(told)
    assert {name for _, name in unheard} <= set(silent)
    # Of each life that ended early one round at most was not heard of.
    assert len(unheard) <= len(silent)
    heard = sum(one["tokens"] for one in seen if one["fate"] == "committed")
    silently = sum(made[r].members[name] for r, name in unheard)
    assert heard + silently == sum(commit.tokens for commit in made.values())
    assert np.isfinite(last_weights(store)["w"]).all()
    return seen

"""A run file with `replicas`, `[train]` and `[diloco]`: several ranks train one model and meet in a store."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support import slurm_cluster
from support.installation import Installation, installed
from support.local_cluster import marked
from support.ray_cluster import ENVIRON, HOST, shared_ray, stop_shared_ray
from support.seaweed import CREDENTIALS, seaweed
from support.waiting import eventually

from corral.client.corral import Corral
from corral.domain.placements.placements import ExecutorKind
from corral.wire.executors import ExecutorRequest

pytest.importorskip("torch", reason="the training engine is not installed: pip install 'corral[train]'")
pytest.importorskip("peft", reason="the training engine is not installed: pip install 'corral[train]'")

# One thread: two fight for the cores that the tests share, and are far slower.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CORRAL_WORKER_SLOTS": "3"}
RUN = """
name = "together"
model = "corral/tiny"
replicas = {replicas}
{top}

[train]
recipe = "sft"
data = "sums.jsonl"
steps = {steps}
batch_size = 8
learning_rate = 3e-3
max_length = 64

[diloco]
inner_steps = 2
compress = "int8"
store = "{store}"

[retries]
code = 3
{more}
"""


@pytest.fixture(scope="module")
def corral(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installed(
        tmp_path_factory.mktemp("home"), folder=tmp_path_factory.mktemp("work"), **ENVIRONMENT
    ) as made:
        rows = ({"prompt": f"{a}+{b}=", "completion": str(a + b)} for a in range(8) for b in range(8))
        made.write("sums.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        yield made


def submitted(corral: Installation, name: str, **given: Any) -> str:
    about = {"replicas": 2, "top": "", "steps": 6, "more": "", **given}
    corral.write(name, RUN.format(**about))
    return corral.ok("submit", name).split()[-1]


def final(corral: Installation, run: str) -> dict[str, Any]:
    eventually(
        lambda: corral.state(run) in ("succeeded", "failed", "cancelled"), f"run {run} to end", within_s=400
    )
    return corral.show(run)


def adapters(corral: Installation, run: dict[str, Any], folder: Path) -> dict[int, bytes]:
    """The weights that each rank has left."""
    found = {}
    for one in corral.json("artifacts", "ls", "--run", run["id"]):
        if one["kind"] == "output":
            place = folder / one["id"]
            corral.ok("artifacts", "get", one["id"], str(place))
            found[one["rank"]] = (place / "adapter" / "adapter_model.safetensors").read_bytes()
    return found


def rounds(run: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {rank["rank"]: rank["rounds"] for rank in run["attempts"][-1]["ranks"] if rank["rounds"]}


def check_together(
    corral: Installation, run: dict[str, Any], folder: Path, *, of: int, ranks: int = 2
) -> None:
    assert run["state"] == "succeeded", (run["reason"], run["detail"])
    found = adapters(corral, run, folder)
    assert sorted(found) == list(range(ranks))
    assert len(set(found.values())) == 1
    told = rounds(run)
    assert {(one["done"], one["of"]) for one in told.values()} == {(of, of)}
    assert all(one["committed"] > 0 and one["up"] > 0 and one["down"] > 0 for one in told.values())


def test_ranks_train_one_model_though_one_is_killed(corral: Installation, tmp_path: Path) -> None:
    """DL-D41: over a folder. The killed rank is started again alone, where the rounds are;
    the weights that all leave are equal to the last bit."""
    meet = tmp_path / "meet"
    run = submitted(corral, "folder.toml", replicas="{ min = 2, max = 3 }", steps=40, store=meet)

    def met() -> int | None:
        """A rank that has had a round; with a quorum of two it is not always rank 0 alone."""
        tallies = (meet / run / "tallies").glob("*.json")
        return next((int(one.stem) for one in tallies if one.stem != "0"), None)

    victim = eventually(met, lambda: corral.ok("logs", run, "--all"), within_s=300)
    pids = marked(corral.home / "worker", CORRAL_RUN_ID=run, CORRAL_RANK=str(victim))
    os.kill(max(pids), signal.SIGKILL)
    ended = final(corral, run)
    check_together(corral, ended, tmp_path, of=20, ranks=3)
    (attempt,) = ended["attempts"]
    assert [rank["restarts"] for rank in attempt["ranks"]] == [int(rank == victim) for rank in range(3)]

    shown = corral.ok("show", run)
    assert "rounds       20 of 20" in shown
    assert "diloco       inner_steps=2" in shown
    rows = [line.split()[:3] for line in shown.splitlines()[-4:]]
    told = [[str(rank), str(one["taken"]), str(one["late"])] for rank, one in rounds(ended).items()]
    assert rows == [["RANK", "ROUNDS", "LATE"], *told]


def test_the_same_over_a_bucket_with_the_runs_own_secrets(corral: Installation, tmp_path: Path) -> None:
    """On a real S3 server; the worker itself has no credentials."""
    server = seaweed()
    for name, value in CREDENTIALS.items():
        corral.ok("secrets", "set", name, given=value)
    secrets = ", ".join(f'"{name}"' for name in CREDENTIALS)
    env = f'[env]\nAWS_ENDPOINT_URL = "{server.endpoint}"\nAWS_REGION = "us-east-1"'
    run = submitted(corral, "bucket.toml", store=server.fresh_url(), top=f"secrets = [{secrets}]", more=env)
    ended = final(corral, run)
    check_together(corral, ended, tmp_path, of=3)
    assert all(value not in json.dumps(ended) for name, value in CREDENTIALS.items() if "SECRET" in name)


@contextmanager
def on_slurm(folder: Path) -> Iterator[tuple[ExecutorKind, dict[str, Any]]]:
    slurm = slurm_cluster.slurm_cluster()
    known = slurm.environment()
    prefix = ["env", *(f"{name}={known[name]}" for name in ("SLURM_CONF", "PATH"))]
    yield ExecutorKind.SLURM, {"folder": str(folder / "shared"), "command_prefix": prefix}
    slurm.cancel_all()


@contextmanager
def on_ray(folder: Path) -> Iterator[tuple[ExecutorKind, dict[str, Any]]]:
    if find_spec("ray") is None:
        pytest.skip("Ray is missing: pip install -e '.[test]'")
    ray = shared_ray()
    try:
        yield ExecutorKind.RAY, {"address": ray.address, "node_ip": HOST, "environ": dict(ENVIRON)}
    finally:
        stop_shared_ray()


@pytest.mark.parametrize("place", [on_slurm, on_ray], ids=["slurm", "ray"])
def test_the_same_run_file_on_a_cluster(corral: Installation, tmp_path: Path, place: Any) -> None:
    """DL-D41: workers that a cluster brought up meet in a folder that it shares."""
    worker = ["env", "OMP_NUM_THREADS=1", "HF_HUB_OFFLINE=1", sys.executable, "-m", "corral.worker.placed"]
    with place(tmp_path) as (kind, options), client(corral) as made:
        about = {**options, "url": url(corral), "command": worker}
        made.executors.add(ExecutorRequest(name=f"my-{kind}", kind=kind, options=about))
        run = submitted(
            corral,
            f"{kind}.toml",
            steps=4,
            store=tmp_path / "meet",
            more=f'[placement]\nexecutors = ["my-{kind}"]\n\n[resources]\nmin_ram = "1500MiB"',
        )
        check_together(corral, final(corral, run), tmp_path, of=2)


def url(corral: Installation) -> str:
    return str(json.loads((corral.home / "server.json").read_text())["url"])


@contextmanager
def client(corral: Installation) -> Iterator[Corral]:
    with Corral(url(corral), (corral.home / "operator.token").read_text().strip()) as made:
        yield made

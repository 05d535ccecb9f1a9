"""Runs of several ranks on real workers: on one host and over several, through kills and cancels."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator

import pytest
from support.local_cluster import LocalCluster, local_cluster, marked, problems, python, result, wait_final
from support.waiting import eventually

from corral.client.corral import Corral
from corral.domain.errors import InvalidInput
from corral.wire.runs import RunDetail
from corral.wire.spec.run_file import RunSpec
from corral.wire.spec.tables import Replicas, RetryBudgets

# Rank 0 writes a checkpoint at each step; all go on from the last one. The first attempt hangs at the third.
STEPS = """
rank = int(env['RANK'])
first = 0
if 'CORRAL_RESUME_DIR' in env:
    first = int(pathlib.Path(env['CORRAL_RESUME_DIR'], 'step').read_text())
for step in range(first + 1, 6):
    if step == 3 and env['CORRAL_ATTEMPT'] == '1':
        time.sleep(600)
    if rank == 0:
        folder = pathlib.Path(env['CORRAL_CHECKPOINT_DIR'], str(step))
        folder.mkdir()
        (folder / 'step').write_text(str(step))
        say(checkpoint=str(folder), step=step)
    print('step', step, flush=True)
names = ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT')
(O / 'who').write_text(' '.join(env[name] for name in names) + f' {first}')
"""
FOREVER = "print('here', flush=True); time.sleep(600)"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two hosts with four slots each."""
    home = tmp_path_factory.mktemp("ranks")
    with local_cluster(home / "server", lease_s=3.0) as made:
        made.own_worker(slots=4)
        made.other_worker(home / "other", "other", slots=4)
        hosts = made.client().hosts
        eventually(lambda: len([h for h in hosts.all() if h.capability]) == 2, "both hosts to be here")
        yield made
        assert problems(made.client()) == []


@pytest.fixture
def corral(cluster: LocalCluster) -> Corral:
    return cluster.client()


def gang(code: str, ranks: int, **given: object) -> RunSpec:
    retries = RetryBudgets(infrastructure=3, code=3)
    spec = {"replicas": Replicas(min=ranks, max=ranks), "retries": retries, "grace": 2.0, **given}
    return python(code, **spec)


def submitted(corral: Corral, spec: RunSpec) -> str:
    (run_id,) = corral.runs.submit([spec]).ids
    return run_id


def where(run: RunDetail) -> Counter[str | None]:
    return Counter(rank.host for rank in run.attempts[-1].ranks)


def wait_lines(corral: Corral, run_id: str, text: str, ranks: int) -> None:
    """Until every rank has printed it."""

    def seen() -> bool:
        return all(
            any(line.text == text for line in corral.runs.iter_logs(run_id, rank=rank))
            for rank in range(ranks)
        )

    eventually(seen, f"all ranks of {run_id} to print {text!r}")


def kill_rank(cluster: LocalCluster, run_id: str, rank: int) -> None:
    """SIGKILL to the rank's own process, wherever it runs."""
    wanted = {"CORRAL_RUN_ID": run_id, "CORRAL_RANK": str(rank)}
    pids = [pid for worker in cluster.workers for pid in marked(worker.data_dir, **wanted)]
    os.kill(max(pids), signal.SIGKILL)


@pytest.mark.parametrize(("ranks", "hosts"), [(4, [4]), (6, [4, 2])])
def test_a_killed_rank_ends_the_gang_which_goes_on_from_its_checkpoint(
    cluster: LocalCluster, corral: Corral, ranks: int, hosts: list[int]
) -> None:
    run_id = submitted(corral, gang(STEPS, ranks))
    wait_lines(corral, run_id, "step 2", ranks)
    kept = corral.runs.checkpoints
    eventually(lambda: any(one.step == 2 for one in kept(run_id).items), "the second checkpoint to be kept")
    kill_rank(cluster, run_id, ranks - 1)
    run = wait_final(corral, run_id)
    assert run.state == "succeeded", (run.reason, run.detail)
    assert sorted(where(run).values(), reverse=True) == hosts
    assert [rank.restarts for rank in run.attempts[-1].ranks] == [1] * ranks
    said = result(corral, run)["who"].decode().split()
    # Rank 0's output is the result; it went on from a checkpoint.
    assert said[:2] == ["0", str(ranks)]
    assert said[-1] == "2"
    assert len(run.attempts) == 2
    first = run.attempts[0].ranks
    assert [rank.state for rank in first] == ["ended"] * ranks
    assert [rank.rank for rank in first if rank.reason != "released"] == [ranks - 1]


def test_every_rank_is_told_who_and_where_it_is(corral: Corral) -> None:
    run = wait_final(corral, submitted(corral, gang(STEPS.replace("range(first + 1, 6)", "()"), 6)))
    assert run.state == "succeeded", (run.reason, run.detail)
    outputs = [a for a in corral.runs.artifacts(run.id).items if a.kind == "output"]
    assert sorted(a.rank or 0 for a in outputs) == list(range(6))
    assert [a.id for a in outputs if a.rank == 0] == [run.artifact_id]
    source = corral.source(run.project)
    files = [corral.artifacts.tree(artifact.id).files[0] for artifact in outputs]
    said = [b"".join(source.read(file.digest)).decode().split() for file in files]
    assert sorted(int(words[0]) for words in said) == list(range(6))
    assert {words[1] for words in said} == {"6"}
    local = Counter((words[2], words[3]) for words in said)
    assert local == Counter([("0", "4"), ("1", "4"), ("2", "4"), ("3", "4"), ("0", "2"), ("1", "2")])
    assert len({(words[4], words[5]) for words in said}) == 1


def test_one_cancel_ends_all(cluster: LocalCluster, corral: Corral) -> None:
    run_id = submitted(corral, gang(FOREVER, 6))
    wait_lines(corral, run_id, "here", 6)
    corral.runs.cancel(run_id)
    run = wait_final(corral, run_id)
    assert run.state == "cancelled"
    assert [rank.state for rank in run.attempts[-1].ranks] == ["ended"] * 6

    def gone() -> bool:
        return not any(marked(worker.data_dir, CORRAL_RUN_ID=run_id) for worker in cluster.workers)

    eventually(gone, "all its processes to be gone")


def test_a_gang_that_does_not_fit_holds_nothing_and_starts_when_it_does(corral: Corral) -> None:
    """Two gangs that each need more than half of all slots: one after the other, and neither waits half."""
    both = [submitted(corral, gang("time.sleep(0.5)", 6, name=f"gang-{n}")) for n in range(2)]
    waiting = eventually(
        lambda: next((r for one in both if (r := corral.runs.get(one)).state == "queued"), None),
        "one of them to wait",
    )
    assert waiting.attempts == []
    assert [wait_final(corral, one).state for one in both] == ["succeeded"] * 2


def test_more_ranks_than_all_hosts_hold_are_refused_with_what_each_holds(corral: Corral) -> None:
    with pytest.raises(InvalidInput, match="asks for 9 ranks at once; all hosts together hold 8") as refused:
        corral.runs.submit([gang("pass", 9)])
    assert "other holds 4" in refused.value.message
    assert [field.path for field in refused.value.fields] == ["replicas"]


def test_an_elastic_run_loses_only_the_rank(cluster: LocalCluster, corral: Corral) -> None:
    run_id = submitted(corral, gang(FOREVER, 3).model_copy(update={"replicas": Replicas(min=2, max=3)}))
    wait_lines(corral, run_id, "here", 3)
    kill_rank(cluster, run_id, 1)

    def restarted() -> RunDetail | None:
        run = corral.runs.get(run_id)
        ranks = [(rank.state, rank.restarts) for rank in run.attempts[-1].ranks]
        return run if ranks == [("running", 0), ("running", 1), ("running", 0)] else None

    run = eventually(restarted, "the killed rank to run again")
    assert (run.state, len(run.attempts)) == ("running", 1)
    corral.runs.cancel(run_id)
    assert wait_final(corral, run_id).state == "cancelled"


TRAIN = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.linspace(0, 1, 8).reshape(-1, 1)[dist.get_rank() :: dist.get_world_size()]
losses = []
for _ in range(50):
    loss = ((model(x) - (2 * x + 1)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(float(loss))
print("falls" if losses[-1] < losses[0] / 5 else losses, dist.get_rank(), dist.get_world_size())
with open(os.path.join(os.environ["CORRAL_OUTPUT_DIR"], "weight"), "w") as out:
    out.write(f"{float(model.module.weight):.6f} {float(model.module.bias):.6f}")
dist.destroy_process_group()
"""


def all_but_one_slot_of_each_host(corral: Corral) -> list[str]:
    """Runs that fill both hosts but for one slot each."""
    runs = [submitted(corral, python(FOREVER, grace=0.5)) for _ in range(8)]
    for run_id in runs:
        wait_lines(corral, run_id, "here", 1)
    gone = list({corral.runs.get(run_id).host: run_id for run_id in runs}.values())
    for run_id in gone:
        corral.runs.cancel(run_id)
        wait_final(corral, run_id)
    return [run_id for run_id in runs if run_id not in gone]


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_plain_script_of_torch_distributed_trains(
    corral: Corral, request: pytest.FixtureRequest, hosts: int
) -> None:
    """Unchanged, on one host and over two: both ranks end with the same weights."""
    pytest.importorskip("torch")
    fillers = [] if hosts == 1 else all_but_one_slot_of_each_host(corral)
    request.addfinalizer(lambda: [corral.runs.cancel(one) for one in fillers])
    spec = gang("pass", 2).model_copy(update={"argv": [sys.executable, "-c", TRAIN]})
    run = wait_final(corral, submitted(corral, spec), within_s=120)
    assert run.state == "succeeded", (run.reason, run.detail)
    assert len(where(run)) == hosts
    said = [line.text for rank in range(2) for line in corral.runs.iter_logs(run.id, rank=rank)]
    assert [text for text in said if text.startswith("falls")] == ["falls 0 2", "falls 1 2"]
    outputs = [a for a in corral.runs.artifacts(run.id).items if a.kind == "output"]
    assert len({a.digest for a in outputs}) == 1

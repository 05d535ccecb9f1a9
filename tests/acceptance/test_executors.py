"""Gangs whose workers a cluster brings up: through a killed rank, a killed server and a cancel."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
from support import slurm_cluster
from support.kubernetes_server import KubernetesCluster, NodeShape
from support.local_cluster import LocalCluster, local_cluster, python, result, wait_final
from support.ray_cluster import ENVIRON, HOST, shared_ray, stop_shared_ray
from support.waiting import eventually

from corral.adapters.executors.kubernetes.pod_template import TOKENS_PATH
from corral.client.corral import Corral
from corral.client.manifests.apply import Declaration, ManifestSpec
from corral.domain.errors import Conflict, InvalidInput
from corral.domain.placements.placements import ExecutorKind
from corral.wire.executors import ExecutorRequest
from corral.wire.runs import RunDetail
from corral.wire.spec.run_file import RunSpec
from corral.wire.spec.tables import PlacementTable, Replicas, Resources, RetryBudgets

# A worker of rank 2 or more comes late while there is a file: its nodes become free after the others'.
LATE_WORKER = (
    "rank=${CORRAL_PLACED_RANK:-${SLURM_PROCID:-$JOB_COMPLETION_INDEX}}; "
    'while [ -e "$0" ] && [ "$rank" -ge 2 ]; do sleep 0.1; done; '
    f"exec {sys.executable} -m corral.worker.placed"
)
# Rank 0 writes a checkpoint; the first attempt hangs after it, and the second says where it went on.
STEPS = """
rank, first = int(env['RANK']), 0
if 'CORRAL_RESUME_DIR' in env:
    first = int(pathlib.Path(env['CORRAL_RESUME_DIR'], 'step').read_text())
elif rank == 0:
    folder = pathlib.Path(env['CORRAL_CHECKPOINT_DIR'], '2')
    folder.mkdir()
    (folder / 'step').write_text('2')
    say(checkpoint=str(folder), step=2)
print('here', flush=True)
if env['CORRAL_ATTEMPT'] == '1':
    time.sleep(600)
(O / 'who').write_text(f"{rank} {env['WORLD_SIZE']} {first}")
"""
FOREVER = "print('here', flush=True); time.sleep(600)"
# What a run that looks for tokens finds, wherever executors and workers lay them.
LOOK = """
import glob, tempfile
places = ['{folder}/*', tempfile.gettempdir() + '/corral-*', tempfile.gettempdir() + '/corral-*/*']
found = []
for place in [*places, os.path.dirname('{tokens}')]:
    for name in ('tokens', 'tokens/*', 'worker/token'):
        found += [path for path in glob.glob(f'{{place}}/{{name}}') if os.path.isfile(path)]
(O / 'who').write_text('\\n'.join(pathlib.Path(path).read_text() for path in found) + ' nothing else')
"""


@dataclass
class Place:
    """A cluster and what an operator says of it."""

    kind: ExecutorKind
    options: dict[str, Any]
    # While it is there, the workers of ranks 2 and up do not come.
    full: Path

    @property
    def name(self) -> str:
        return f"my-{self.kind}"


@pytest.fixture(scope="module", params=["ray", "slurm", "kubernetes"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("executors")
    with PLACES[request.param](folder) as made:
        yield made


@contextmanager
def on_slurm(folder: Path) -> Iterator[Place]:
    slurm = slurm_cluster.slurm_cluster()
    known = slurm.environment()
    prefix = ["env", *(f"{name}={known[name]}" for name in ("SLURM_CONF", "PATH"))]
    options = {"folder": str(folder / "shared"), "command_prefix": prefix}
    yield Place(ExecutorKind.SLURM, options, folder / "full")
    slurm.cancel_all()


@contextmanager
def on_kubernetes(folder: Path) -> Iterator[Place]:
    with KubernetesCluster([NodeShape(name) for name in ("a", "b")]) as cluster:
        about = {"kubeconfig": str(cluster.kubeconfig()), "image": "corral/worker:test"}
        options = {**about, "memory_bytes": 512 << 20, "worker_memory_bytes": 0}
        yield Place(ExecutorKind.KUBERNETES, options, folder / "full")


@contextmanager
def on_ray(folder: Path) -> Iterator[Place]:
    if find_spec("ray") is None:
        pytest.skip("Ray is missing: pip install -e '.[test]'")
    ray = shared_ray()
    try:
        options = {"address": ray.address, "node_ip": HOST, "environ": dict(ENVIRON)}
        yield Place(ExecutorKind.RAY, options, folder / "full")
    finally:
        stop_shared_ray()


PLACES = {"slurm": on_slurm, "kubernetes": on_kubernetes, "ray": on_ray}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, place: Place) -> Iterator[LocalCluster]:
    """A server without hosts of its own."""
    with local_cluster(tmp_path_factory.mktemp("server") / "home", lease_s=5.0) as made:
        # The next server listens where this one did, as one that is installed does.
        made.port = int(made.url.rpartition(":")[2])
        worker = ["sh", "-c", LATE_WORKER, str(place.full)]
        options = {**place.options, "url": made.url, "command": worker}
        made.client().executors.add(ExecutorRequest(name=place.name, kind=place.kind, options=options))
        yield made


@pytest.fixture
def corral(cluster: LocalCluster) -> Corral:
    return cluster.client()


def gang(code: str, place: Place, ranks: int = 4, **given: object) -> RunSpec:
    about = {
        "replicas": Replicas(min=ranks, max=ranks),
        "placement": PlacementTable(executors=[place.name]),
        "retries": RetryBudgets(infrastructure=3, code=3),
        "resources": Resources(min_cores=1),
        "grace": 2.0,
        **given,
    }
    return python(code, **about)


def all_here(corral: Corral, run_id: str, ranks: int = 4) -> bool:
    return all(
        any(line.text == "here" for line in corral.runs.iter_logs(run_id, rank=rank)) for rank in range(ranks)
    )


def children(run_id: str, rank: int | None = None) -> list[psutil.Process]:
    """The run's own processes, wherever on this machine they are."""
    found = []
    for process in psutil.process_iter():
        try:
            env = process.environ()
        except psutil.Error:
            continue
        if env.get("CORRAL_RUN_ID") == run_id and (rank is None or env.get("CORRAL_RANK") == str(rank)):
            found.append(process)
    return found


def submitted(corral: Corral, spec: RunSpec) -> str:
    (run_id,) = corral.runs.submit([spec]).ids
    return run_id


def all_taken_away(corral: Corral, run_id: str) -> None:
    eventually(
        lambda: all(one.state == "closed" for one in corral.executors.placements(run_id)),
        lambda: f"what was brought up to be gone: {corral.executors.placements(run_id)}",
    )
    eventually(lambda: not children(run_id), "the run's processes to be gone")


def ended_well(run: RunDetail, corral: Corral) -> list[str]:
    assert run.state == "succeeded", (run.reason, run.detail)
    return result(corral, run)["who"].decode().split()


def test_four_ranks_run_and_recover_from_the_kill_of_one(corral: Corral, place: Place) -> None:
    """DL-C07, DL-C08, DL-D17: four ranks of one launch; one is killed, and all go on."""
    run_id = submitted(corral, gang(STEPS, place))
    eventually(lambda: all_here(corral, run_id), "four ranks to run")
    kept = corral.runs.checkpoints
    eventually(lambda: any(one.step == 2 for one in kept(run_id).items), "the checkpoint to be kept")

    os.kill(max(process.pid for process in children(run_id, 3)), signal.SIGKILL)

    run = wait_final(corral, run_id)
    assert ended_well(run, corral) == ["0", "4", "2"]
    assert len(run.attempts) == 2
    assert [rank.rank for rank in run.attempts[0].ranks if rank.reason != "released"] == [3]
    # The workers were still there: nothing was launched anew.
    [placement] = corral.executors.placements(run_id)
    assert (placement.executor, placement.ranks, placement.lost) == (place.name, 4, False)
    all_taken_away(corral, run_id)


def test_a_run_finds_no_token_of_any_worker(corral: Corral, place: Place) -> None:
    """ATK5-04: neither its own worker's nor those of another run, which are on the same machine here."""
    other = submitted(corral, gang(FOREVER, place, ranks=1))
    eventually(lambda: all_here(corral, other, 1), "the other run to be there")
    where = LOOK.format(folder=place.options.get("folder", "/nowhere"), tokens=TOKENS_PATH)

    found = " ".join(ended_well(wait_final(corral, submitted(corral, gang(where, place, ranks=1))), corral))

    live = [one.id for one in corral.tokens.page().items if one.scope == "run" and not one.revoked_at]
    assert live
    assert [token for token in live if token in found] == []
    corral.runs.cancel(other)
    all_taken_away(corral, other)


def test_a_server_that_dies_while_it_launches_makes_no_second_cohort(
    cluster: LocalCluster, place: Place
) -> None:
    """DL-D13, DL-D14: the next server goes on by what is written, and one cohort runs."""
    corral = cluster.client()
    run_id = submitted(corral, gang(STEPS.replace("time.sleep(600)", "pass"), place, ranks=2))
    eventually(lambda: corral.runs.get(run_id).state == "placing", "the intent to be written")
    cluster.kill_server()
    cluster.start_server()

    run = wait_final(cluster.client(), run_id)

    assert ended_well(run, cluster.client()) == ["0", "2", "0"]
    assert len(cluster.client().executors.placements(run_id)) == 1
    all_taken_away(cluster.client(), run_id)


@pytest.mark.parametrize("started", [False, True])
def test_a_cancel_leaves_nothing(corral: Corral, place: Place, started: bool) -> None:
    run_id = submitted(corral, gang(FOREVER, place, ranks=2))
    if started:
        eventually(lambda: all_here(corral, run_id, ranks=2), "both ranks to run")
    else:
        eventually(lambda: corral.executors.placements(run_id), "the intent")
    corral.runs.cancel(run_id)
    assert wait_final(corral, run_id).state == "cancelled"
    all_taken_away(corral, run_id)


def worker_of(run_id: str, rank: int) -> psutil.Process:
    """What the cluster runs for a rank: the worker above the run's own process."""
    [child, *_] = children(run_id, rank)
    return next(one for one in child.parents() if "corral.worker.placed" in one.cmdline())


def starts(corral: Corral, run_id: str) -> list[tuple[str, int]]:
    return [(rank.state, rank.restarts) for rank in corral.runs.get(run_id).attempts[-1].ranks]


def told(corral: Corral, run_id: str) -> str:
    """For whoever reads why it did not come to that."""
    events = [(event.type, event.data) for event in corral.runs.events(run_id, limit=1000).items]
    return f"{events} {corral.executors.placements(run_id)}"


def test_an_elastic_run_grows_and_shrinks_with_the_workers_that_there_are(
    corral: Corral, place: Place
) -> None:
    """DL-D14, DL-D31: those that come late join; one that is killed and one that is taken away come back."""
    place.full.touch()
    # On a busy machine others may lose their leases too, and come back.
    often = RetryBudgets(infrastructure=50, code=3)
    run_id = submitted(corral, gang(FOREVER, place, replicas=Replicas(min=2, max=4), retries=often))
    eventually(lambda: all_here(corral, run_id, ranks=2), "the fewest to run")
    assert starts(corral, run_id) == [("running", 0)] * 2 + [("waiting", 0)] * 2
    place.full.unlink()
    eventually(lambda: all_here(corral, run_id), "those that came late to run")

    worker_of(run_id, 2).kill()
    worker_of(run_id, 3).terminate()

    def all_again() -> bool:
        found = starts(corral, run_id)
        return {state for state, _ in found} == {"running"} and min(found[2][1], found[3][1]) > 0

    eventually(all_again, lambda: f"all to run: {starts(corral, run_id)} {told(corral, run_id)}")
    run = corral.runs.get(run_id)
    assert (run.state, len(run.attempts)) == ("running", 1)
    assert len(corral.executors.placements(run_id)) > 1
    corral.runs.cancel(run_id)
    assert wait_final(corral, run_id).state == "cancelled"
    all_taken_away(corral, run_id)


def test_what_the_cluster_can_never_hold_is_told_in_its_own_words(corral: Corral, place: Place) -> None:
    """More ranks than could ever fit, and an executor that nobody has added."""
    never = gang(FOREVER, place, ranks=2, resources=Resources(min_cores=512))
    with pytest.raises(InvalidInput, match=f"executor {place.name}: .*(512|cores)"):
        submitted(corral, never)
    asked = Declaration("default", "never", runs=[ManifestSpec(never)], hosts={}).request(
        "apply", [], [never]
    )
    with pytest.raises(InvalidInput, match=f"placement.executors` executor {place.name}: .*(512|cores)"):
        corral.manifests.send(asked)
    with pytest.raises(InvalidInput, match=f"names elsewhere; there is {place.name}, fleet"):
        submitted(corral, gang(FOREVER, place, placement=PlacementTable(executors=["elsewhere"])))


def test_a_check_says_that_all_is_there_and_an_executor_at_work_is_not_removed(
    corral: Corral, place: Place
) -> None:
    found = corral.executors.check(place.name)
    assert found.ok, [line for line in found.checks if not line.ok]
    run_id = submitted(corral, gang(FOREVER, place, ranks=1))
    eventually(lambda: all_here(corral, run_id, ranks=1), "its rank to run")
    with pytest.raises(Conflict, match=f"has workers for 1 run: {run_id}"):
        corral.executors.remove(place.name)
    corral.runs.cancel(run_id)
    all_taken_away(corral, run_id)


def test_wrong_options_are_named(corral: Corral, place: Place) -> None:
    wrong = {**place.options, "no_such": 1, "url": "http://127.0.0.1:1"}
    with pytest.raises(InvalidInput, match="no_such is not an option"):
        corral.executors.add(ExecutorRequest(name="wrong", kind=place.kind, options=wrong))
    with pytest.raises(InvalidInput, match="url is missing"):
        corral.executors.add(ExecutorRequest(name="wrong", kind=place.kind, options=place.options))

"""What the Kubernetes executor makes of an order, and how it bears what the API server does to it."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.executor_contract import (
    MIB,
    SAYS_WHO,
    STAYS,
    all_are,
    has_ended,
    nothing_is_left,
    rank_seen,
    running,
    said,
    sighted,
)
from support.kubernetes_harness import A100, H100, NODES, KubernetesHarness
from support.kubernetes_server import KubernetesCluster
from support.kubernetes_server.access import rules_of_manifest
from support.kubernetes_server.deletion import DeleteOptions
from support.kubernetes_server.faults import LOSE_REPLY, LOSE_REQUEST
from support.kubernetes_server.resources import resource_of
from support.waiting import eventually

from corral.adapters.executors.kubernetes.executor import KubernetesExecutor
from corral.domain.hosts.capability import GIB, Requirements
from corral.domain.placements.orders import SightCause, SightState
from corral.ports.executor import ExecutorUnreachable, LaunchRefused

Json = dict[str, Any]
STUBBORN = SAYS_WHO + 'trap "" TERM; while [ ! -e "$GO" ]; do sleep 0.05; done'
# A worker whose run is not done when it is told to end says so by its code.
INTERRUPTED = SAYS_WHO + 'trap "exit 143" TERM; sleep 600 & wait'


@pytest.fixture(scope="module")
def kubernetes() -> Iterator[KubernetesCluster]:
    with KubernetesCluster(NODES) as started:
        yield started


@pytest.fixture
def cluster(kubernetes: KubernetesCluster) -> Iterator[KubernetesHarness]:
    made = KubernetesHarness(kubernetes)
    yield made
    made.clean()


def gpus(count: int, *models: str, **more: Any) -> Requirements:
    return Requirements(gpus=count, gpu=models, min_cores=1, min_ram_bytes=64 * MIB, **more)


def posts(cluster: KubernetesHarness, plural: str) -> list[int]:
    """The codes of all answers to creations of this kind."""
    seen = list(cluster.cluster.server.seen)
    return [one.code for one in seen if one.method == "POST" and one.target.endswith(f"/{plural}")]


# The order of a launch, and who dies or is cancelled in the middle of it.


def test_a_lost_reply_is_asked_for_again_by_itself(cluster: KubernetesHarness) -> None:
    """DL-D27, DL-D29: the second attempt finds the Job of the first."""
    cluster.cluster.faults.inject(LOSE_REPLY, method="POST", path="/jobs$")
    cluster.cluster.faults.inject(LOSE_REQUEST, method="POST", path="/secrets$")
    order = cluster.order(cluster.key(), 2, STAYS)

    running(cluster, cluster.executor(), order)

    assert posts(cluster, "jobs")[-2:] == [201, 409]
    assert len(cluster.secrets()) == 1


def test_no_pod_starts_before_its_tokens_are_there_and_both_go_together(cluster: KubernetesHarness) -> None:
    """DL-D32: the Job owns the Secret, so that none is ever left without its Job."""
    executor = cluster.executor()
    order = cluster.order(cluster.key(), 2, STAYS)
    cluster.cluster.faults.inject(503, method="POST", path="/secrets$", times=100)
    with pytest.raises(ExecutorUnreachable):
        executor.launch(order)
    (launched,) = executor.launched(cluster.installation)
    job = cluster.job(launched.handle)
    cluster.cluster.faults.clear()

    assert (job["spec"]["suspend"], cluster.pods(launched.handle)) == (True, [])
    handle = running(cluster, executor, order)
    (secret,) = cluster.secrets()
    assert handle == launched.handle
    assert [owner["uid"] for owner in secret["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]
    executor.cancel(handle)
    eventually(lambda: not cluster.secrets(), "the Secret to go with its Job")


def test_a_launch_that_is_cancelled_in_the_middle_leaves_no_secret(cluster: KubernetesHarness) -> None:
    """DL-D22, DL-D27: the Job is gone when its Secret is made."""
    order = cluster.order(cluster.key(), 1, STAYS)
    other = cluster.executor()

    def cancel_meanwhile(_: float) -> None:
        for found in other.launched(cluster.installation):
            other.cancel(found.handle)
        eventually(lambda: not cluster.cluster.storage.all(resource_of("jobs", "batch")), "the Job to go")

    executor = KubernetesExecutor(cluster.options(), pause=cancel_meanwhile)
    cluster.cluster.faults.inject(503, method="POST", path="/secrets$")

    handle = executor.launch(order)

    assert executor.observe([handle]) == {}
    eventually(lambda: not cluster.secrets(), "the Secret to be collected")
    executor.close()


def test_the_tokens_of_the_last_launch_hold(cluster: KubernetesHarness) -> None:
    """DL-D27: a control plane that kept none of the tokens makes new ones when it asks again."""
    executor = cluster.executor(queue="gpus")
    order = cluster.order(cluster.key(), 1, SAYS_WHO)
    handle = executor.launch(order)

    assert executor.launch(order._replace(tokens=("another",))) == handle

    (secret,) = cluster.secrets()
    assert {key: base64.b64decode(value) for key, value in secret["data"].items()} == {"0": b"another"}


def test_a_job_of_the_same_name_that_is_not_ours_is_left_alone(cluster: KubernetesHarness) -> None:
    order = cluster.order(cluster.key(), 1, STAYS)
    others = cluster.order(order.key, 1, STAYS, installation="somebody-else")
    handle = running(cluster, cluster.executor(), others)

    with pytest.raises(LaunchRefused, match="is not this installation's"):
        cluster.executor().launch(order)

    assert all_are(SightState.RUNNING)(cluster.executor().observe([handle])[handle])


def test_what_somebody_suspended_is_not_started_by_a_repetition(cluster: KubernetesHarness) -> None:
    executor = cluster.executor()
    order = cluster.order(cluster.key(), 1, STAYS)
    handle = running(cluster, executor, order)
    jobs = resource_of("jobs", "batch")
    cluster.cluster.storage.edit(jobs, cluster.job(handle), lambda job: job["spec"].update(suspend=True))

    executor.launch(order)

    found = sighted(executor, handle, all_are(SightState.WAITING), "the rank to wait")
    assert found.detail.startswith("suspended")


# Gangs, queues and GPUs.


def test_a_queue_starts_all_ranks_or_none(cluster: KubernetesHarness) -> None:
    """DL-D13, DL-D32: no pod, and so no GPU, before Kueue admits the Job as a whole."""
    executor = cluster.executor(queue="gpus", priority_class=None)
    order = cluster.order(cluster.key(), 4, STAYS, min_ranks=2)
    handle = executor.launch(order)
    job = cluster.cluster.wait_for_condition(cluster.job(handle)["metadata"]["name"], "Suspended")

    found = executor.observe([handle])[handle]

    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert job["metadata"]["annotations"]["kueue.x-k8s.io/job-min-parallelism"] == "2"
    assert {seen.state for seen in found.ranks} == {SightState.WAITING}
    assert found.ranks[0].detail.startswith("waits in the queue gpus")
    assert cluster.pods(handle) == []
    # As Kueue does when there is room for all.
    jobs = resource_of("jobs", "batch")
    cluster.cluster.storage.edit(jobs, cluster.job(handle), lambda job: job["spec"].update(suspend=False))
    sighted(executor, handle, all_are(SightState.RUNNING), "all ranks")


def test_half_a_gang_reads_what_it_is_and_lets_go_of_its_gpus(cluster: KubernetesHarness) -> None:
    """DL-D13, DL-D15: without a queue the ranks that wait say so with the scheduler's words, and one cancel
    frees what the others hold."""
    executor = cluster.executor(autoscales=True)
    order = cluster.order(cluster.key(), 2, STAYS, need=gpus(2, "H100"))
    handle = executor.launch(order)

    found = sighted(
        executor,
        handle,
        lambda seen: (
            {one.state for one in seen.ranks} == {SightState.RUNNING, SightState.WAITING}
            and any(one.cause for one in seen.ranks)
        ),
        "half a gang",
    )

    waiting = next(one for one in found.ranks if one.state is SightState.WAITING)
    assert (waiting.cause, waiting.node) == (SightCause.UNSCHEDULABLE, None)
    assert "1 Insufficient nvidia.com/gpu" in waiting.detail
    executor.cancel(handle)
    nothing_is_left(cluster, order.key)


def test_a_gpu_is_chosen_by_its_model_and_there_may_be_several(cluster: KubernetesHarness) -> None:
    """DL-C15, DL-D25: by the label of the node, not by a type of instance."""
    executor = cluster.executor()
    order = cluster.order(cluster.key(), 1, STAYS, need=gpus(3, "a100", min_vram_bytes=80 * GIB))

    handle = running(cluster, executor, order)

    (pod,) = cluster.pods(handle)
    (worker,) = pod["spec"]["containers"]
    assert executor.observe([handle])[handle].ranks[0].node == "b"
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == "3"
    assert {kind.gpu for kind in executor.capacities()} == {A100, H100}


@pytest.mark.parametrize(
    ("need", "words"),
    [
        (gpus(1, "H900"), "no node has a GPU called H900"),
        (gpus(3, "H100"), "needs 3 GPUs; the largest has 2"),
        (gpus(1, "H100", min_vram_bytes=200 * GIB), "has a GPU that fits"),
        (Requirements(min_cores=64), "needs 64 cores; the largest has 8"),
        (Requirements(min_ram_bytes=99 * GIB), "needs 99 GiB RAM with its worker; the largest has 16 GiB"),
        (Requirements(hosts=("laptop",)), "only the hosts laptop"),
        (Requirements(labels=("nvme",)), "lacks the labels nvme"),
        (Requirements(os="windows"), "needs os windows"),
    ],
)
def test_what_can_never_run_is_refused_with_the_reason(
    cluster: KubernetesHarness, need: Requirements, words: str
) -> None:
    """DL-D25, DL-D32: an unknown model is no wildcard."""
    executor = cluster.executor()

    with pytest.raises(LaunchRefused, match=words):
        executor.launch(cluster.order(cluster.key(), 1, STAYS, need=need))

    assert any(words in reason for reason in executor.refusals(need, 1))
    assert executor.launched(cluster.installation) == []


def test_more_ranks_than_ever_fit_are_refused(cluster: KubernetesHarness) -> None:
    """DL-D32: unless nodes come when they are asked for."""
    many = gpus(1)

    assert cluster.executor().refusals(many, 6) == []
    assert cluster.executor().refusals(many, 7) == ["needs 7 ranks at once; all nodes together hold 6"]
    assert cluster.executor(autoscales=True).refusals(many, 7) == []
    assert cluster.executor(autoscales=True, gpu_models=("NVIDIA-B300",)).refusals(gpus(1, "b300"), 7) == []


def test_a_runtime_that_passes_no_gpu_on_is_refused_with_one(cluster: KubernetesHarness) -> None:
    """DL-C15, DL-D32, DL-D47: gVisor and Kata, unless they are said to be set up for it."""
    assert "gvisor does not pass on" in cluster.executor(runtime_class="gvisor").refusals(gpus(1), 1)[0]
    assert cluster.executor(runtime_class="gvisor").refusals(Requirements(), 1) == []
    assert cluster.executor(runtime_class="gvisor", runtime_class_gpus=True).refusals(gpus(1), 1) == []
    assert cluster.executor(runtime_class="nvidia").refusals(gpus(1), 1) == []


def test_no_image_is_refused(cluster: KubernetesHarness) -> None:
    with pytest.raises(LaunchRefused, match="there is no image"):
        cluster.executor(image=None).launch(cluster.order(cluster.key(), 1, STAYS))


# How ranks end.


def test_a_rank_that_may_start_again_does_and_its_attempts_are_told_apart(
    cluster: KubernetesHarness,
) -> None:
    """DL-D14, DL-D30, DL-D31: only that rank, and what it wrote before stays readable."""
    executor = cluster.executor(restarts=1)
    order = cluster.order(cluster.key(), 2, STAYS)
    handle = running(cluster, executor, order)

    cluster.kill_rank(order.key, 1)

    found = sighted(
        executor,
        handle,
        lambda seen: all_are(SightState.RUNNING)(seen) and rank_seen(seen, 1).restarts == 1,
        "the second start of rank 1",
    )
    assert rank_seen(found, 0).restarts == 0
    text = said(executor, handle, 1, "--- attempt 2, ")
    eventually(lambda: executor.logs(handle, 1, most_bytes=9999).count("up 1") == 2, "both attempts")
    assert text.index("--- attempt 1, ") < text.index("--- attempt 2, ")


def test_one_rank_too_many_ends_the_gang_and_is_blamed(cluster: KubernetesHarness) -> None:
    """DL-D14: the others read that they were ended, and by what."""
    executor = cluster.executor()
    script = SAYS_WHO + '[ "$rank" = 1 ] && exit 4; trap "exit 0" TERM; sleep 600 & wait'
    handle = executor.launch(cluster.order(cluster.key(), 3, script))

    found = sighted(executor, handle, has_ended, "the end")

    assert (rank_seen(found, 1).cause, rank_seen(found, 1).exit_code) == (SightCause.EXITED, 4)
    for rank in (0, 2):
        assert (rank_seen(found, rank).state, rank_seen(found, rank).cause) == (
            SightState.FAILED,
            SightCause.CANCELLED,
        )
        assert "MaxFailedIndexesExceeded" in rank_seen(found, rank).detail
    assert "rank 1: exited" in found.detail


def test_enough_ranks_can_be_enough(cluster: KubernetesHarness) -> None:
    """DL-C15: the success policy, where an elastic run is done with what it needs at least."""
    executor = cluster.executor(done_with_min_ranks=True)
    script = SAYS_WHO + '[ "$rank" = 0 ] && exit 0; trap "exit 1" TERM; sleep 600 & wait'
    handle = executor.launch(cluster.order(cluster.key(), 3, script, min_ranks=1))

    found = sighted(executor, handle, has_ended, "the end")

    assert rank_seen(found, 0).state is SightState.SUCCEEDED
    assert {rank_seen(found, rank).state for rank in (1, 2)} == {SightState.GONE}


def test_a_drained_pod_costs_no_attempt(cluster: KubernetesHarness) -> None:
    """DL-D32: disruptions are not failures; the rank is placed again."""
    executor = cluster.executor()
    order = cluster.order(cluster.key(), 1, INTERRUPTED)
    handle = running(cluster, executor, order)

    cluster.cluster.evict(cluster.pods(handle)[0])

    found = sighted(
        executor,
        handle,
        lambda seen: all_are(SightState.RUNNING)(seen) and seen.ranks[0].restarts == 1,
        "the rank to run again",
    )
    assert not found.ended


def test_an_image_that_does_not_exist_is_told_with_the_registrys_words(cluster: KubernetesHarness) -> None:
    """DL-D18, DL-C08: by name, and asking for logs is no error."""
    executor = cluster.executor()
    handle = executor.launch(cluster.order(cluster.key(), 1, STAYS, image="corral/none:1"))

    found = sighted(
        executor, handle, lambda seen: "not found" in seen.ranks[0].detail, "the words of the registry"
    )

    assert (found.ranks[0].state, found.ranks[0].cause) == (SightState.STARTING, SightCause.IMAGE)
    assert "failed to resolve reference" in found.ranks[0].detail
    assert "is waiting to start" in executor.logs(handle, 0, most_bytes=1000)


def test_pods_that_are_not_admitted_are_told(cluster: KubernetesHarness) -> None:
    """DL-D15, DL-D18: nothing but an event of the Job says why."""
    executor = cluster.executor(service_account="nobody")
    handle = executor.launch(cluster.order(cluster.key(), 1, STAYS))

    found = sighted(executor, handle, lambda seen: bool(seen.ranks[0].detail), "a reason")

    assert (found.ranks[0].state, found.ranks[0].cause) == (SightState.WAITING, SightCause.REFUSED)
    assert 'serviceaccount "nobody" not found' in found.ranks[0].detail


def test_a_program_that_is_not_there_is_told(cluster: KubernetesHarness) -> None:
    """DL-D18, DL-D26."""
    executor = cluster.executor()
    order = cluster.order(cluster.key(), 1, STAYS)._replace(command=("/nowhere/worker",))
    handle = executor.launch(order)

    found = sighted(executor, handle, has_ended, "the end")

    assert (found.ranks[0].state, found.ranks[0].exit_code) == (SightState.FAILED, 128)
    assert "No such file" in executor.logs(handle, 0, most_bytes=1000)


def test_what_was_cleaned_up_is_unknown_and_not_cancelled(cluster: KubernetesHarness) -> None:
    """DL-D16: after its time to live a Job is in no answer; what it came to was read long before."""
    executor = cluster.executor(keep_s=3600)
    handle = executor.launch(cluster.order(cluster.key(), 1, SAYS_WHO))
    before = sighted(executor, handle, has_ended, "the end")

    cluster.cluster.advance(3500)
    assert executor.observe([handle])[handle] == before
    cluster.cluster.advance(200)

    eventually(lambda: executor.observe([handle]) == {}, "the Job to go")
    assert executor.logs(handle, 0, most_bytes=1000) == ""


def test_a_cancel_is_done_when_the_pods_are_gone(cluster: KubernetesHarness, tmp_path: Any) -> None:
    """DL-D22, DL-C16: until then the launch is seen, and has not ended."""
    executor = cluster.executor()
    order = cluster.order(cluster.key(), 1, STUBBORN, grace_s=600.0)
    order = order._replace(environ={**order.environ, "GO": str(tmp_path / "go")})
    handle = running(cluster, executor, order)
    said(executor, handle, 0, "up 0")

    executor.cancel(handle)
    executor.cancel(handle)

    found = sighted(
        executor, handle, lambda seen: seen.ranks[0].cause is SightCause.CANCELLED, "to be cancelled"
    )
    assert (found.ended, found.ranks[0].state) == (False, SightState.RUNNING)
    assert [one.handle for one in executor.launched(cluster.installation)] == [handle]
    (tmp_path / "go").touch()
    eventually(lambda: executor.observe([handle]) == {}, "nothing to be left")


def test_pods_whose_job_is_gone_are_still_seen(cluster: KubernetesHarness) -> None:
    """DL-C16: somebody deleted the Job alone, as the API does by default."""
    executor = cluster.executor()
    order = cluster.order(cluster.key(), 1, STAYS)
    handle = running(cluster, executor, order)
    jobs = resource_of("jobs", "batch")

    cluster.cluster.registry.delete(jobs, cluster.job(handle), DeleteOptions(propagation="Orphan"))
    eventually(lambda: not cluster.cluster.storage.all(jobs), "the Job to go")
    found = executor.observe([handle])[handle]

    assert (found.ended, found.ranks[0].state) == (False, SightState.RUNNING)
    assert found.detail.startswith("the Job is gone")


# What the API server does to us.


def asked_by(cluster: KubernetesHarness, executor: KubernetesExecutor, handles: list[str]) -> list[str]:
    """The paths of what one look at these handles asks for."""
    before = len(cluster.cluster.server.seen)
    assert set(executor.observe(handles)) == set(handles)
    return [one.target.partition("?")[0].rpartition("/")[2] for one in cluster.cluster.server.seen[before:]]


def test_many_launches_are_observed_with_one_request_each_time(cluster: KubernetesHarness) -> None:
    """DL-D29: a list of Jobs, whatever there is; the pods are read again only if something happened."""
    executor = cluster.executor()
    orders = [cluster.order(cluster.key(), 2, INTERRUPTED) for _ in range(3)]
    handles = [running(cluster, executor, order) for order in orders]

    assert asked_by(cluster, cluster.executor(), handles) == ["jobs", "pods"]
    eventually(lambda: asked_by(cluster, executor, handles) == ["jobs"], "nothing to happen")
    cluster.kill_rank(orders[1].key, 1)
    found = sighted(executor, handles[1], has_ended, "the end")
    assert rank_seen(found, 1).signal == 9
    assert asked_by(cluster, executor, handles) == ["jobs"]
    assert executor.observe([handles[1]])[handles[1]] == found


def test_a_busy_server_is_given_the_time_that_it_asks_for(cluster: KubernetesHarness) -> None:
    """DL-D29: 429 with Retry-After, then errors in passing; nothing is lost."""
    pauses: list[float] = []
    executor = KubernetesExecutor(cluster.options(), pause=pauses.append)
    cluster.cluster.faults.inject(429, method="POST", path="/jobs$", retry_after_s=3)
    cluster.cluster.faults.inject(500, method="POST", path="/secrets$")
    cluster.cluster.faults.inject(503, method="PATCH")
    cluster.cluster.faults.inject(410, method="GET", path="/jobs")
    cluster.cluster.faults.inject(504, method="GET", path="/pods")

    handle = executor.launch(cluster.order(cluster.key(), 2, STAYS))
    found = executor.observe([handle])

    assert pauses == [3.0, 0.2, 0.2, 0.2, 0.2]
    assert set(found) == {handle}
    executor.close()


def test_a_server_that_stays_away_is_given_up_after_a_while(cluster: KubernetesHarness) -> None:
    """DL-D29: the pauses grow, and nothing is said to have ended."""
    pauses: list[float] = []
    executor = KubernetesExecutor(cluster.options(), pause=pauses.append)
    cluster.cluster.faults.inject(503, times=1000)

    with pytest.raises(ExecutorUnreachable, match="503 ServiceUnavailable"):
        executor.observe(["default/x/y"])

    assert pauses == [0.2, 0.4, 0.8, 1.6]
    executor.close()


def test_a_restart_of_the_api_server_is_survived(cluster: KubernetesHarness) -> None:
    """DL-D29."""
    executor = cluster.executor()
    handle = running(cluster, executor, cluster.order(cluster.key(), 1, STAYS))

    cluster.cluster.restart_server()

    assert all_are(SightState.RUNNING)(executor.observe([handle])[handle])


def test_several_threads_use_one_executor(cluster: KubernetesHarness) -> None:
    executor = cluster.executor()
    orders = [cluster.order(cluster.key(), 1, SAYS_WHO) for _ in range(6)]
    handles: dict[str, str] = {}
    threads = [
        threading.Thread(target=lambda order=order: handles.update({order.key: executor.launch(order)}))
        for order in orders
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(handles) == 6
    assert set(executor.observe(list(handles.values()))) == set(handles.values())


# Who we are there.


def user(cluster: KubernetesHarness, rules: list[Json], namespace: str = "default") -> str:
    return cluster.cluster.add_user(
        "system:serviceaccount:corral:corral-server", rules_of_manifest(rules, namespace)
    )


def test_a_token_that_has_expired_is_told_and_a_new_one_is_read(cluster: KubernetesHarness) -> None:
    """DL-D32: the launch is not refused for good: it goes on when somebody has logged in."""
    everything = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    old, new = user(cluster, everything, ""), user(cluster, everything, "")
    path = cluster.cluster.kubeconfig(old)
    executor = cluster.executor(kubeconfig=str(path))
    order = cluster.order(cluster.key(), 1, STAYS)
    handle = executor.launch(order)
    cluster.cluster.access.expire(old)

    with pytest.raises(
        ExecutorUnreachable, match="does not accept the credentials of the context test"
    ) as error:
        executor.launch(order)
    assert "Log in again" in error.value.hint
    assert [check.name for check in executor.preflight() if not check.ok] == ["server"]

    path.write_text(cluster.cluster.kubeconfig(new).read_text(encoding="utf-8"), encoding="utf-8")
    assert set(executor.observe([handle])) == {handle}


@pytest.mark.parametrize("missing", ["jobs", "secrets"])
def test_a_namespace_without_permission_is_told_and_nothing_is_left(
    cluster: KubernetesHarness, missing: str
) -> None:
    """DL-D32: what may not be done, where, and the command that allows it."""
    rules = [
        {
            "apiGroups": ["batch"],
            "resources": ["jobs"],
            "verbs": ["create", "get", "list", "patch", "delete"],
        },
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create", "patch"]},
    ]
    kept = [rule for rule in rules if missing not in rule["resources"]]
    executor = cluster.executor(kubeconfig=str(cluster.cluster.kubeconfig(user(cluster, kept))))

    with pytest.raises(LaunchRefused, match=f'cannot create resource "{missing}"') as refused:
        executor.launch(cluster.order(cluster.key(), 1, STAYS))

    assert "corral executors check" in refused.value.hint
    eventually(lambda: not cluster.cluster.storage.all(resource_of("jobs", "batch")), "nothing to be left")
    wrong = {check.name: check.fix for check in executor.preflight() if not check.ok}
    shown = {"jobs": "jobs.batch", "secrets": "secrets"}[missing]
    fix = wrong[f"permission {shown}"]
    assert f"--resource={shown}" in fix
    assert "--serviceaccount=corral:corral-server" in fix


def test_in_a_pod_its_service_account_is_used_first(
    cluster: KubernetesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(cluster.cluster.server.port))
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    folder = str(cluster.cluster.service_account_folder(namespace="kube-system"))
    executor = cluster.executor(kubeconfig=None, service_account_folder=folder)

    handle = executor.launch(cluster.order(cluster.key(), 1, SAYS_WHO))

    assert handle.startswith("kube-system/")
    assert "the pod's service account" in executor.preflight()[0].detail
    outside = cluster.executor(kubeconfig=None, service_account_folder="/nowhere")
    with pytest.raises(ExecutorUnreachable, match="cannot be used"):
        outside.observe([handle])


@pytest.mark.parametrize(
    ("changes", "name", "fix"),
    [
        ({"namespace": "nowhere"}, "namespace", "kubectl create namespace nowhere"),
        ({"service_account": "nobody"}, "service account", "kubectl create serviceaccount nobody -n default"),
        ({"pull_secrets": ("registry",)}, "pull secret", "kubectl create secret docker-registry registry"),
        ({"priority_class": "urgent"}, "priority class", "kubectl create priorityclass urgent"),
        ({"runtime_class": "gvisor"}, "runtime class", "Install the runtime"),
        ({"queue": "gpus"}, "queue", "Install Kueue"),
        ({"image": None}, "image", "Set the option `image`"),
        ({"gpu_label": "accelerator"}, "nodes", "set the option `gpu_label`"),
        ({"node_selector": {"no good!": "x"}}, "trial", "Change the options"),
        ({"context": "other"}, "server", "kubectl config get-contexts"),
    ],
)
def test_preflight_names_each_thing_that_is_missing(
    cluster: KubernetesHarness, changes: dict[str, Any], name: str, fix: str
) -> None:
    """DL-C10, DL-D21, DL-D32: with the command that mends it, and nothing is made."""
    before = len(cluster.cluster.storage.all(resource_of("jobs", "batch")))

    wrong = {check.name: check for check in cluster.executor(**changes).preflight() if not check.ok}

    assert fix in wrong[name].fix
    assert len(cluster.cluster.storage.all(resource_of("jobs", "batch"))) == before


def test_preflight_says_whom_the_pods_act_as(cluster: KubernetesHarness) -> None:
    """DL-D21: IRSA by the annotation of the service account; nothing is claimed where there is none."""
    role = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/train"}
    account = {"metadata": {"name": "irsa", "annotations": role}}
    cluster.cluster.registry.create(resource_of("serviceaccounts"), "default", account)

    def details(**changes: Any) -> str:
        checks = cluster.executor(**changes).preflight()
        return next(check.detail for check in checks if check.name == "service account")

    assert (
        details(service_account="irsa") == "irsa: pods act as the AWS role arn:aws:iam::1:role/train (IRSA)"
    )
    assert details() == "default: no cloud identity is noted on it"


def test_what_may_not_be_looked_at_is_not_checked(cluster: KubernetesHarness) -> None:
    """DL-D25, DL-D32: without a look at the nodes, models are those that the options name."""
    rules = [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["*"]}]
    path = str(cluster.cluster.kubeconfig(user(cluster, rules)))

    assert cluster.executor(kubeconfig=path).capacities() == []
    assert "is not known" in cluster.executor(kubeconfig=path).refusals(gpus(1, "H100"), 1)[0]
    assert cluster.executor(kubeconfig=path, gpu_models=(H100,)).refusals(gpus(1, "H100"), 1) == []
    assert cluster.executor(kubeconfig=path).refusals(gpus(99), 1) == []


def test_a_queue_that_is_there_is_found(cluster: KubernetesHarness) -> None:
    """DL-D13, DL-D32: and without one it is said that ranks start one by one."""
    queues = resource_of("localqueues", "kueue.x-k8s.io")
    body = {"metadata": {"name": "team-a"}, "spec": {"clusterQueue": "all"}}
    cluster.cluster.registry.create(queues, "default", body)

    def detail(**changes: Any) -> str:
        checks = cluster.executor(**changes).preflight()
        return next(check.detail for check in checks if check.name == "queue" and check.ok)

    assert detail(queue="team-a") == "team-a: Kueue starts a Job as a whole"
    assert "Kubernetes starts ranks one by one" in detail()


def test_quotas_are_told(cluster: KubernetesHarness) -> None:
    """DL-D32."""
    quota = {"metadata": {"name": "team"}, "spec": {"hard": {"requests.nvidia.com/gpu": "4"}}}
    quotas = resource_of("resourcequotas")
    made = cluster.cluster.registry.create(quotas, "default", quota)

    checks = {check.name: check.detail for check in cluster.executor().preflight()}

    assert checks["quota"] == "requests.nvidia.com/gpu 0 of 4"
    cluster.cluster.storage.remove(quotas, made)


def test_nothing_secret_is_in_the_job(cluster: KubernetesHarness) -> None:
    """DL-D32: not even with the name of the run, which may be any text."""
    order = cluster.order(cluster.key(), 2, STAYS)
    handle = cluster.executor().launch(order)

    shown = json.dumps(cluster.job(handle))

    assert not any(
        token in shown or base64.b64encode(token.encode()).decode() in shown for token in order.tokens
    )
    assert cluster.job(handle)["metadata"]["annotations"]["corral.dev/run-name"] == order.run_name

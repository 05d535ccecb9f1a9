"""The Kubernetes server of the tests runs Indexed Jobs as the Job controller does, with real processes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.kubernetes_server import KubernetesCluster, NodeShape
from support.kubernetes_server.objects import is_true
from support.waiting import eventually

from contract.kubernetes_samples import (
    JOBS,
    PODS,
    STUBBORN,
    Json,
    RawClient,
    end,
    job,
    reasons,
    status_of,
    waiting_job,
)

IGNORE_DISRUPTIONS = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}


@pytest.fixture(scope="module")
def cluster() -> Iterator[KubernetesCluster]:
    nodes = [NodeShape(f"node-{number}", gpus=2, cpus=64) for number in range(2)]
    with KubernetesCluster(nodes) as started:
        yield started


@pytest.fixture(scope="module")
def api(cluster: KubernetesCluster) -> Iterator[RawClient]:
    opened = RawClient(cluster)
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def _leave_nothing(cluster: KubernetesCluster, api: RawClient) -> Iterator[None]:
    yield
    api.send("DELETE", JOBS, propagationPolicy="Background")
    api.send("DELETE", PODS, {"gracePeriodSeconds": 0})
    eventually(lambda: not api.get(PODS)["items"] and not api.get(JOBS)["items"], "an empty cluster")


@pytest.fixture
def ends(tmp_path: Path) -> Path:
    """Where a rank finds the exit code that it shall end with."""
    return tmp_path


def test_a_job_completes_with_its_indexes_compressed(
    cluster: KubernetesCluster, api: RawClient, ends: Path
) -> None:
    api.post(JOBS, waiting_job("run", 5, ends))
    cluster.wait_for_pods("run", 5)
    status = status_of(cluster, "run", active=5, ready=5)
    assert "completedIndexes" not in status
    for rank in (0, 2, 3, 4):
        end(ends, rank)
    status_of(cluster, "run", completedIndexes="0,2-4", succeeded=4, active=1)

    end(ends, 1)
    done = cluster.wait_for_condition("run", "Complete")

    assert reasons(done) == {"SuccessCriteriaMet": "CompletionsReached", "Complete": "CompletionsReached"}
    status = done["status"]
    assert (status["completedIndexes"], status["succeeded"], "active" in status) == ("0-4", 5, False)
    assert status["completionTime"] >= status["startTime"]
    assert ("Completed", "Job completed") in cluster.events()


def test_a_pod_knows_its_index_and_its_job(cluster: KubernetesCluster, api: RawClient) -> None:
    fields = {"POD": "metadata.name", "NODE": "spec.nodeName", "UID": "metadata.labels['controller-uid']"}
    env: list[Json] = [{"name": "A", "value": "a"}, {"name": "B", "value": "$(A)-$(C)-$$(A)"}]
    env += [{"name": k, "valueFrom": {"fieldRef": {"fieldPath": path}}} for k, path in fields.items()]
    made = api.post(
        JOBS, job("run", 2, "echo $JOB_COMPLETION_INDEX $HOSTNAME $POD $NODE $UID $B", main={"env": env})
    )
    cluster.wait_for_condition("run", "Complete")

    for index, pod in enumerate(cluster.pods("run")):
        name = pod["metadata"]["name"]
        said = api.http.get(f"{PODS}/{name}/log").text.split()
        node = pod["spec"]["nodeName"]
        assert said == [str(index), f"run-{index}", name, node, made["metadata"]["uid"], "a-$(C)-$(A)"]
        assert name.startswith(f"run-{index}-")
        assert pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] == str(index)


def test_one_rank_that_fails_is_tried_again_alone_and_then_blamed(
    cluster: KubernetesCluster, api: RawClient, ends: Path
) -> None:
    """DL-D14: with a limit per index, the failed index is named and the others go on."""
    api.post(JOBS, waiting_job("run", 3, ends, backoffLimitPerIndex=1))
    cluster.wait_for_pods("run", 3)

    end(ends, 1, 7)
    status_of(cluster, "run", failedIndexes="1", active=2)
    failed = [pod for pod in cluster.pods("run") if pod["status"]["phase"] == "Failed"]
    count = "batch.kubernetes.io/job-index-failure-count"
    assert [pod["metadata"]["annotations"][count] for pod in failed] == ["0", "1"]
    assert not is_true(cluster.job("run"), "Failed")

    end(ends, 0)
    end(ends, 2)
    done = cluster.wait_for_condition("run", "Failed")
    assert reasons(done) == {"FailureTarget": "FailedIndexes", "Failed": "FailedIndexes"}
    assert (done["status"]["completedIndexes"], done["status"]["failed"]) == ("0,2", 2)
    assert failed[0]["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 7


def test_too_many_failed_indexes_end_the_job(cluster: KubernetesCluster, api: RawClient, ends: Path) -> None:
    api.post(JOBS, waiting_job("run", 3, ends, backoffLimitPerIndex=0, maxFailedIndexes=1))
    cluster.wait_for_pods("run", 3)

    end(ends, 0, 1)
    status_of(cluster, "run", failedIndexes="0", active=2)
    end(ends, 1, 1)

    done = cluster.wait_for_condition("run", "Failed")
    assert reasons(done)["Failed"] == "MaxFailedIndexesExceeded"
    assert done["status"]["terminating"] == 0
    assert not [pod for pod in cluster.pods("run") if pod["status"]["phase"] == "Running"]


def test_without_a_limit_per_index_one_failure_ends_all(
    cluster: KubernetesCluster, api: RawClient, ends: Path
) -> None:
    api.post(JOBS, waiting_job("run", 3, ends, backoffLimit=0))
    cluster.wait_for_pods("run", 3)

    end(ends, 2, 1)

    done = cluster.wait_for_condition("run", "Failed")
    assert reasons(done)["Failed"] == "BackoffLimitExceeded"
    assert "failedIndexes" not in done["status"]


def test_a_backoff_limit_allows_so_many_failures(cluster: KubernetesCluster, api: RawClient) -> None:
    api.post(JOBS, job("run", 1, "exit 3", backoffLimit=2))

    done = cluster.wait_for_condition("run", "Failed")

    assert (reasons(done)["Failed"], done["status"]["failed"]) == ("BackoffLimitExceeded", 3)
    assert len(cluster.pods("run")) == 3


def test_where_containers_restart_their_restarts_count(cluster: KubernetesCluster, api: RawClient) -> None:
    api.post(JOBS, job("run", 1, "exit 3", backoffLimit=2, pod={"restartPolicy": "OnFailure"}))

    done = cluster.wait_for_condition("run", "Failed")

    assert (reasons(done)["Failed"], done["status"]["failed"]) == ("BackoffLimitExceeded", 1)


def test_an_exit_code_can_end_the_job(cluster: KubernetesCluster, api: RawClient, ends: Path) -> None:
    rules = [
        {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [3]}},
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}},
    ]
    policy = {"rules": rules}
    api.post(JOBS, waiting_job("run", 2, ends, backoffLimitPerIndex=5, podFailurePolicy=policy))
    cluster.wait_for_pods("run", 2)

    end(ends, 1, 42)

    done = cluster.wait_for_condition("run", "Failed")
    assert reasons(done) == {"FailureTarget": "PodFailurePolicy", "Failed": "PodFailurePolicy"}
    said = next(one["message"] for one in done["status"]["conditions"] if one["type"] == "Failed")
    assert "failed with exit code 42 matching FailJob rule at index 1" in said
    assert "Container main for pod default/run-1-" in said


def test_an_exit_code_can_end_its_index_alone(cluster: KubernetesCluster, api: RawClient, ends: Path) -> None:
    policy = {"rules": [{"action": "FailIndex", "onExitCodes": {"operator": "NotIn", "values": [1, 2]}}]}
    api.post(JOBS, waiting_job("run", 2, ends, backoffLimitPerIndex=5, podFailurePolicy=policy))
    cluster.wait_for_pods("run", 2)

    end(ends, 0, 9)

    status_of(cluster, "run", failedIndexes="0", active=1)
    assert len([pod for pod in cluster.pods("run") if pod["status"]["phase"] == "Failed"]) == 1


def test_a_disruption_does_not_count(cluster: KubernetesCluster, api: RawClient, ends: Path) -> None:
    policy = {"rules": [IGNORE_DISRUPTIONS]}
    spec = {
        "backoffLimitPerIndex": 0,
        "podFailurePolicy": policy,
        "pod": {"terminationGracePeriodSeconds": 1},
    }
    api.post(JOBS, waiting_job("run", 2, ends, **spec))
    first = cluster.wait_for_pods("run", 2)[1]

    cluster.evict(first)

    def replaced() -> bool:
        running = [pod for pod in cluster.pods("run") if pod["status"].get("phase") == "Running"]
        return len(running) == 2 and first["metadata"]["uid"] not in {
            pod["metadata"]["uid"] for pod in running
        }

    eventually(replaced, "the pod to be replaced")
    status = status_of(cluster, "run", active=2, failedIndexes="")
    assert "failed" not in status
    end(ends, 0)
    end(ends, 1)
    cluster.wait_for_condition("run", "Complete")


def test_a_pod_is_replaced_only_when_it_has_ended(
    cluster: KubernetesCluster, api: RawClient, tmp_path: Path
) -> None:
    """DL-D04: with podReplacementPolicy Failed no two pods of an index run at once."""
    script = STUBBORN.format(go=tmp_path / "go")
    grace = {"terminationGracePeriodSeconds": 1}
    api.post(JOBS, job("run", 1, script, podReplacementPolicy="Failed", backoffLimit=3, pod=grace))
    old = cluster.wait_for_pods("run", 1)[0]["metadata"]
    eventually(lambda: "up" in api.http.get(f"{PODS}/{old['name']}/log").text, "the pod to print")
    version = api.get(PODS)["metadata"]["resourceVersion"]

    api.send("DELETE", f"{PODS}/{old['name']}")
    status_of(cluster, "run", terminating=1, ready=0)

    phases = []
    with api.watch(PODS, resourceVersion=version) as events:
        for event in events:
            if event["object"]["metadata"]["uid"] != old["uid"]:
                break
            phases.append(event["object"]["status"]["phase"])
    assert phases[-1] == "Failed"
    assert status_of(cluster, "run", terminating=0, active=1)["failed"] == 1


def test_by_default_a_pod_is_replaced_while_it_ends(
    cluster: KubernetesCluster, api: RawClient, tmp_path: Path
) -> None:
    script = STUBBORN.format(go=tmp_path / "go")
    api.post(JOBS, job("run", 1, script, backoffLimit=3, pod={"terminationGracePeriodSeconds": 5}))
    old = cluster.wait_for_pods("run", 1)[0]
    eventually(lambda: "up" in api.http.get(f"{PODS}/{old['metadata']['name']}/log").text, "the pod to print")

    api.send("DELETE", f"{PODS}/{old['metadata']['name']}")

    assert len(cluster.wait_for_pods("run", 2)) == 2
    (tmp_path / "go").touch()


def test_a_success_policy_ends_the_job_early(cluster: KubernetesCluster, api: RawClient, ends: Path) -> None:
    policy = {"rules": [{"succeededIndexes": "0,1", "succeededCount": 1}]}
    api.post(JOBS, waiting_job("run", 3, ends, successPolicy=policy))
    cluster.wait_for_pods("run", 3)

    end(ends, 1)

    done = cluster.wait_for_condition("run", "Complete")
    assert reasons(done) == {"SuccessCriteriaMet": "SuccessPolicy", "Complete": "SuccessPolicy"}
    assert (done["status"]["completedIndexes"], done["status"]["terminating"]) == ("1", 0)
    assert "failed" not in done["status"]


def test_a_suspended_job_has_no_pods_until_it_is_resumed(
    cluster: KubernetesCluster, api: RawClient, ends: Path
) -> None:
    labelled = waiting_job("run", 2, ends, suspend=True)
    labelled["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "gpus"}
    api.post(JOBS, labelled)
    suspended = cluster.wait_for_condition("run", "Suspended")
    assert (cluster.pods("run"), "startTime" in suspended["status"]) == ([], False)

    api.patch(f"{JOBS}/run", {"spec": {"suspend": False}})
    cluster.wait_for_pods("run", 2)
    assert "startTime" in cluster.job("run")["status"]
    assert not is_true(cluster.job("run"), "Suspended")

    api.patch(f"{JOBS}/run", {"spec": {"suspend": True}})
    eventually(lambda: not cluster.pods("run"), "the pods to go")
    assert "failed" not in cluster.wait_for_condition("run", "Suspended")["status"]


def test_parallelism_limits_what_runs_at_once(cluster: KubernetesCluster, api: RawClient, ends: Path) -> None:
    api.post(JOBS, waiting_job("run", 4, ends))
    api.patch(f"{JOBS}/run", {"spec": {"parallelism": 2}})
    status_of(cluster, "run", active=2)

    running = [
        int(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]) for pod in active(cluster)
    ]
    end(ends, running[0])

    assert status_of(cluster, "run", active=2, succeeded=1)


def active(cluster: KubernetesCluster) -> list[Json]:
    return [
        pod
        for pod in cluster.pods("run")
        if pod["status"]["phase"] in ("Pending", "Running") and "deletionTimestamp" not in pod["metadata"]
    ]


def test_an_elastic_job_grows_and_shrinks(cluster: KubernetesCluster, api: RawClient, ends: Path) -> None:
    api.post(JOBS, waiting_job("run", 2, ends))
    cluster.wait_for_pods("run", 2)

    api.patch(f"{JOBS}/run", {"spec": {"completions": 4, "parallelism": 4}})
    status_of(cluster, "run", active=4)
    api.patch(f"{JOBS}/run", {"spec": {"completions": 1, "parallelism": 1}})
    status = status_of(cluster, "run", active=1)

    assert "failed" not in status
    assert [
        pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] for pod in active(cluster)
    ] == ["0"]
    end(ends, 0)
    assert cluster.wait_for_condition("run", "Complete")["status"]["completedIndexes"] == "0"


def test_a_job_that_shrinks_to_what_is_done_is_complete(
    cluster: KubernetesCluster, api: RawClient, ends: Path
) -> None:
    api.post(JOBS, waiting_job("run", 2, ends))
    cluster.wait_for_pods("run", 2)
    end(ends, 0)
    status_of(cluster, "run", completedIndexes="0", active=1)

    api.patch(f"{JOBS}/run", {"spec": {"completions": 1, "parallelism": 1}})

    assert "failed" not in cluster.wait_for_condition("run", "Complete")["status"]


def test_a_deadline_ends_the_job(cluster: KubernetesCluster, api: RawClient) -> None:
    api.post(JOBS, job("run", 2, "sleep 600", activeDeadlineSeconds=3600))
    cluster.wait_for_pods("run", 2)

    cluster.advance(3600)

    done = cluster.wait_for_condition("run", "Failed")
    assert reasons(done) == {"FailureTarget": "DeadlineExceeded", "Failed": "DeadlineExceeded"}


def test_a_finished_job_goes_after_its_time_to_live(cluster: KubernetesCluster, api: RawClient) -> None:
    """DL-D16: after that the Job is not found, whatever became of it."""
    api.post(JOBS, job("run", 1, ttlSecondsAfterFinished=3600))
    cluster.wait_for_condition("run", "Complete")

    cluster.advance(3601)

    eventually(lambda: api.send("GET", f"{JOBS}/run")[0] == 404, "the Job to go")
    assert cluster.pods("run") == []


def test_a_job_that_another_controller_manages_is_left_alone(
    cluster: KubernetesCluster, api: RawClient
) -> None:
    api.post(JOBS, job("run", 1, managedBy="kueue.x-k8s.io/multikueue"))
    api.post(JOBS, job("other", 1))

    cluster.wait_for_condition("other", "Complete")

    assert (cluster.pods("run"), "status" in cluster.job("run")) == ([], False)


def test_a_rank_that_is_killed_is_tried_again(cluster: KubernetesCluster, api: RawClient, ends: Path) -> None:
    api.post(JOBS, waiting_job("run", 4, ends, backoffLimitPerIndex=1))
    victim = cluster.wait_for_pods("run", 4)[2]

    cluster.signal(victim, signal.SIGKILL)

    status_of(cluster, "run", failed=1, active=4)
    for rank in range(4):
        end(ends, rank)
    done = cluster.wait_for_condition("run", "Complete")
    assert (done["status"]["completedIndexes"], done["status"]["failedIndexes"]) == ("0-3", "")
    ended = next(pod for pod in cluster.pods("run") if pod["metadata"]["uid"] == victim["metadata"]["uid"])
    state = ended["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (state["exitCode"], state["reason"]) == (137, "Error")


def test_a_finished_job_cannot_be_put_back(cluster: KubernetesCluster, api: RawClient) -> None:
    api.post(JOBS, job("run", 1))
    cluster.wait_for_condition("run", "Complete")

    code, _ = api.patch(f"{JOBS}/run/status", {"status": {"conditions": []}})

    assert code == 422


def test_sixty_four_ranks_complete(cluster: KubernetesCluster, api: RawClient) -> None:
    api.post(JOBS, job("run", 64))

    assert cluster.wait_for_condition("run", "Complete")["status"]["completedIndexes"] == "0-63"

"""The Kubernetes server of the tests schedules and runs pods as the scheduler and a kubelet do."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.kubernetes_server import KubernetesCluster, NodeShape
from support.kubernetes_server.objects import condition
from support.waiting import eventually

from contract.kubernetes_samples import JOBS, PODS, SECRETS, Json, RawClient, job, pod, secret

FOREVER = 'trap "" TERM; echo up; while :; do sleep 0.05; done'
PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
TOLERATES = [{"key": "nvidia.com/gpu", "operator": "Exists"}]


def gpus(count: int) -> Json:
    return {"resources": {"limits": {"nvidia.com/gpu": count}}}


@pytest.fixture(scope="module")
def cluster() -> Iterator[KubernetesCluster]:
    nodes = [
        NodeShape("h100", gpus=2, labels={"nvidia.com/gpu.product": "H100"}, taints=[TAINT]),
        NodeShape("a100", gpus=2, labels={"nvidia.com/gpu.product": "A100"}, taints=[TAINT]),
        NodeShape("plain"),
    ]
    images = {"corral/hello:1": ["/bin/sh", "-c", 'echo hello "$@"', "hello"]}
    with KubernetesCluster(nodes, images) as started:
        yield started


@pytest.fixture(scope="module")
def api(cluster: KubernetesCluster) -> Iterator[RawClient]:
    opened = RawClient(cluster)
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def _leave_nothing(api: RawClient) -> Iterator[None]:
    yield
    api.send("DELETE", JOBS, propagationPolicy="Background")
    api.send("DELETE", PODS, {"gracePeriodSeconds": 0})
    eventually(lambda: not api.get(PODS)["items"], "an empty cluster")


def pod_in(api: RawClient, name: str, phase: str) -> Json:
    def look() -> Json | None:
        found = api.get(f"{PODS}/{name}")
        return found if found["status"].get("phase") == phase else None

    return eventually(look, lambda: f"{name} to be {phase}: {api.get(f'{PODS}/{name}')['status']}")


def waiting_for(api: RawClient, name: str, reason: str) -> str:
    """The message of a container that waits for this reason."""

    def look() -> Json | None:
        for status in api.get(f"{PODS}/{name}")["status"].get("containerStatuses", ()):
            waiting: Json = status["state"].get("waiting", {})
            if waiting.get("reason") == reason:
                return waiting
        return None

    return str(eventually(look, f"{name} to wait for {reason}").get("message", ""))


def terminated(found: Json) -> tuple[int, str]:
    state = found["status"]["containerStatuses"][0]["state"]["terminated"]
    return state["exitCode"], state["reason"]


def log(api: RawClient, name: str, **query: object) -> str:
    answer = api.http.get(f"{PODS}/{name}/log", params={key: str(value) for key, value in query.items()})
    return answer.text


def up(api: RawClient, name: str) -> None:
    eventually(lambda: "up" in log(api, name), f"{name} to print")


def test_gpus_are_given_once(cluster: KubernetesCluster, api: RawClient) -> None:
    """DL-D15: a rank that cannot be scheduled is pending, with the scheduler's words."""
    api.post(JOBS, job("run", 3, "sleep 600", main=gpus(2), pod={"tolerations": TOLERATES}))

    running = cluster.wait_for_pods("run", 2)
    waiting = cluster.wait_for_pods("run", 1, "Pending")[0]

    assert {one["spec"]["nodeName"] for one in running} == {"h100", "a100"}
    words = (
        "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available: "
        "3 No preemption victims found for incoming pod."
    )

    def refused() -> bool:
        found = condition(cluster.pods("run")[waiting_index(waiting)], "PodScheduled")
        return found is not None and (found["status"], found["reason"], found["message"]) == (
            "False",
            "Unschedulable",
            words,
        )

    eventually(refused, "the words of the scheduler")
    assert ("FailedScheduling", words) in cluster.events()
    cluster.signal(running[0], signal.SIGKILL)
    eventually(lambda: cluster.pods("run")[waiting_index(waiting)]["status"]["phase"] == "Running", "room")


def waiting_index(found: Json) -> int:
    return int(found["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"])


def test_taints_and_labels_keep_pods_away(api: RawClient) -> None:
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {
                        "matchExpressions": [
                            {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["H100"]}
                        ]
                    }
                ]
            }
        }
    }
    api.post(PODS, pod("tolerates", "sleep 600", affinity=affinity, tolerations=TOLERATES))
    api.post(PODS, pod("does-not", affinity=affinity))
    api.post(PODS, pod("nowhere", nodeSelector={"zone": "moon"}))

    assert pod_in(api, "tolerates", "Running")["spec"]["nodeName"] == "h100"
    said = eventually(lambda: condition(api.get(f"{PODS}/does-not"), "PodScheduled"), "a condition")[
        "message"
    ]
    assert said.startswith(
        "0/3 nodes are available: 1 node(s) had untolerated taint {nvidia.com/gpu: present}, "
        "2 node(s) didn't match Pod's node affinity/selector. preemption:"
    )
    said = eventually(lambda: condition(api.get(f"{PODS}/nowhere"), "PodScheduled"), "a condition")["message"]
    assert said.endswith("0/3 nodes are available: 3 Preemption is not helpful for scheduling.")


def test_more_important_pods_push_others_out(cluster: KubernetesCluster, api: RawClient) -> None:
    api.post(PRIORITIES, {"metadata": {"name": "urgent"}, "value": 1000})
    node = {"nodeSelector": {"nvidia.com/gpu.product": "A100"}, "tolerations": TOLERATES}
    low = {"terminationGracePeriodSeconds": 0, **node}
    policy = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}
    api.post(JOBS, job("low", 1, "sleep 600", main=gpus(2), pod=low, podFailurePolicy=policy))
    victim = cluster.wait_for_pods("low", 1)[0]

    with api.watch(PODS, fieldSelector=f"metadata.name={victim['metadata']['name']}") as events:
        api.post(PODS, pod("high", "sleep 600", main=gpus(1), priorityClassName="urgent", **node))
        last = next(event["object"] for event in events if event["type"] == "DELETED")

    target = condition(last, "DisruptionTarget")
    assert target is not None
    assert (target["status"], target["reason"]) == ("True", "PreemptionByScheduler")
    assert pod_in(api, "high", "Running")["spec"]["priority"] == 1000
    waiting = cluster.wait_for_pods("low", 1, "Pending")[0]
    assert waiting["metadata"]["uid"] != victim["metadata"]["uid"]
    assert "failed" not in cluster.job("low")["status"]


def test_an_image_that_does_not_exist_is_told(cluster: KubernetesCluster, api: RawClient) -> None:
    """DL-D18."""
    api.post(PODS, pod("wrong", main={"image": "corral/none:1"}))

    assert waiting_for(api, "wrong", "ImagePullBackOff") == 'Back-off pulling image "corral/none:1"'
    assert api.get(f"{PODS}/wrong")["status"]["phase"] == "Pending"
    assert any(
        reason == "Failed" and 'failed to resolve reference "docker.io/corral/none:1"' in message
        for reason, message in cluster.events()
    )
    assert "trying and failing to pull image" in log(api, "wrong")


def test_an_image_has_a_command_of_its_own(api: RawClient) -> None:
    body = pod(
        "hello",
        main={"image": "corral/hello:1", "args": ["rank", "$(N)"], "env": [{"name": "N", "value": "3"}]},
    )
    del body["spec"]["containers"][0]["command"]
    api.post(PODS, body)

    pod_in(api, "hello", "Succeeded")
    assert log(api, "hello") == "hello rank 3\n"


def test_a_pod_that_takes_too_much_memory_is_killed(api: RawClient) -> None:
    """DL-D18."""
    limits = {"resources": {"limits": {"memory": "60Mi"}}}
    script = 'exec python3 -c "import time; x = bytearray(200_000_000); time.sleep(600)"'
    api.post(PODS, pod("large", script, main=limits))

    assert terminated(pod_in(api, "large", "Failed")) == (137, "OOMKilled")


@pytest.mark.parametrize(
    ("script", "end"),
    [("exit 3", (3, "Error")), ("kill -SEGV $$$$", (139, "Error")), ("true", (0, "Completed"))],
)
def test_exit_codes_are_the_real_ones(api: RawClient, script: str, end: tuple[int, str]) -> None:
    """DL-D18."""
    api.post(PODS, pod("one", script))

    assert terminated(pod_in(api, "one", "Succeeded" if end[0] == 0 else "Failed")) == end


def test_a_command_that_is_not_there_fails(api: RawClient) -> None:
    api.post(PODS, pod("one", main={"command": ["/nowhere/program"]}))

    assert terminated(pod_in(api, "one", "Failed"))[0] == 128


def test_secrets_come_as_variables(api: RawClient) -> None:
    reference = {"secretKeyRef": {"name": "run-token", "key": "token"}}
    main = {
        "env": [{"name": "TOKEN", "valueFrom": reference}],
        "envFrom": [{"prefix": "S_", "secretRef": {"name": "run-token"}}],
    }
    api.post(PODS, pod("one", "echo $TOKEN $S_token", main=main))
    assert waiting_for(api, "one", "CreateContainerConfigError") == 'secret "run-token" not found'

    api.post(SECRETS, secret("run-token", token="secret-value"))

    pod_in(api, "one", "Succeeded")
    assert log(api, "one") == "secret-value secret-value\n"
    api.send("DELETE", f"{SECRETS}/run-token")


def test_a_volume_that_is_missing_holds_the_pod(cluster: KubernetesCluster, api: RawClient) -> None:
    api.post(PODS, pod("one", volumes=[{"name": "key", "secret": {"secretName": "none"}}]))

    waiting_for(api, "one", "ContainerCreating")
    said = 'MountVolume.SetUp failed for volume "key" : secret "none" not found'
    assert eventually(lambda: ("FailedMount", said) in cluster.events(), "an event")


def test_pods_that_cannot_be_made_are_told_in_events(cluster: KubernetesCluster, api: RawClient) -> None:
    api.post(JOBS, job("run", 1, pod={"serviceAccountName": "nobody"}))

    said = eventually(
        lambda: [message for reason, message in cluster.events() if reason == "FailedCreate"], "an event"
    )

    assert 'serviceaccount "nobody" not found' in said[0]
    api.post("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "nobody"}})
    cluster.wait_for_condition("run", "Complete")


def test_grace_ends_with_a_kill(api: RawClient) -> None:
    api.post(PODS, pod("stubborn", FOREVER, terminationGracePeriodSeconds=1))
    up(api, "stubborn")

    with api.watch(PODS, fieldSelector="metadata.name=stubborn") as events:
        api.send("DELETE", f"{PODS}/stubborn")
        last = next(event["object"] for event in events if event["type"] == "DELETED")

    assert (last["status"]["phase"], terminated(last)) == ("Failed", (137, "Error"))


def test_a_pod_takes_all_its_processes_along(api: RawClient, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    api.post(PODS, pod("parent", f"setsid sleep 600 & echo $! > {pid_file}; echo up; sleep 600"))
    up(api, "parent")
    child = int(pid_file.read_text())
    assert psutil.pid_exists(child)

    api.send("DELETE", f"{PODS}/parent", {"gracePeriodSeconds": 0})

    eventually(lambda: not _runs(child), "the child to end")


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_container_that_may_restart_does(api: RawClient, tmp_path: Path) -> None:
    once = tmp_path / "once"
    script = f"if [ -e {once} ]; then echo second; else touch {once}; echo first; exit 5; fi"
    api.post(PODS, pod("again", script, restartPolicy="OnFailure"))

    status = pod_in(api, "again", "Succeeded")["status"]["containerStatuses"][0]

    assert (status["restartCount"], status["lastState"]["terminated"]["exitCode"]) == (1, 5)
    assert (log(api, "again"), log(api, "again", previous="true")) == ("second\n", "first\n")


def test_logs_can_be_cut_and_followed(api: RawClient, tmp_path: Path) -> None:
    """DL-D30."""
    script = f"echo a; echo b; echo c; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo d"
    api.post(PODS, pod("talks", script))
    eventually(lambda: log(api, "talks") == "a\nb\nc\n", "three lines")

    assert log(api, "talks", tailLines=2) == "b\nc\n"
    assert log(api, "talks", limitBytes=3) == "a\nb"
    stamp, _, line = log(api, "talks", timestamps="true", tailLines=1).partition(" ")
    assert (stamp[4], stamp[-1], line) == ("-", "Z", "c\n")
    with api.http.stream("GET", f"{PODS}/talks/log", params={"follow": "true"}) as answer:
        (tmp_path / "go").touch()
        assert list(answer.iter_lines()) == ["a", "b", "c", "d"]
    assert "is not valid for pod talks" in log(api, "talks", container="other")


def test_a_node_short_of_memory_evicts(api: RawClient, cluster: KubernetesCluster) -> None:
    api.post(PODS, pod("one", "echo up; sleep 600"))
    up(api, "one")

    cluster.press_out(api.get(f"{PODS}/one"))

    found = pod_in(api, "one", "Failed")
    target = condition(found, "DisruptionTarget")
    assert target is not None
    assert (found["status"]["reason"], target["reason"]) == ("Evicted", "TerminationByKubelet")


def test_an_eviction_is_asked_for_by_the_api(api: RawClient) -> None:
    api.post(PODS, pod("one", FOREVER, terminationGracePeriodSeconds=1))
    up(api, "one")

    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "one"}}
    api.post(f"{PODS}/one/eviction", eviction)

    target = condition(api.get(f"{PODS}/one"), "DisruptionTarget")
    assert target is not None
    assert target["reason"] == "EvictionByEvictionAPI"
    eventually(lambda: api.send("GET", f"{PODS}/one")[0] == 404, "the pod to go")


def test_pods_of_a_lost_node_are_disrupted(cluster: KubernetesCluster, api: RawClient) -> None:
    cluster.add_node(NodeShape("brittle", labels={"pool": "brittle"}))
    policy = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}
    api.post(
        JOBS, job("run", 1, "sleep 600", pod={"nodeSelector": {"pool": "brittle"}}, podFailurePolicy=policy)
    )
    lost = cluster.wait_for_pods("run", 1)[0]
    process = cluster.kubelet.containers(lost)[0].pid

    cluster.lose_node("brittle")

    waiting = cluster.wait_for_pods("run", 1, "Pending")[0]
    assert waiting["metadata"]["uid"] != lost["metadata"]["uid"]
    assert "failed" not in cluster.job("run")["status"]
    eventually(lambda: not _runs(process), "the process to end")


def test_nothing_of_a_cluster_is_left() -> None:
    with KubernetesCluster() as short:
        opened = RawClient(short)
        opened.post(PODS, pod("one", FOREVER))
        up(opened, "one")
        process = short.kubelet.containers(opened.get(f"{PODS}/one"))[0].pid
        opened.close()

    assert not _runs(process)
    assert not os.path.exists(short.folder)

"""What the Kubernetes executor makes of an order: each field that matters, and any name that there may be."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.kubernetes_server.defaults import apply_defaults, select_pods_of_job
from support.kubernetes_server.resources import resource_of
from support.kubernetes_server.schema import decode
from support.kubernetes_server.validation import validate_new

from corral.adapters.executors.kubernetes.executor import KubernetesExecutor
from corral.adapters.executors.kubernetes.manifest import job_manifest, secret_manifest
from corral.adapters.executors.kubernetes.names import JobHandle, job_name, label_value
from corral.adapters.executors.kubernetes.options import ExtraVolume, KubernetesOptions
from corral.bootstrap.executors import InstalledExecutors
from corral.domain.errors import InvalidInput
from corral.domain.hosts.capability import GIB, Requirements
from corral.domain.placements.orders import LaunchOrder
from corral.domain.placements.placements import ExecutorKind, ExecutorRecord

Json = dict[str, Any]
OPTIONS = KubernetesOptions(image="corral/worker:1")
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def order(**changes: Any) -> LaunchOrder:
    made = LaunchOrder(
        key="p-1",
        installation="home",
        run_id="r-1",
        run_name="a run",
        project="lab",
        ranks=4,
        min_ranks=4,
        need=Requirements(),
        command=("python", "-m", "corral.worker"),
        environ={},
        tokens=("a", "b", "c", "d"),
    )
    return made._replace(**changes)


def made(options: KubernetesOptions = OPTIONS, models: tuple[str, ...] = (), **changes: Any) -> Json:
    return accepted(job_manifest(order(**changes), options, gpu_models=models), "jobs", "batch")


def accepted(body: Json, plural: str, group: str = "") -> Json:
    """As the API server has it after its schema and its rules."""
    resource = resource_of(plural, group)
    found = decode(
        resource.definition, body, kind=resource.kind, group=resource.group, version=resource.version
    )
    found["metadata"] |= {"uid": "u", "namespace": "default"}
    apply_defaults(resource, found)
    if plural == "jobs":
        select_pods_of_job(found)
    validate_new(resource, found)
    return found


def pod_of(job: Json) -> Json:
    found: Json = job["spec"]["template"]["spec"]
    return found


def worker_of(job: Json) -> Json:
    found: Json = pod_of(job)["containers"][0]
    return found


def test_the_job_is_one_indexed_job_that_tells_its_ranks_apart() -> None:
    """DL-C15, DL-D14, DL-D32: a rank fails for itself; disruptions do not count; no two pods of a rank."""
    spec = made(limit_s=90.2)["spec"]

    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 4, 4)
    assert (spec["backoffLimitPerIndex"], spec["maxFailedIndexes"]) == (0, 0)
    assert spec["podFailurePolicy"]["rules"][0]["action"] == "Ignore"
    assert spec["podFailurePolicy"]["rules"][0]["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert (spec["podReplacementPolicy"], spec["suspend"]) == ("Failed", True)
    assert (spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"]) == (91, 86_400)
    assert "activeDeadlineSeconds" not in made()["spec"]


def test_an_elastic_order_may_lose_what_it_can_do_without() -> None:
    """DL-D14."""
    assert made(min_ranks=1)["spec"]["maxFailedIndexes"] == 4


def test_the_pod_is_nobody_and_may_do_nothing() -> None:
    """DL-D32: as the restricted standard of Kubernetes asks for, and a little more."""
    pod = pod_of(made(grace_s=45.5))
    context = worker_of(made())["securityContext"]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == 10001
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert (context["allowPrivilegeEscalation"], context["privileged"]) == (False, False)
    assert (pod["automountServiceAccountToken"], pod["enableServiceLinks"]) == (False, False)
    assert (pod["restartPolicy"], pod["terminationGracePeriodSeconds"]) == ("Never", 46)


def test_restart_never_is_what_our_failure_policy_needs_and_not_indexed_jobs() -> None:
    """DL-D19: an Indexed Job with OnFailure is legal; one with a policy of failures is not."""
    body = job_manifest(order(), OPTIONS, gpu_models=())
    body["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"
    with pytest.raises(Exception, match='only "Never" is supported when podFailurePolicy is specified'):
        accepted(body, "jobs", "batch")

    for name in ("podFailurePolicy", "backoffLimitPerIndex", "maxFailedIndexes"):
        del body["spec"][name]

    assert accepted(body, "jobs", "batch")["spec"]["completionMode"] == "Indexed"


def test_ranks_get_what_they_asked_for_and_the_worker_its_own() -> None:
    """DL-C16, DL-D25, DL-D32: as quantities in texts; memory is no more than promised."""
    need = Requirements(gpus=8, min_cores=4, min_ram_bytes=16 * GIB, min_disk_bytes=100 * GIB)
    resources = worker_of(made(need=need))["resources"]

    with_worker = str(16 * GIB + (512 << 20))
    assert resources["requests"]["cpu"] == "4000m"
    assert "cpu" not in resources["limits"]
    assert resources["requests"]["memory"] == resources["limits"]["memory"] == with_worker
    assert resources["limits"]["ephemeral-storage"] == str(100 * GIB)
    assert resources["limits"]["nvidia.com/gpu"] == "8"


def test_gpus_are_found_by_labels() -> None:
    """DL-D25: model, memory and compute capability, of any vendor's resource."""
    need = Requirements(gpus=1, gpu=("H100",), min_vram_bytes=40 * GIB, min_compute_capability="8.9")
    options = KubernetesOptions(image="i", gpu_resource="amd.com/gpu", gpu_label="amd.com/gpu.product-name")
    pod = pod_of(made(options, ("NVIDIA-H100",), need=need))
    strict = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    terms = [
        [(one["key"], one["operator"], one["values"]) for one in term["matchExpressions"]]
        for term in strict["nodeSelectorTerms"]
    ]

    model = ("amd.com/gpu.product-name", "In", ["NVIDIA-H100"])
    memory = ("nvidia.com/gpu.memory", "Gt", ["40959"])
    major = "nvidia.com/gpu.compute.major"
    assert terms == [
        [model, memory, (major, "Gt", ["8"])],
        [model, memory, (major, "In", ["8"]), ("nvidia.com/gpu.compute.minor", "Gt", ["8"])],
    ]
    assert pod["tolerations"] == [{"key": "amd.com/gpu", "operator": "Exists"}]
    assert "affinity" not in pod_of(made(need=Requirements(gpus=1)))


def test_all_that_the_options_name_is_in_the_pod() -> None:
    """DL-C15, DL-D32: account, priority, runtime, pull secrets, volumes, shared memory, spread."""
    options = KubernetesOptions(
        image="i",
        service_account="irsa",
        priority_class="low",
        runtime_class="nvidia",
        pull_secrets=("registry",),
        node_selector={"pool": "train"},
        labels={"nvme": {"disk": "nvme"}},
        tolerations=({"key": "train", "operator": "Exists", "effect": "NoSchedule"},),
        spread_over="kubernetes.io/hostname",
        volumes=(ExtraVolume("data", "/data", {"persistentVolumeClaim": {"claimName": "data"}}, True),),
        shm_bytes=GIB,
    )
    job = made(options, need=Requirements(labels=("nvme",), arch="x86_64"))
    pod = pod_of(job)
    volumes = {one["name"]: one for one in pod["volumes"]}
    mounts = {one["name"]: one for one in worker_of(job)["volumeMounts"]}

    assert (pod["serviceAccountName"], pod["priorityClassName"], pod["runtimeClassName"]) == (
        "irsa",
        "low",
        "nvidia",
    )
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["nodeSelector"] == {"pool": "train", "disk": "nvme", "kubernetes.io/arch": "amd64"}
    assert pod["tolerations"][0]["key"] == "train"
    assert pod["topologySpreadConstraints"][0]["topologyKey"] == "kubernetes.io/hostname"
    assert volumes["data"]["persistentVolumeClaim"]["claimName"] == "data"
    assert mounts["data"] == {"name": "data", "mountPath": "/data", "readOnly": True}
    assert volumes["corral-shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": str(GIB)}
    assert mounts["corral-shm"]["mountPath"] == "/dev/shm"
    noted = job["spec"]["template"]["metadata"]["annotations"]
    assert noted["karpenter.sh/do-not-disrupt"] == "true"
    assert noted["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"


def test_tokens_are_a_file_per_rank_that_the_owner_reads() -> None:
    """DL-D32."""
    secret = accepted(secret_manifest(order(), owner_uid="u-1"), "secrets")
    volume = next(one for one in pod_of(made())["volumes"] if one["name"] == "corral-tokens")

    assert {key: base64.b64decode(text).decode() for key, text in secret["data"].items()} == {
        "0": "a",
        "1": "b",
        "2": "c",
        "3": "d",
    }
    assert secret["metadata"]["ownerReferences"][0]["uid"] == "u-1"
    assert (volume["secret"]["secretName"], volume["secret"]["defaultMode"]) == (
        secret["metadata"]["name"],
        0o400,
    )


def test_words_reach_the_worker_as_they_are_and_no_variable_of_ours_is_lost() -> None:
    """DL-D24: Kubernetes would replace `$(NAME)`; the rank comes from the index, whatever the run says."""
    odd = {"A": "$(PATH) $$ $HOME", "CORRAL_PLACED_RANK": "7", "CORRAL_PLACED_TOKENS": "/tmp"}
    worker = worker_of(made(command=("sh", "-c", "echo $(A)"), environ=odd))
    variables = {one["name"]: one for one in worker["env"]}

    assert worker["command"] == ["sh", "-c", "echo $$(A)"]
    assert variables["A"]["value"] == "$$(PATH) $$$$ $$HOME"
    assert variables["CORRAL_PLACED_TOKENS"]["value"] == "/var/run/secrets/corral/tokens"
    path = variables["CORRAL_PLACED_RANK"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert len(variables) == len(worker["env"]) == 3


def test_reserved_labels_are_left_to_their_owner() -> None:
    """DL-D23: `job-name` and its successor are the controller's."""
    labels = job_manifest(order(), OPTIONS, gpu_models=())["metadata"]["labels"]

    assert not any("job-name" in key for key in labels)


ANY = st.text(max_size=200)


@given(
    key=ANY.filter(bool), run_id=ANY, name=ANY, project=ANY, installation=ANY, ranks=st.integers(1, 99_999)
)
def test_any_text_gives_a_legal_job(
    key: str, run_id: str, name: str, project: str, installation: str, ranks: int
) -> None:
    """DL-D23: names, labels and hostnames with the highest index."""
    job = made(key=key, run_id=run_id, run_name=name, project=project, installation=installation, ranks=ranks)

    assert LABEL.fullmatch(f"{job['metadata']['name']}-{ranks - 1}")
    assert len(f"{job['metadata']['name']}-{ranks - 1}") <= 63


@given(one=ANY, other=ANY)
def test_two_texts_never_become_the_same_name(one: str, other: str) -> None:
    """DL-D23, DL-D27."""
    assert (job_name(one) == job_name(other)) is (one == other)
    assert (label_value(one) == label_value(other)) is (one == other)


def test_what_the_product_makes_is_kept_as_it_is() -> None:
    assert (
        job_name("p-0123456789abcdef0123456789abcdef0123") == "corral-p-0123456789abcdef0123456789abcdef0123"
    )
    handle = JobHandle("ns", "home", "corral-p-1")
    assert JobHandle.parse(str(handle)) == handle
    assert JobHandle.parse("nonsense") is None


def read(given: Json) -> KubernetesOptions:
    """As an operator's words for a new executor are read."""
    options = InstalledExecutors().checked(ExecutorKind.KUBERNETES, {"url": "https://corral.test", **given})
    record = ExecutorRecord("k8s", ExecutorKind.KUBERNETES, json.dumps(options), 0.0, "user:ada")
    made = InstalledExecutors().open(record)
    assert isinstance(made, KubernetesExecutor)
    return made._options


def test_options_are_read_from_what_was_written() -> None:
    volume = {"name": "data", "mount_path": "/data", "source": {"emptyDir": {}}}
    given = {
        "image": "i",
        "restarts": 2,
        "cpu": 0.5,
        "volumes": [volume],
        "pull_secrets": ["a"],
        "queue": None,
    }

    found = read(given)

    assert (found.image, found.restarts, found.cpu, found.queue) == ("i", 2, 0.5, None)
    assert found.volumes == (ExtraVolume("data", "/data", {"emptyDir": {}}),)
    assert read({}) == KubernetesOptions()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"imagee": "x"}, "imagee is not an option"),
        ({"image": 3}, "image must be a string"),
        ({"restarts": "two"}, "restarts must be a whole number"),
        ({"autoscales": "perhaps"}, "autoscales must be true or false"),
        ({"user": 0}, "workers never run as root"),
        ({"keep_s": -1}, "keep_s is -1; it must not be negative"),
        ({"volumes": [{"name": "x", "source": {}}]}, "volumes.0.mount_path is required"),
        ({"volumes": [{"nam": "x"}]}, "volumes.0.nam is not a known key"),
        ({"labels": {"a": "b"}}, "labels.a must be a table"),
        ({"pull_secrets": "one"}, "pull_secrets must be a list"),
    ],
)
def test_wrong_options_are_named(given: Json, words: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(words)):
        read(given)

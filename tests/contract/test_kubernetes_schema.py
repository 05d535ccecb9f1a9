"""The Kubernetes server of the tests refuses what the API refuses, by its field and in its words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.kubernetes_server import KubernetesCluster

from contract.kubernetes_samples import (
    JOBS,
    Json,
    RawClient,
    container,
    job,
    pod,
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[KubernetesCluster]:
    with KubernetesCluster() as started:
        yield started


@pytest.fixture(scope="module")
def api(cluster: KubernetesCluster) -> Iterator[RawClient]:
    client = RawClient(cluster)
    yield client
    client.close()


def changed(obj: Json, path: str, value: Any) -> Json:
    """The object with one field set: `spec.template.spec.containers.0.image`."""
    *way, last = path.split(".")
    target: Any = obj
    for step in way:
        target = target[int(step)] if isinstance(target, list) else target.setdefault(step, {})
    target[int(last) if isinstance(target, list) else last] = value
    return obj


MAIN = "spec.template.spec.containers.0"
POD = "spec.template.spec"
UNREADABLE = [
    ("spec.replicas", 2, 'strict decoding error: unknown field "spec.replicas"'),
    (f"{MAIN}.gpus", 1, 'unknown field "spec.template.spec.containers[0].gpus"'),
    ("metadata.lables", {}, 'unknown field "metadata.lables"'),
    (
        "spec.parallelism",
        "2",
        "cannot unmarshal string into Go struct field spec.parallelism of type integer",
    ),
    ("spec.parallelism", 2.5, "cannot unmarshal number into Go struct field spec.parallelism"),
    ("spec.parallelism", True, "cannot unmarshal bool into Go struct field spec.parallelism"),
    (
        "spec.parallelism",
        2**31,
        "cannot unmarshal number 2147483648 into Go struct field spec.parallelism of type int32",
    ),
    ("spec.suspend", "yes", "cannot unmarshal string into Go struct field spec.suspend of type boolean"),
    (f"{MAIN}.command", "true", "of type array"),
    (f"{MAIN}.env", [{"name": "RANK", "value": 3}], "cannot unmarshal number into Go struct field"),
    (f"{MAIN}.resources", {"limits": {"memory": "4 GB"}}, "quantities must match the regular expression"),
    ("metadata.labels", {"rank": 1}, "metadata.labels.rank of type string"),
]


@pytest.mark.parametrize(("path", "value", "said"), UNREADABLE)
def test_what_the_schema_does_not_have_is_refused(api: RawClient, path: str, value: Any, said: str) -> None:
    code, status = api.send("POST", JOBS, changed(job("wrong"), path, value))

    assert (code, status["reason"]) == (400, "BadRequest")
    assert said in status["message"]


INVALID = [
    ("metadata.name", "Run_1", "metadata.name", "FieldValueInvalid"),
    ("metadata.name", "a" * 62, "metadata.name", "FieldValueInvalid"),
    ("metadata.labels", {"run": "a b"}, "metadata.labels", "FieldValueInvalid"),
    ("metadata.labels", {"-run": "a"}, "metadata.labels", "FieldValueInvalid"),
    ("metadata.labels", {"run": "a" * 64}, "metadata.labels", "FieldValueInvalid"),
    ("metadata.annotations", {"run": "a" * 300_000}, "metadata.annotations", "FieldValueTooLong"),
    ("metadata.finalizers", ["mine"], "metadata.finalizers[0]", "FieldValueInvalid"),
    ("spec.parallelism", -1, "spec.parallelism", "FieldValueInvalid"),
    ("spec.completionMode", "Ranked", "spec.completionMode", "FieldValueNotSupported"),
    ("spec.completions", None, "spec.completions", "FieldValueRequired"),
    ("spec.maxFailedIndexes", 1, "spec.backoffLimitPerIndex", "FieldValueRequired"),
    ("spec.selector", {"matchLabels": {"a": "b"}}, "spec.selector", "FieldValueInvalid"),
    ("spec.podReplacementPolicy", "Never", "spec.podReplacementPolicy", "FieldValueNotSupported"),
    ("spec.managedBy", "kueue", "spec.managedBy", "FieldValueInvalid"),
    (f"{POD}.restartPolicy", "Always", f"{POD}.restartPolicy", "FieldValueRequired"),
    (f"{POD}.restartPolicy", "Sometimes", f"{POD}.restartPolicy", "FieldValueNotSupported"),
    (f"{POD}.containers", [], f"{POD}.containers", "FieldValueRequired"),
    (f"{POD}.containers", [container(), container()], f"{POD}.containers[1].name", "FieldValueDuplicate"),
    (f"{POD}.containers", [{"image": "x"}], f"{POD}.containers[0].name", "FieldValueRequired"),
    (f"{MAIN}.name", "Main", f"{POD}.containers[0].name", "FieldValueInvalid"),
    (f"{MAIN}.image", "", f"{POD}.containers[0].image", "FieldValueRequired"),
    (
        f"{MAIN}.imagePullPolicy",
        "Sometimes",
        f"{POD}.containers[0].imagePullPolicy",
        "FieldValueNotSupported",
    ),
    (f"{MAIN}.env", [{"name": "A=B", "value": ""}], f"{POD}.containers[0].env[0].name", "FieldValueInvalid"),
    (
        f"{MAIN}.env",
        [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        f"{POD}.containers[0].env[0].valueFrom",
        "FieldValueInvalid",
    ),
    (
        f"{MAIN}.env",
        [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.rank"}}}],
        f"{POD}.containers[0].env[0].valueFrom.fieldRef.fieldPath",
        "FieldValueNotSupported",
    ),
    (
        f"{MAIN}.volumeMounts",
        [{"name": "shm", "mountPath": "/dev/shm"}],
        f"{POD}.containers[0].volumeMounts[0].name",
        "FieldValueNotFound",
    ),
    (f"{POD}.volumes", [{"name": "shm"}], f"{POD}.volumes[0]", "FieldValueRequired"),
    (
        f"{POD}.volumes",
        [{"name": "shm", "emptyDir": {"medium": "Disk"}}],
        f"{POD}.volumes[0].emptyDir.medium",
        "FieldValueNotSupported",
    ),
    (
        f"{MAIN}.resources",
        {"requests": {"nvidia.com/gpu": 1}},
        f"{POD}.containers[0].resources.limits",
        "FieldValueRequired",
    ),
    (
        f"{MAIN}.resources",
        {"limits": {"nvidia.com/gpu": "500m"}},
        f"{POD}.containers[0].resources.limits[nvidia.com/gpu]",
        "FieldValueInvalid",
    ),
    (
        f"{MAIN}.resources",
        {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}},
        f"{POD}.containers[0].resources.requests",
        "FieldValueInvalid",
    ),
    (
        f"{MAIN}.resources",
        {"limits": {"gpu": 1}},
        f"{POD}.containers[0].resources.limits[gpu]",
        "FieldValueInvalid",
    ),
    (f"{POD}.nodeSelector", {"gpu": "a b"}, f"{POD}.nodeSelector", "FieldValueInvalid"),
    (
        f"{POD}.tolerations",
        [{"key": "gpu", "operator": "Exists", "value": "x"}],
        f"{POD}.tolerations[0].operator",
        "FieldValueInvalid",
    ),
    (
        f"{POD}.tolerations",
        [{"key": "gpu", "effect": "Never"}],
        f"{POD}.tolerations[0].effect",
        "FieldValueNotSupported",
    ),
    (f"{POD}.terminationGracePeriodSeconds", -1, f"{POD}.terminationGracePeriodSeconds", "FieldValueInvalid"),
    (f"{POD}.priorityClassName", "Very High", f"{POD}.priorityClassName", "FieldValueInvalid"),
]


@pytest.mark.parametrize(("path", "value", "field", "reason"), INVALID)
def test_what_the_rules_forbid_is_refused_by_its_field(
    api: RawClient, path: str, value: Any, field: str, reason: str
) -> None:
    code, status = api.send("POST", JOBS, changed(job("wrong"), path, value))

    assert (code, status["reason"], status["details"]["kind"]) == (422, "Invalid", "Job")
    assert (field, reason) in [(cause["field"], cause["reason"]) for cause in status["details"]["causes"]]


POLICIES: list[tuple[Json, str]] = [
    (
        {
            "podFailurePolicy": {
                "rules": [{"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [1]}}]
            }
        },
        "spec.podFailurePolicy.rules[0].action",
    ),
    ({"podFailurePolicy": {"rules": [{"action": "Ignore"}]}}, "spec.podFailurePolicy.rules[0]"),
    (
        {
            "podFailurePolicy": {
                "rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [0]}}]
            }
        },
        "spec.podFailurePolicy.rules[0].onExitCodes.values[0]",
    ),
    (
        {
            "podFailurePolicy": {
                "rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3, 2]}}]
            }
        },
        "spec.podFailurePolicy.rules[0].onExitCodes.values",
    ),
    (
        {
            "podFailurePolicy": {
                "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]
            },
            "podReplacementPolicy": "TerminatingOrFailed",
        },
        "spec.podReplacementPolicy",
    ),
    (
        {"successPolicy": {"rules": [{"succeededIndexes": "0-9"}]}},
        "spec.successPolicy.rules[0].succeededIndexes",
    ),
    ({"successPolicy": {"rules": [{"succeededCount": 5}]}}, "spec.successPolicy.rules[0].succeededCount"),
    ({"successPolicy": {"rules": []}}, "spec.successPolicy.rules"),
    ({"backoffLimitPerIndex": 1, "maxFailedIndexes": 9}, "spec.maxFailedIndexes"),
    ({"backoffLimitPerIndex": 1, "completionMode": "NonIndexed"}, "spec.backoffLimitPerIndex"),
]


@pytest.mark.parametrize(("spec", "field"), POLICIES)
def test_policies_that_contradict_themselves_are_refused(api: RawClient, spec: Json, field: str) -> None:
    code, status = api.send("POST", JOBS, job("wrong", 4, **spec))

    assert code == 422
    assert field in [cause["field"] for cause in status["details"]["causes"]]


def test_a_policy_needs_pods_that_do_not_restart(api: RawClient) -> None:
    rules = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}
    code, status = api.send(
        "POST", JOBS, job("wrong", pod={"restartPolicy": "OnFailure"}, podFailurePolicy=rules)
    )

    assert code == 422
    assert 'only "Never" is supported when podFailurePolicy is specified' in status["message"]


def test_on_failure_is_legal_for_an_indexed_job(api: RawClient) -> None:
    """DL-D19: restartPolicy Never is not required."""
    made = api.post(JOBS, job("on-failure", pod={"restartPolicy": "OnFailure"}), dryRun="All")

    assert made["spec"]["template"]["spec"]["restartPolicy"] == "OnFailure"


def test_all_causes_are_told_at_once(api: RawClient) -> None:
    body = changed(changed(job("wrong"), f"{MAIN}.image", ""), "spec.parallelism", -1)

    causes = api.send("POST", JOBS, body)[1]["details"]["causes"]

    assert {cause["field"] for cause in causes} == {"spec.parallelism", f"{POD}.containers[0].image"}


@pytest.mark.parametrize(
    ("ranks", "length", "code"), [(10, 61, 201), (10, 62, 422), (100, 60, 201), (100, 61, 422)]
)
def test_the_name_of_a_job_leaves_room_for_its_indexes(
    api: RawClient, ranks: int, length: int, code: int
) -> None:
    """DL-D23: the hostname of the last pod, name and index, has at most 63 characters."""
    assert api.send("POST", JOBS, job("a" * length, ranks), dryRun="All")[0] == code


def test_defaults_are_those_of_the_api_server(api: RawClient) -> None:
    made = api.post(
        JOBS, job("defaults", 2, main={"resources": {"limits": {"nvidia.com/gpu": 1}}}), dryRun="All"
    )

    spec, uid = made["spec"], made["metadata"]["uid"]
    names = ("backoffLimit", "suspend", "manualSelector", "podReplacementPolicy")
    assert [spec[name] for name in names] == [6, False, False, "TerminatingOrFailed"]
    assert spec["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    assert spec["template"]["metadata"]["labels"] == {
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": "defaults",
        "controller-uid": uid,
        "job-name": "defaults",
    }
    filled = spec["template"]["spec"]
    assert (filled["terminationGracePeriodSeconds"], filled["dnsPolicy"]) == (30, "ClusterFirst")
    main = filled["containers"][0]
    assert main["imagePullPolicy"] == "IfNotPresent"
    assert main["resources"]["requests"] == {"nvidia.com/gpu": "1"}


def test_other_limits_have_other_defaults(api: RawClient) -> None:
    rules = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}
    made = api.post(JOBS, job("defaults", 2, backoffLimitPerIndex=1, podFailurePolicy=rules), dryRun="All")

    assert made["spec"]["backoffLimit"] == 2**31 - 1
    assert made["spec"]["podReplacementPolicy"] == "Failed"
    assert made["spec"]["podFailurePolicy"]["rules"][0]["onPodConditions"][0]["status"] == "True"


def test_nothing_is_kept_of_a_dry_run(api: RawClient) -> None:
    api.post(JOBS, job("dry"), dryRun="All")

    assert api.send("GET", f"{JOBS}/dry")[0] == 404


def test_what_a_job_is_cannot_be_changed(api: RawClient) -> None:
    api.post(JOBS, job("fixed", 3, backoffLimitPerIndex=1, suspend=True))
    path = f"{JOBS}/fixed"
    wrong = [
        {"completions": 4},
        {"completionMode": "NonIndexed"},
        {"backoffLimitPerIndex": 2},
        {"template": {"spec": {"terminationGracePeriodSeconds": 1}}},
        {"managedBy": "example.com/other"},
    ]
    for spec in wrong:
        code, status = api.patch(path, {"spec": spec})
        assert (code, status["reason"]) == (422, "Invalid"), spec
        assert "field is immutable" in status["message"] or "in tandem with" in status["message"]

    right: list[Json] = [
        {"parallelism": 1},
        {"activeDeadlineSeconds": 60},
        {"completions": 5, "parallelism": 5},
        {"template": {"spec": {"nodeSelector": {"pool": "a"}}}},
        {"template": {"spec": {"affinity": {"nodeAffinity": {}}}}},
        {"suspend": False},
    ]
    for spec in right:
        assert api.patch(path, {"spec": spec})[0] == 200, spec
    late = api.patch(path, {"spec": {"template": {"spec": {"nodeSelector": {"pool": "b"}}}}})
    assert late[0] == 422


def test_paths_and_methods_are_those_of_the_schema(api: RawClient) -> None:
    assert api.send("GET", "/apis/batch/v1/namespaces/default/job")[0] == 404
    assert api.send("GET", "/apis/batch/v1beta1/namespaces/default/jobs")[0] == 404
    assert api.send("POST", "/apis/batch/v1/jobs", job("wrong"))[0] == 405
    assert api.send("PUT", JOBS, job("wrong"))[0] == 405


@pytest.mark.parametrize(
    "query",
    [
        {"label_selector": "a=b"},
        {"limit": "many"},
        {"watch": "perhaps"},
        {"labelSelector": "a in b"},
        {"labelSelector": "a=b,"},
        {"fieldSelector": "spec.parallelism=1"},
        {"resourceVersion": "abc", "watch": "true"},
    ],
)
def test_query_parameters_are_checked(api: RawClient, query: Json) -> None:
    code, status = api.send("GET", JOBS, **query)

    assert (code, status["reason"]) == (400, "BadRequest")


def test_a_body_must_be_what_the_path_says(api: RawClient) -> None:
    assert "do not match the expected" in api.send("POST", JOBS, pod("wrong"))[1]["message"]
    elsewhere = changed(job("wrong"), "metadata.namespace", "elsewhere")
    assert "does not match the namespace" in api.send("POST", JOBS, elsewhere)[1]["message"]
    assert api.http.post(JOBS, content=b"{", headers={"Content-Type": "application/json"}).status_code == 400
    assert (
        api.http.post(JOBS, content=b"a: b", headers={"Content-Type": "application/yaml"}).status_code == 415
    )
    twice = b'{"kind": "Job", "metadata": {"name": "a", "name": "b"}}'
    said = api.http.post(JOBS, content=twice, headers={"Content-Type": "application/json"}).json()["message"]
    assert 'duplicate field "name"' in said

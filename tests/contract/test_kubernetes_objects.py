"""The rules of the Kubernetes server of the tests for pods, secrets and what an installation needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.kubernetes_server import KubernetesCluster
from support.kubernetes_server.schema import document, self_check

from contract.kubernetes_samples import PODS, SECRETS, Json, RawClient, job, pod, pod_spec, secret


@pytest.fixture(scope="module")
def cluster() -> Iterator[KubernetesCluster]:
    with KubernetesCluster() as started:
        yield started


@pytest.fixture(scope="module")
def api(cluster: KubernetesCluster) -> Iterator[RawClient]:
    opened = RawClient(cluster)
    yield opened
    opened.close()


def test_a_pod_needs_what_it_names(api: RawClient) -> None:
    cases: list[tuple[Json, str]] = [
        ({"serviceAccountName": "nobody"}, 'serviceaccount "nobody" not found'),
        ({"priorityClassName": "urgent"}, "no PriorityClass with name urgent was found"),
        ({"runtimeClassName": "gvisor"}, 'RuntimeClass "gvisor" not found'),
    ]
    for fields, said in cases:
        code, status = api.send("POST", PODS, pod("wrong", **fields))
        assert (code, status["reason"]) == (403, "Forbidden")
        assert said in status["message"]


def test_a_pod_that_is_there_keeps_its_spec(api: RawClient) -> None:
    api.post(PODS, pod("kept", "sleep 60", terminationGracePeriodSeconds=0))

    code, status = api.patch(f"{PODS}/kept", {"spec": {"hostname": "other"}})

    assert (code, "pod updates may not change fields" in status["message"]) == (422, True)
    api.send("DELETE", f"{PODS}/kept")


def test_secrets_are_base64_and_not_too_large(api: RawClient) -> None:
    made = api.post(SECRETS, secret("token", value="x"))
    assert (made["data"], made["type"], "stringData" in made) == ({"value": "eA=="}, "Opaque", False)

    plain = {"metadata": {"name": "plain"}, "data": {"value": "not base64!"}}
    assert "illegal base64 data" in api.send("POST", SECRETS, plain)[1]["message"]
    wrong_key = api.send("POST", SECRETS, secret("wrong") | {"stringData": {"a b": ""}})
    assert wrong_key[0] == 422
    large = api.send("POST", SECRETS, secret("large", value="x" * 1_100_000))
    assert large[1]["details"]["causes"][0]["reason"] == "FieldValueTooLong"


def test_install_manifests_can_be_checked(api: RawClient) -> None:
    roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles"
    rules = [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get"]}]
    api.post(roles, {"metadata": {"name": "corral:runs"}, "rules": rules})
    assert (
        api.send("POST", roles, {"metadata": {"name": "wrong"}, "rules": [{"apiGroups": ["batch"]}]})[0]
        == 422
    )
    selector = {"matchLabels": {"app": "corral"}}
    template = {"metadata": {"labels": {"app": "corral"}}, "spec": pod_spec() | {"restartPolicy": "Always"}}
    body = {"metadata": {"name": "corral"}, "spec": {"selector": selector, "template": template}}
    made = api.post("/apis/apps/v1/namespaces/default/deployments", body)
    assert made["spec"]["replicas"] == 1


def test_what_the_server_writes_itself_is_checked_too() -> None:
    definition = document()["kinds"]["batch/v1/jobs"]

    with pytest.raises(AssertionError, match="unknown field"):
        self_check(definition, job("wrong") | {"status": {"ranks": 1}})


def test_the_schema_says_where_it_comes_from() -> None:
    origin = document()["origin"]

    assert origin["kubernetes"] == "v1.36.0"
    assert "Apache-2.0" in origin["license"]

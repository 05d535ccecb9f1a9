"""The Kubernetes server of the tests lets in whom it should and fails on demand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from kubernetes import client, config, watch
from support.kubernetes_server import KubernetesCluster
from support.kubernetes_server.access import Rule, rules_of_manifest
from support.kubernetes_server.faults import LOSE_REPLY, LOSE_REQUEST
from support.waiting import eventually

from contract.kubernetes_samples import JOBS, SECRETS, RawClient, job, secret

ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@pytest.fixture
def cluster() -> Iterator[KubernetesCluster]:
    with KubernetesCluster() as started:
        yield started


@pytest.fixture
def api(cluster: KubernetesCluster) -> Iterator[RawClient]:
    opened = RawClient(cluster)
    yield opened
    opened.close()


def test_who_is_not_known_gets_nothing(cluster: KubernetesCluster) -> None:
    token = cluster.add_user("someone", [])
    known, unknown = RawClient(cluster, token), RawClient(cluster, "wrong")

    assert unknown.send("GET", JOBS) == (401, unknown.send("GET", JOBS)[1])
    assert unknown.send("GET", JOBS)[1]["reason"] == "Unauthorized"
    assert known.send("GET", JOBS)[0] == 403
    cluster.access.expire(token)
    assert known.send("GET", JOBS)[0] == 401
    known.close()
    unknown.close()


def test_everybody_may_do_what_the_rules_allow_and_no_more(cluster: KubernetesCluster) -> None:
    cluster.add_namespace("team")
    rules = rules_of_manifest(
        [
            {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "get"]},
            {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
        ],
        "team",
    )
    runner = RawClient(cluster, cluster.add_user("system:serviceaccount:team:corral", rules))
    mine = JOBS.replace("default", "team")

    runner.post(mine, job("run", suspend=True))
    code, status = runner.send("GET", mine)

    assert (code, status["reason"]) == (403, "Forbidden")
    assert status["message"] == (
        'jobs.batch is forbidden: User "system:serviceaccount:team:corral" cannot list resource "jobs" '
        'in API group "batch" in the namespace "team"'
    )
    assert runner.send("POST", JOBS, job("run"))[0] == 403
    assert runner.send("GET", "/api/v1/namespaces/team/pods/x")[0] == 403
    assert runner.send("GET", "/api/v1/namespaces/team/pods/x/log")[0] == 404
    runner.close()


def test_one_can_ask_what_one_may_do(cluster: KubernetesCluster) -> None:
    rule = Rule(frozenset({"create"}), frozenset({"batch"}), frozenset({"jobs"}), namespace="default")
    asker = RawClient(cluster, cluster.add_user("asker", [rule]))

    def may(verb: str, namespace: str = "default") -> bool:
        wanted = {"group": "batch", "resource": "jobs", "verb": verb, "namespace": namespace}
        return bool(asker.post(ACCESS_REVIEWS, {"spec": {"resourceAttributes": wanted}})["status"]["allowed"])

    assert (may("create"), may("delete"), may("create", "kube-system")) == (True, False, False)
    rules = asker.post(ACCESS_REVIEWS.replace("access", "rules"), {"spec": {"namespace": "default"}})[
        "status"
    ]
    assert rules["resourceRules"] == [{"verbs": ["create"], "apiGroups": ["batch"], "resources": ["jobs"]}]
    asker.close()


def test_failures_come_on_demand(cluster: KubernetesCluster, api: RawClient) -> None:
    cluster.faults.inject(429, method="POST", path="/jobs$", retry_after_s=7)
    cluster.faults.inject(503)

    assert api.send("GET", JOBS)[0] == 503
    refused = api.http.post(JOBS, json=job("run"))
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "7")
    assert refused.json()["details"]["retryAfterSeconds"] == 7
    assert api.send("GET", f"{JOBS}/run")[0] == 404


def test_a_reply_can_be_lost_after_the_work_is_done(cluster: KubernetesCluster, api: RawClient) -> None:
    """DL-D27."""
    cluster.faults.inject(LOSE_REPLY, method="POST")
    with pytest.raises(httpx.TransportError):
        api.send("POST", JOBS, job("done", suspend=True))
    cluster.faults.inject(LOSE_REQUEST, method="POST")
    with pytest.raises(httpx.TransportError):
        api.send("POST", JOBS, job("never", suspend=True))

    assert [item["metadata"]["name"] for item in api.get(JOBS)["items"]] == ["done"]


def test_a_restart_ends_watches_and_keeps_the_data(cluster: KubernetesCluster, api: RawClient) -> None:
    made = api.post(SECRETS, secret("token", value="a"))
    address = cluster.server.url
    with api.watch(SECRETS) as events:
        next(events)
        cluster.restart_server()
        with pytest.raises((StopIteration, httpx.TransportError)):
            next(events)

    assert cluster.server.url == address
    assert api.get(f"{SECRETS}/token") == made


def test_requests_are_remembered(cluster: KubernetesCluster, api: RawClient) -> None:
    api.get(JOBS)

    seen = cluster.server.seen[-1]
    assert (seen.method, seen.target, seen.code) == ("GET", JOBS, 200)


def test_the_official_client_works_against_it(cluster: KubernetesCluster) -> None:
    settings = config.new_client_from_config(str(cluster.kubeconfig(namespace="default")))
    batch, core = client.BatchV1Api(settings), client.CoreV1Api(settings)

    made = batch.create_namespaced_job("default", job("run", 2, "echo rank $JOB_COMPLETION_INDEX"))
    for event in watch.Watch().stream(
        batch.list_namespaced_job, "default", resource_version=made.metadata.resource_version
    ):
        if any(one.type == "Complete" for one in event["object"].status.conditions or ()):
            break
    found = core.list_namespaced_pod("default", label_selector="batch.kubernetes.io/job-name=run")
    said = [core.read_namespaced_pod_log(one.metadata.name, "default") for one in found.items]

    assert said == ["rank 0\n", "rank 1\n"]
    with pytest.raises(client.ApiException) as refused:
        batch.create_namespaced_job("default", job("run", 2))
    assert (refused.value.status, '"reason": "AlreadyExists"' in refused.value.body) == (409, True)
    batch.delete_namespaced_job("run", "default", propagation_policy="Background")
    eventually(lambda: not core.list_namespaced_pod("default").items, "the pods to go")


def test_the_official_client_can_be_in_the_cluster(
    cluster: KubernetesCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder: Path = cluster.service_account_folder(namespace="default")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(cluster.server.port))
    settings = client.Configuration()
    config.incluster_config.InClusterConfigLoader(
        token_filename=str(folder / "token"), cert_filename=str(folder / "ca.crt")
    ).load_and_set(settings)

    assert client.VersionApi(client.ApiClient(settings)).get_code().git_version == "v1.36.0"


def test_a_pod_without_tls_trust_is_not_spoken_to(cluster: KubernetesCluster) -> None:
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{cluster.server.url}/version")

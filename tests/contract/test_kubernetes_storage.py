"""The Kubernetes server of the tests keeps objects as the API server does: versions, watches, deletion."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.kubernetes_server import KubernetesCluster
from support.waiting import eventually

from contract.kubernetes_samples import JOBS, PODS, SECRETS, Json, RawClient, job, pod, secret


@pytest.fixture
def cluster() -> Iterator[KubernetesCluster]:
    with KubernetesCluster(bookmark_every_s=0.05) as started:
        yield started


@pytest.fixture
def api(cluster: KubernetesCluster) -> Iterator[RawClient]:
    opened = RawClient(cluster)
    yield opened
    opened.close()


def test_two_writers_of_one_version_cannot_both_win(api: RawClient) -> None:
    made = api.post(SECRETS, secret("token", value="a"))
    first = made | {"data": {"value": "Yg=="}}
    second = made | {"data": {"value": "Yw=="}}

    assert api.send("PUT", f"{SECRETS}/token", first)[0] == 200
    code, status = api.send("PUT", f"{SECRETS}/token", second)

    assert (code, status["reason"]) == (409, "Conflict")
    assert "the object has been modified" in status["message"]
    assert api.get(f"{SECRETS}/token")["data"] == {"value": "Yg=="}


def test_a_name_is_given_once(api: RawClient) -> None:
    """DL-D27: a create that is retried makes no second cohort."""
    api.post(JOBS, job("run", suspend=True))

    code, status = api.send("POST", JOBS, job("run", suspend=True))

    assert (code, status["reason"]) == (409, "AlreadyExists")
    assert status["details"] == {"name": "run", "group": "batch", "kind": "jobs"}


def test_a_write_that_changes_nothing_is_no_new_version(api: RawClient) -> None:
    made = api.post(SECRETS, secret("token", value="a"))

    same = api.send("PUT", f"{SECRETS}/token", made)[1]

    assert same["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


def test_a_generation_counts_changes_of_the_spec(api: RawClient) -> None:
    api.post(JOBS, job("run", suspend=True))

    api.patch(f"{JOBS}/run", {"metadata": {"labels": {"a": "b"}}})
    assert api.get(f"{JOBS}/run")["metadata"]["generation"] == 1
    api.patch(f"{JOBS}/run", {"spec": {"parallelism": 0}})
    assert api.get(f"{JOBS}/run")["metadata"]["generation"] == 2


def test_what_is_not_there_is_not_found(api: RawClient) -> None:
    code, status = api.send("GET", f"{JOBS}/nothing")
    assert (code, status["message"]) == (404, 'jobs.batch "nothing" not found')
    code, status = api.send("POST", JOBS.replace("default", "nowhere"), job("run"))
    assert (code, status["message"]) == (404, 'namespaces "nowhere" not found')


def test_a_watch_goes_on_where_a_list_ended(api: RawClient) -> None:
    api.post(SECRETS, secret("before", value="a"))
    version = api.get(SECRETS)["metadata"]["resourceVersion"]
    api.post(SECRETS, secret("after", value="a"))
    api.patch(f"{SECRETS}/after", {"metadata": {"labels": {"a": "b"}}})
    api.send("DELETE", f"{SECRETS}/after")

    with api.watch(SECRETS, resourceVersion=version) as events:
        seen = [next(events) for _ in range(3)]

    assert [event["type"] for event in seen] == ["ADDED", "MODIFIED", "DELETED"]
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in seen]
    assert versions == sorted(set(versions))
    with api.watch(SECRETS, resourceVersion=str(versions[0])) as events:
        assert next(events)["type"] == "MODIFIED"


def test_a_watch_with_a_selector_sees_what_leaves_it(api: RawClient) -> None:
    api.post(SECRETS, secret("token", value="a") | {"metadata": {"name": "token", "labels": {"run": "1"}}})

    with api.watch(SECRETS, labelSelector="run=1") as events:
        assert next(events)["type"] == "ADDED"
        api.patch(f"{SECRETS}/token", {"metadata": {"labels": {"run": "2"}}})
        assert next(events)["type"] == "DELETED"


def test_bookmarks_move_a_watch_that_sees_nothing(api: RawClient) -> None:
    version = api.get(JOBS)["metadata"]["resourceVersion"]

    with api.watch(JOBS, resourceVersion=version, allowWatchBookmarks="true") as events:
        api.post(SECRETS, secret("other", value="a"))
        marks = (
            event["object"]["metadata"]["resourceVersion"] for event in events if event["type"] == "BOOKMARK"
        )
        assert next(mark for mark in marks if int(mark) > int(version))


def test_a_version_that_is_too_old_is_gone(cluster: KubernetesCluster, api: RawClient) -> None:
    version = api.get(SECRETS)["metadata"]["resourceVersion"]
    api.post(SECRETS, secret("token", value="a"))
    cluster.storage.compact()

    with api.watch(SECRETS, resourceVersion=version) as events:
        event = next(events)

    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")


def test_pages_are_of_one_moment(cluster: KubernetesCluster, api: RawClient) -> None:
    for number in range(5):
        api.post(SECRETS, secret(f"token-{number}", value="a"))
    first = api.get(SECRETS, limit=2)
    api.send("DELETE", f"{SECRETS}/token-4")

    second = api.get(SECRETS, limit=2, **{"continue": first["metadata"]["continue"]})
    third = api.get(SECRETS, limit=2, **{"continue": second["metadata"]["continue"]})

    names = [item["metadata"]["name"] for page in (first, second, third) for item in page["items"]]
    assert names == [f"token-{number}" for number in range(5)]
    assert (first["metadata"]["remainingItemCount"], "continue" in third["metadata"]) == (3, False)
    cluster.storage.compact()
    api.post(SECRETS, secret("later", value="a"))
    assert api.send("GET", SECRETS, limit=2, **{"continue": first["metadata"]["continue"]})[0] == 410


def test_lists_are_chosen_by_labels_and_fields(api: RawClient) -> None:
    for name, labels in (("a", {"run": "1", "rank": "0"}), ("b", {"run": "1"}), ("c", {"run": "2"})):
        api.post(SECRETS, {"metadata": {"name": name, "labels": labels}})

    def chosen(**query: str) -> list[str]:
        return [item["metadata"]["name"] for item in api.get(SECRETS, **query)["items"]]

    assert chosen(labelSelector="run=1") == ["a", "b"]
    assert chosen(labelSelector="run in (1, 2),!rank") == ["b", "c"]
    assert chosen(labelSelector="run notin (1)") == ["c"]
    assert chosen(labelSelector="rank") == ["a"]
    assert chosen(labelSelector="run!=1") == ["c"]
    assert chosen(fieldSelector="metadata.name=b") == ["b"]


@pytest.mark.parametrize(
    ("kind", "patch"),
    [
        ("merge-patch", {"metadata": {"labels": {"a": "b", "old": None}}}),
        ("strategic-merge-patch", {"metadata": {"labels": {"a": "b", "old": None}}}),
        (
            "json-patch",
            [
                {"op": "add", "path": "/metadata/labels/a", "value": "b"},
                {"op": "remove", "path": "/metadata/labels/old"},
            ],
        ),
    ],
)
def test_there_are_three_ways_to_patch(api: RawClient, kind: str, patch: Json) -> None:
    api.post(SECRETS, {"metadata": {"name": "token", "labels": {"old": "x"}}})

    assert api.patch(f"{SECRETS}/token", patch, kind)[0] == 200
    assert api.get(f"{SECRETS}/token")["metadata"]["labels"] == {"a": "b"}


def test_a_strategic_patch_merges_lists_by_their_key(api: RawClient) -> None:
    services = "/api/v1/namespaces/default/services"
    ports = [{"name": "a", "port": 1}, {"name": "b", "port": 2}]
    api.post(services, {"metadata": {"name": "ranks"}, "spec": {"ports": ports}})

    patch = {"spec": {"ports": [{"name": "c", "port": 3}]}}
    code, new = api.patch(f"{services}/ranks", patch, "strategic-merge-patch")

    assert code == 200
    assert [port["name"] for port in new["spec"]["ports"]] == ["a", "b", "c"]
    assert api.patch(f"{services}/ranks", patch, "apply-patch")[0] == 415


def test_what_has_no_owner_any_more_goes(api: RawClient) -> None:
    made = api.post(JOBS, job("run", suspend=True))
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "run", "uid": made["metadata"]["uid"]}
    api.post(SECRETS, {"metadata": {"name": "token", "ownerReferences": [owner]}})
    stranger = owner | {"uid": "00000000-0000-0000-0000-000000000000"}
    api.post(SECRETS, {"metadata": {"name": "stranger", "ownerReferences": [stranger]}})

    eventually(lambda: api.send("GET", f"{SECRETS}/stranger")[0] == 404, "the stranger to be collected")
    assert api.send("GET", f"{SECRETS}/token")[0] == 200
    api.send("DELETE", f"{JOBS}/run", propagationPolicy="Background")
    eventually(lambda: api.send("GET", f"{SECRETS}/token")[0] == 404, "the secret to go with its Job")


def test_a_job_leaves_its_pods_behind_unless_told_otherwise(
    cluster: KubernetesCluster, api: RawClient
) -> None:
    """DL-C16: the default of the Job API orphans."""
    api.post(JOBS, job("run", 2, "sleep 600"))
    pods = cluster.wait_for_pods("run", 2)

    api.send("DELETE", f"{JOBS}/run")

    eventually(lambda: api.send("GET", f"{JOBS}/run")[0] == 404, "the Job to go")
    left = cluster.wait_for_pods("run", 2)
    assert [one["metadata"]["uid"] for one in left] == [one["metadata"]["uid"] for one in pods]
    assert [one["metadata"].get("ownerReferences") for one in left] == [None, None]
    eventually(
        lambda: not any(one["metadata"].get("finalizers") for one in cluster.pods("run")),
        "no finalizers left",
    )


def test_in_the_foreground_the_job_goes_last(cluster: KubernetesCluster, api: RawClient) -> None:
    """DL-D22: the Job is gone only when its pods are."""
    script = 'trap "" TERM; echo up; while :; do sleep 0.05; done'
    api.post(JOBS, job("run", 1, script, pod={"terminationGracePeriodSeconds": 1}))
    name = cluster.wait_for_pods("run", 1)[0]["metadata"]["name"]
    eventually(lambda: "up" in api.http.get(f"{PODS}/{name}/log").text, "the pod to print")

    left = api.send("DELETE", f"{JOBS}/run", {"propagationPolicy": "Foreground", "gracePeriodSeconds": 0})[1]

    assert left["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert (len(cluster.pods("run")), api.send("GET", f"{JOBS}/run")[0]) == (1, 200)
    eventually(lambda: api.send("GET", f"{JOBS}/run")[0] == 404, "the Job to go")
    assert cluster.pods("run") == []


def test_preconditions_protect_what_was_made_anew(api: RawClient) -> None:
    api.post(SECRETS, secret("token", value="a"))

    code, status = api.send("DELETE", f"{SECRETS}/token", {"preconditions": {"uid": "another"}})

    assert (code, status["reason"]) == (409, "Conflict")
    assert api.send("DELETE", f"{SECRETS}/token", {"propagationPolicy": "Slowly"})[0] == 422
    assert api.send("DELETE", f"{SECRETS}/token")[0] == 200


def test_a_finalizer_holds_an_object(api: RawClient) -> None:
    api.post(SECRETS, {"metadata": {"name": "token", "finalizers": ["example.com/hold"]}})
    api.send("DELETE", f"{SECRETS}/token")

    held = api.get(f"{SECRETS}/token")
    assert "deletionTimestamp" in held["metadata"]
    more = {"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}}
    assert api.patch(f"{SECRETS}/token", more)[0] == 422
    api.patch(f"{SECRETS}/token", {"metadata": {"finalizers": None}})
    assert api.send("GET", f"{SECRETS}/token")[0] == 404


def test_a_namespace_takes_all_along(cluster: KubernetesCluster, api: RawClient) -> None:
    cluster.add_namespace("team")
    secrets = SECRETS.replace("default", "team")
    api.post(secrets, secret("token", value="a"))

    with cluster.controllers_paused():
        assert api.send("DELETE", "/api/v1/namespaces/team")[1]["status"]["phase"] == "Terminating"
        code, status = api.send("POST", secrets, secret("late", value="a"))
        assert (code, "being terminated" in status["message"]) == (403, True)

    eventually(lambda: api.send("GET", "/api/v1/namespaces/team")[0] == 404, "the namespace to go")
    assert api.send("GET", f"{secrets}/token")[0] == 404


def test_a_collection_is_deleted_by_labels(api: RawClient) -> None:
    for name, run in (("a", "1"), ("b", "1"), ("c", "2")):
        api.post(SECRETS, {"metadata": {"name": name, "labels": {"run": run}}})

    api.send("DELETE", SECRETS, labelSelector="run=1")

    assert [item["metadata"]["name"] for item in api.get(SECRETS)["items"]] == ["c"]


def test_a_pod_that_is_deleted_gets_its_grace(cluster: KubernetesCluster, api: RawClient) -> None:
    api.post(PODS, pod("kept", 'trap "echo checkpoint; exit 0" TERM; echo up; sleep 600 & wait'))
    eventually(lambda: "up" in api.http.get(f"{PODS}/kept/log").text, "the pod to print")

    with api.watch(PODS, fieldSelector="metadata.name=kept") as events:
        next(events)
        deleted = api.send("DELETE", f"{PODS}/kept")[1]
        last = next(event["object"] for event in events if event["type"] == "DELETED")

    assert deleted["metadata"]["deletionGracePeriodSeconds"] == 30
    assert last["status"]["phase"] == "Succeeded"

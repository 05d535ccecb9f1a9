"""What a launch needs, looked at without changing anything, each with the command that mends it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

from corral.adapters.executors.kubernetes.api import AccessDenied, ApiRefusal, KubernetesApi, jobs_path
from corral.adapters.executors.kubernetes.connection import INSTALL, ClientMissing
from corral.adapters.executors.kubernetes.manifest import job_manifest
from corral.adapters.executors.kubernetes.nodes import NodeShape, capacities_of, node_shapes
from corral.adapters.executors.kubernetes.options import KubernetesOptions
from corral.domain.hosts.capability import Requirements
from corral.domain.placements.orders import LaunchOrder, PreflightCheck
from corral.ports.executor import ExecutorUnreachable

Json = dict[str, Any]
Checks = Iterator[PreflightCheck]
# The first release that has all that our Jobs use without feature gates.
_LEAST_MINOR = 31
_KUEUE = ("v1beta2", "v1beta1")
_IDENTITIES = {
    "eks.amazonaws.com/role-arn": "the AWS role {} (IRSA)",
    "iam.gke.io/gcp-service-account": "the Google account {} (Workload Identity)",
    "azure.workload.identity/client-id": "the Azure identity {} (Workload Identity)",
}


class Permission(NamedTuple):
    """One line of the Role in deploy/kubernetes/workers.yaml."""

    verbs: tuple[str, ...]
    resource: str
    group: str = ""
    subresource: str = ""

    @property
    def shown(self) -> str:
        name = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{name}/{self.subresource}" if self.subresource else name


NEEDED = (
    Permission(("create", "get", "list", "patch", "delete"), "jobs", "batch"),
    Permission(("list",), "pods"),
    Permission(("get",), "pods", subresource="log"),
    Permission(("create", "patch"), "secrets"),
    Permission(("list",), "events"),
)


def preflight(api: KubernetesApi, options: KubernetesOptions) -> list[PreflightCheck]:
    found: list[PreflightCheck] = []
    try:
        found.extend(_server(api))
        for checks in (_namespace, _permissions, _image, _service_account, _named, _queue, _nodes, _quota):
            found.extend(checks(api, options))
        if all(check.ok for check in found):
            found.extend(_trial(api, options))
    except ClientMissing as error:
        found.append(PreflightCheck("client", False, str(error), INSTALL))
    except ExecutorUnreachable as error:
        found.append(PreflightCheck("server", False, str(error), error.hint))
    return found


def _server(api: KubernetesApi) -> Checks:
    version = api.get("/version")
    minor = "".join(filter(str.isdigit, version.get("minor", "")))
    new_enough = version.get("major") != "1" or int(minor or 0) >= _LEAST_MINOR
    said = f"{version.get('gitVersion')} by {api.connection.origin}"
    fix = "" if new_enough else f"Upgrade the cluster to 1.{_LEAST_MINOR} or newer."
    yield PreflightCheck("server", new_enough, said, fix)


def _namespace(api: KubernetesApi, options: KubernetesOptions) -> Checks:
    name = api.namespace
    found, said = _read(api, f"/api/v1/namespaces/{quote(name, safe='')}")
    ok = found is not None or said is not None
    detail = said or (name if ok else f"there is no namespace {name}")
    yield PreflightCheck("namespace", ok, detail, "" if ok else f"kubectl create namespace {name}")


def _read(api: KubernetesApi, path: str) -> tuple[Json | None, str | None]:
    """The object, or None; and what to say where it may not be looked at."""
    try:
        return api.get(path), None
    except ApiRefusal as error:
        if error.status == 404:
            return None, None
        raise
    except AccessDenied as error:
        if error.status == 401:
            raise
        return None, "not checked: we may not read it"


def _permissions(api: KubernetesApi, options: KubernetesOptions) -> Checks:
    who = _subject(api)
    for one in NEEDED:
        missing = [verb for verb in one.verbs if not _may(api, one, verb)]
        verbs, space = ",".join(missing), api.namespace
        name = f"corral-{one.resource}{'-' + one.subresource if one.subresource else ''}"
        fix = (
            f"kubectl create role {name} -n {space} --verb={verbs} --resource={one.shown} && "
            f"kubectl create rolebinding {name} -n {space} --role={name} {who}"
        )
        detail = f"may {', '.join(one.verbs)}" if not missing else f"may not {', '.join(missing)} in {space}"
        yield PreflightCheck(f"permission {one.shown}", not missing, detail, fix if missing else "")


def _subject(api: KubernetesApi) -> str:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    name = api.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", body)["status"]["userInfo"][
        "username"
    ]
    kind, _, account = name.partition("system:serviceaccount:")
    return f"--serviceaccount={account}" if not kind and account else f"--user={name}"


def _may(api: KubernetesApi, permission: Permission, verb: str) -> bool:
    asked = {"namespace": api.namespace, "verb": verb, "resource": permission.resource}
    asked |= {"group": permission.group} if permission.group else {}
    asked |= {"subresource": permission.subresource} if permission.subresource else {}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    answer = api.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    return bool(answer.get("status", {}).get("allowed"))


def _image(api: KubernetesApi, options: KubernetesOptions) -> Checks:
    ok = options.image is not None
    fix = "" if ok else "Set the option `image`; deploy/worker has the Dockerfiles."
    yield PreflightCheck("image", ok, options.image or "no image is named for runs that name none", fix)


def _service_account(api: KubernetesApi, options: KubernetesOptions) -> Checks:
    name = options.service_account or "default"
    found, said = _read(api, f"/api/v1/namespaces/{api.namespace}/serviceaccounts/{quote(name, safe='')}")
    if found is None:
        ok = said is not None
        fix = "" if ok else f"kubectl create serviceaccount {name} -n {api.namespace}"
        yield PreflightCheck("service account", ok, said or f"there is no service account {name}", fix)
        return
    noted = found["metadata"].get("annotations", {})
    given = [words.format(noted[key]) for key, words in _IDENTITIES.items() if key in noted]
    said = f"{name}: pods act as {', '.join(given)}" if given else f"{name}: no cloud identity is noted on it"
    yield PreflightCheck("service account", True, said)


def _named(api: KubernetesApi, options: KubernetesOptions) -> Checks:
    space = f"/api/v1/namespaces/{api.namespace}"
    wanted = [("pull secret", f"{space}/secrets", name) for name in options.pull_secrets]
    for kind, path, given in (
        ("priority class", "/apis/scheduling.k8s.io/v1/priorityclasses", options.priority_class),
        ("runtime class", "/apis/node.k8s.io/v1/runtimeclasses", options.runtime_class),
    ):
        wanted += [(kind, path, given)] if given else []
    fixes = {
        "pull secret": f"kubectl create secret docker-registry {{}} -n {api.namespace} --docker-server=... "
        "--docker-username=... --docker-password=...",
        "priority class": "kubectl create priorityclass {} --value=1000",
        "runtime class": "Install the runtime whose class is {}, or leave `runtime_class` out.",
    }
    for kind, path, name in wanted:
        found, said = _read(api, f"{path}/{quote(name, safe='')}")
        ok = found is not None or said is not None
        detail = f"{name}: {said}" if said else name if ok else f"there is no {kind} {name}"
        yield PreflightCheck(kind, ok, detail, "" if ok else fixes[kind].format(name))


def _queue(api: KubernetesApi, options: KubernetesOptions) -> Checks:
    if options.queue is None:
        said = (
            "none: Kubernetes starts ranks one by one, so that a gang may hold GPUs while it waits for more"
        )
        yield PreflightCheck("queue", True, said)
        return
    for version in _KUEUE:
        space = f"/apis/kueue.x-k8s.io/{version}/namespaces/{api.namespace}"
        found, unread = _read(api, f"{space}/localqueues/{quote(options.queue, safe='')}")
        if found is not None or unread is not None:
            yield PreflightCheck("queue", True, unread or f"{options.queue}: Kueue starts a Job as a whole")
            return
    detail = f"Kueue has no LocalQueue {options.queue} in {api.namespace}, or is not installed"
    fix = f"Install Kueue (https://kueue.sigs.k8s.io) and make the LocalQueue {options.queue}."
    yield PreflightCheck("queue", False, detail, fix)


def list_nodes(api: KubernetesApi, options: KubernetesOptions) -> list[NodeShape] | None:
    """None if we may not see them."""
    found, _ = _read(api, "/api/v1/nodes")
    return node_shapes(found.get("items", ()), options) if found is not None else None


def _nodes(api: KubernetesApi, options: KubernetesOptions) -> Checks:
    shapes = list_nodes(api, options)
    if shapes is None:
        fix = "kubectl apply -f deploy/kubernetes/nodes.yaml lets us see them."
        yield PreflightCheck("nodes", True, "not checked: we may not list them", fix)
        return
    kinds = [
        f"{one.machines} with {one.gpus} {one.gpu or 'GPUs'}" if one.gpus else f"{one.machines} without GPUs"
        for one in capacities_of(shapes)
    ]
    bare = [one.name for one in shapes if one.gpus and one.gpu is None]
    if bare:
        detail = f"{', '.join(bare)} have GPUs and no label {options.gpu_label}"
        fix = (
            "Install NVIDIA's GPU feature discovery, or set the option `gpu_label` to a label that they have."
        )
        yield PreflightCheck("nodes", False, detail, fix)
        return
    ok = bool(shapes) or options.autoscales
    fix = "" if ok else "Add nodes, or set the option `autoscales` if they come when they are asked for."
    yield PreflightCheck("nodes", ok, "; ".join(kinds) or "there is none", fix)


def _quota(api: KubernetesApi, options: KubernetesOptions) -> Checks:
    found, said = _read(api, f"/api/v1/namespaces/{api.namespace}/resourcequotas")
    if found is None:
        yield PreflightCheck("quota", True, said or "none")
        return
    lines = [
        f"{name} {status.get('used', {}).get(name, '0')} of {most}"
        for one in found.get("items", ())
        for status in [one.get("status", {})]
        for name, most in (status.get("hard") or one.get("spec", {}).get("hard", {})).items()
    ]
    yield PreflightCheck("quota", True, "; ".join(lines) or "none")


def _trial(api: KubernetesApi, options: KubernetesOptions) -> Checks:
    """The API server and its admission look at a Job, and make nothing of it."""
    order = LaunchOrder(
        key="preflight",
        installation="preflight",
        run_id="preflight",
        run_name="preflight",
        project="preflight",
        ranks=1,
        min_ranks=1,
        need=Requirements(),
        command=("true",),
        environ={},
        tokens=("",),
    )
    try:
        api.create(jobs_path(api.namespace), job_manifest(order, options, gpu_models=()), dryRun="All")
    except ApiRefusal as error:
        fix = "Change the options of the executor, or the policy of the cluster that says no."
        yield PreflightCheck("trial", error.status == 409, str(error), fix)
        return
    yield PreflightCheck("trial", True, "a Job would be taken")

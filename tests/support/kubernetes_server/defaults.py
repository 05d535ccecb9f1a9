"""What the API server fills in where a request says nothing."""

from __future__ import annotations

import base64

from support.kubernetes_server.objects import Json, name_of
from support.kubernetes_server.resources import Resource

_MAX_INT32 = 2**31 - 1
# The mode of files in volumes of secrets and config maps: 0644.
_FILE_MODE = 420


def apply_defaults(resource: Resource, obj: Json) -> None:
    match resource.plural:
        case "jobs":
            _job(obj["spec"])
        case "pods":
            if "spec" in obj:
                pod_spec(obj["spec"])
        case "deployments":
            _deployment(obj["spec"])
        case "secrets":
            _secret(obj)
        case "services":
            _service(obj.setdefault("spec", {}))
        case "priorityclasses":
            obj.setdefault("preemptionPolicy", "PreemptLowerPriority")
        case "namespaces":
            obj.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
            obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = name_of(obj)
            obj.setdefault("status", {}).setdefault("phase", "Active")
        case "persistentvolumeclaims":
            obj.get("spec", {}).setdefault("volumeMode", "Filesystem")


def _job(spec: Json) -> None:
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", _MAX_INT32 if "backoffLimitPerIndex" in spec else 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("manualSelector", False)
    replacement = "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed"
    spec.setdefault("podReplacementPolicy", replacement)
    for rule in spec.get("podFailurePolicy", {}).get("rules", ()):
        for pattern in rule.get("onPodConditions", ()):
            pattern.setdefault("status", "True")
    if "spec" in spec["template"]:
        pod_spec(spec["template"]["spec"])


def select_pods_of_job(job: Json) -> None:
    """The labels by which a Job finds its pods: the API server makes them from the Job's uid."""
    spec, uid = job["spec"], job["metadata"]["uid"]
    labels = spec["template"].setdefault("metadata", {}).setdefault("labels", {})
    labels |= {"job-name": name_of(job), "batch.kubernetes.io/job-name": name_of(job)}
    labels |= {"controller-uid": uid, "batch.kubernetes.io/controller-uid": uid}
    spec.setdefault("selector", {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}})


def pod_spec(spec: Json) -> None:
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("securityContext", {})
    spec.setdefault("terminationGracePeriodSeconds", 30)
    if "serviceAccountName" in spec:
        # The old name of the field is kept beside the new one.
        spec["serviceAccount"] = spec["serviceAccountName"]
    for kind in ("initContainers", "containers"):
        for container in spec.get(kind, ()):
            _container(container)
    for volume in spec.get("volumes", ()):
        for kind in ("secret", "configMap", "projected", "downwardAPI"):
            if kind in volume:
                volume[kind].setdefault("defaultMode", _FILE_MODE)


def _container(container: Json) -> None:
    image = container.get("image", "")
    tag = image.rpartition("/")[2].partition(":")[2]
    latest = "@" not in image and tag in ("", "latest")
    container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    resources = container.setdefault("resources", {})
    if "limits" in resources:
        # Who names a limit only asks for as much.
        resources["requests"] = {**resources["limits"], **resources.get("requests", {})}
    for port in container.get("ports", ()):
        port.setdefault("protocol", "TCP")
    for variable in container.get("env", ()):
        if "fieldRef" in variable.get("valueFrom", {}):
            variable["valueFrom"]["fieldRef"].setdefault("apiVersion", "v1")


def _deployment(spec: Json) -> None:
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    if "spec" in spec["template"]:
        pod_spec(spec["template"]["spec"])


def _secret(secret: Json) -> None:
    secret.setdefault("type", "Opaque")
    # Written in plain text for convenience, and never given back so.
    for key, text in secret.pop("stringData", {}).items():
        secret.setdefault("data", {})[key] = base64.b64encode(text.encode()).decode()


def _service(spec: Json) -> None:
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    for port in spec.get("ports", ()):
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))

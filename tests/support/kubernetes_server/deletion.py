"""Deleting: grace for pods, finalizers, and what becomes of dependents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from support.kubernetes_server.errors import bad_request, conflict, invalid, invalid_value
from support.kubernetes_server.objects import (
    Json,
    clone,
    finalizers_of,
    is_being_deleted,
    name_of,
    timestamp,
    uid_of,
)
from support.kubernetes_server.resources import Query, Resource
from support.kubernetes_server.schema import decode
from support.kubernetes_server.storage import Storage

ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"
_POLICIES = ("Orphan", "Background", "Foreground")
_DEFINITION = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"


@dataclass(frozen=True)
class DeleteOptions:
    """What a request says about how to delete."""

    grace_period_s: int | None = None
    propagation: str = ""
    uid: str = ""
    resource_version: str = ""
    dry_run: bool = False


def read_options(body: Any, query: Query) -> DeleteOptions:
    """The body's options, or those of the query where the body has none."""
    options: Json = {}
    if body is not None:
        options = decode(_DEFINITION, body, kind="DeleteOptions", group="", version="v1")
    grace = options.get("gracePeriodSeconds", query.number("gracePeriodSeconds"))
    propagation = options.get("propagationPolicy", query.text("propagationPolicy"))
    orphan = options.get("orphanDependents", query.flag("orphanDependents") or None)
    if orphan is not None and propagation:
        detail = "orphanDependents and deletionPropagation cannot be both set"
        raise invalid(
            "DeleteOptions", "meta.k8s.io", "", [invalid_value("propagationPolicy", propagation, detail)]
        )
    if orphan is not None:
        propagation = "Orphan" if orphan else "Background"
    if propagation and propagation not in _POLICIES:
        detail = "expected one of Orphan, Background, Foreground"
        raise invalid(
            "DeleteOptions", "meta.k8s.io", "", [invalid_value("propagationPolicy", propagation, detail)]
        )
    if grace is not None and grace < 0:
        raise bad_request("gracePeriodSeconds must not be negative")
    conditions = options.get("preconditions", {})
    dry_run = bool(options.get("dryRun") or query.text("dryRun"))
    uid, version = conditions.get("uid", ""), conditions.get("resourceVersion", "")
    return DeleteOptions(grace, propagation, uid, version, dry_run)


def delete(storage: Storage, resource: Resource, obj: Json, options: DeleteOptions) -> Json:
    """The object when it is still there (or a pod), otherwise a Status of success."""
    with storage.changed:
        old = storage.get(resource, obj["metadata"].get("namespace", ""), name_of(obj))
        _check_preconditions(resource, old, options)
        new = clone(old)
        metadata = new["metadata"]
        _add_finalizer(resource, new, options.propagation)
        grace_s = _grace(resource, old, options)
        if is_being_deleted(old):
            grace_s = min(grace_s, metadata.get("deletionGracePeriodSeconds", 0))
        if resource.plural == "namespaces":
            new["status"] = {**new.get("status", {}), "phase": "Terminating"}
        waits = bool(grace_s or finalizers_of(new) or resource.plural == "namespaces")
        if options.dry_run:
            return old
        if not is_being_deleted(old) or metadata.get("deletionGracePeriodSeconds") != grace_s:
            metadata["deletionTimestamp"] = timestamp(storage.clock.now() + grace_s)
            metadata["deletionGracePeriodSeconds"] = grace_s
        if waits:
            return storage.update(resource, new)
        gone = storage.remove(resource, old)
        return gone if resource.plural == "pods" else _success(resource, old)


def _check_preconditions(resource: Resource, old: Json, options: DeleteOptions) -> None:
    present = old["metadata"]
    for what, given, found in (
        ("UID", options.uid, present["uid"]),
        ("ResourceVersion", options.resource_version, present["resourceVersion"]),
    ):
        if given and given != found:
            detail = (
                f"the {what} in the precondition ({given}) does not match the {what} in record ({found}). "
                "The object might have been deleted and then recreated"
            )
            raise conflict(resource.qualified, name_of(old), detail)


def _add_finalizer(resource: Resource, new: Json, propagation: str) -> None:
    found = [one for one in finalizers_of(new) if one not in (ORPHAN, FOREGROUND)]
    kept = [one for one in finalizers_of(new) if one in (ORPHAN, FOREGROUND)]
    # Jobs of batch/v1 leave their pods behind unless the request says otherwise, for the sake of old clients.
    policy = propagation or ("" if kept else "Orphan" if resource.plural == "jobs" else "Background")
    wanted = {"Orphan": [ORPHAN], "Foreground": [FOREGROUND], "Background": [], "": kept}[policy]
    if found or wanted:
        new["metadata"]["finalizers"] = [*found, *wanted]
    else:
        new["metadata"].pop("finalizers", None)


def _grace(resource: Resource, obj: Json, options: DeleteOptions) -> int:
    if resource.plural != "pods":
        return 0
    # A pod that runs nowhere, or has ended, needs no time to end.
    if not obj["spec"].get("nodeName") or obj["status"].get("phase") in ("Succeeded", "Failed"):
        return 0
    if options.grace_period_s is not None:
        return options.grace_period_s
    return int(obj["spec"]["terminationGracePeriodSeconds"])


def _success(resource: Resource, obj: Json) -> Json:
    details = {"name": name_of(obj), "kind": resource.plural, "uid": uid_of(obj)}
    details |= {"group": resource.group} if resource.group else {}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}

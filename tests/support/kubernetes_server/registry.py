"""What can be done with objects: the rules of create, update, patch and evict, whoever asks."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from support.kubernetes_server.admission import admit
from support.kubernetes_server.defaults import apply_defaults, select_pods_of_job
from support.kubernetes_server.deletion import DeleteOptions, delete
from support.kubernetes_server.errors import bad_request, forbidden_field, invalid
from support.kubernetes_server.objects import (
    Json,
    clone,
    finalizers_of,
    is_being_deleted,
    random_suffix,
    set_condition,
    timestamp,
)
from support.kubernetes_server.patches import patched
from support.kubernetes_server.resources import Resource, resource_of
from support.kubernetes_server.schema import decode
from support.kubernetes_server.storage import Storage
from support.kubernetes_server.validate_jobs import finished_job_errors
from support.kubernetes_server.validation import validate_changed, validate_new

_PODS = resource_of("pods")
# The system writes these; what a request says of them is dropped.
_OF_THE_SYSTEM = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "managedFields",
    "selfLink",
)


class Registry:
    """Objects with the rules of the API around them; requests and controllers both go through it."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.clock = storage.clock

    def create(self, resource: Resource, namespace: str, body: Any, *, dry_run: bool = False) -> Json:
        obj = self._decode(resource, body)
        metadata = obj.setdefault("metadata", {})
        _check_namespace(resource, metadata, namespace)
        if metadata.pop("resourceVersion", ""):
            raise bad_request("resourceVersion should not be set on objects to be created")
        for name in _OF_THE_SYSTEM:
            metadata.pop(name, None)
        obj.pop("status", None)
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = f"{metadata['generateName'][:58]}{random_suffix()}"
        metadata["uid"] = str(uuid.uuid4())
        if metadata.get("name"):
            apply_defaults(resource, obj)
        if resource.plural == "jobs" and metadata.get("name") and not obj["spec"].get("manualSelector"):
            select_pods_of_job(obj)
        with self.storage.changed:
            admit(self.storage, resource, obj)
            validate_new(resource, obj)
            if dry_run:
                metadata["creationTimestamp"] = timestamp(self.clock.now())
                return obj
            return self.storage.create(resource, obj)

    def update(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: Any,
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Json:
        obj = self._decode(resource, body)
        metadata = obj.setdefault("metadata", {})
        _check_namespace(resource, metadata, namespace)
        if metadata.setdefault("name", name) != name:
            raise bad_request(
                f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})"
            )
        with self.storage.changed:
            old = self.storage.get(resource, namespace if resource.namespaced else "", name)
            new = _of_subresource(old, obj, subresource)
            for key in _OF_THE_SYSTEM[1:]:
                new["metadata"].pop(key, None)
                if key in old["metadata"]:
                    new["metadata"][key] = old["metadata"][key]
            if subresource == "status":
                _refuse(
                    resource, new, list(finished_job_errors(old, new)) if resource.plural == "jobs" else []
                )
            else:
                apply_defaults(resource, new)
                _refuse(resource, new, _added_finalizers(old, new))
                validate_changed(resource, old, new)
            return clone(new) if dry_run else self.storage.update(resource, new)

    def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Any,
        *,
        content_type: str,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Json:
        with self.storage.changed:
            old = self.storage.get(resource, namespace if resource.namespaced else "", name)
            new = patched(clone(old), patch, content_type, resource.definition)
            return self.update(resource, namespace, name, new, subresource=subresource, dry_run=dry_run)

    def delete(self, resource: Resource, obj: Json, options: DeleteOptions) -> Json:
        return delete(self.storage, resource, obj, options)

    def evict(self, pod: Json, *, reason: str, message: str, grace_s: int | None = None) -> Json:
        """Ends a pod that did nothing wrong: the condition says who disturbed it."""
        with self.storage.changed:
            marked = self.mark_disrupted(pod, reason=reason, message=message)
            if marked is None:
                return pod
            return delete(self.storage, _PODS, marked, DeleteOptions(grace_period_s=grace_s))

    def mark_disrupted(self, pod: Json, *, reason: str, message: str) -> Json | None:
        """None when the pod is gone."""
        now = self.clock.now()

        def change(new: Json) -> None:
            set_condition(new, "DisruptionTarget", "True", now=now, reason=reason, message=message)

        return self.storage.edit(_PODS, pod, change)

    def _decode(self, resource: Resource, body: Any) -> Json:
        kind, group, version = resource.kind, resource.group, resource.version
        if not isinstance(body, dict):
            raise bad_request(f"the body is not a {kind}")
        given = (body.get("apiVersion") or resource.api_version, body.get("kind") or kind)
        if given != (resource.api_version, kind):
            raise bad_request(
                f"the API version and kind in the data ({given[0]}, {given[1]}) do not match the expected "
                f"ones ({resource.api_version}, {kind})"
            )
        obj = decode(resource.definition, body, kind=kind, group=group, version=version)
        return obj | {"apiVersion": resource.api_version, "kind": kind}


def _check_namespace(resource: Resource, metadata: Json, namespace: str) -> None:
    if not resource.namespaced:
        if metadata.pop("namespace", ""):
            raise bad_request("namespace is not allowed for an object of the whole cluster")
        return
    if metadata.setdefault("namespace", namespace) != namespace:
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )


def _of_subresource(old: Json, given: Json, subresource: str) -> Json:
    """What a write through this path may change: the status alone, or all but the status."""
    if subresource == "status":
        new = clone(old)
        new["metadata"]["resourceVersion"] = given["metadata"].get(
            "resourceVersion", old["metadata"]["resourceVersion"]
        )
        new.pop("status", None)
        return new | ({"status": given["status"]} if "status" in given else {})
    given.pop("status", None)
    return given | ({"status": clone(old["status"])} if "status" in old else {})


def _added_finalizers(old: Json, new: Json) -> Sequence[Any]:
    added = set(finalizers_of(new)) - set(finalizers_of(old))
    if is_being_deleted(old) and added:
        detail = f"no new finalizers can be added if the object is being deleted, found {sorted(added)}"
        return [forbidden_field("metadata.finalizers", detail)]
    return []


def _refuse(resource: Resource, obj: Json, errors: Sequence[Any]) -> None:
    if errors:
        raise invalid(resource.kind, resource.group, obj["metadata"]["name"], errors)

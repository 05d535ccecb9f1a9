"""Dependents follow their owners; namespaces empty themselves before they go."""

from __future__ import annotations

from support.kubernetes_server.deletion import FOREGROUND, ORPHAN, DeleteOptions
from support.kubernetes_server.objects import (
    Json,
    finalizers_of,
    is_being_deleted,
    name_of,
    namespace_of,
    owners_of,
    uid_of,
)
from support.kubernetes_server.registry import Registry
from support.kubernetes_server.resources import Resource, resource_of, resource_of_kind, resources

_BACKGROUND = DeleteOptions(propagation="Background")


class GarbageCollector:
    """Looks at all objects whenever something has changed."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._storage = registry.storage

    def sync(self) -> None:
        everything = [
            (resource, obj) for resource in resources().values() for obj in self._storage.all(resource)
        ]
        for resource, obj in everything:
            if owners_of(obj):
                self._follow_owners(resource, obj)
        for resource, obj in everything:
            if is_being_deleted(obj):
                self._finish_owner(resource, obj, everything)
        for namespace in self._storage.all(resource_of("namespaces")):
            if is_being_deleted(namespace):
                self._empty(namespace)

    def _owner(self, dependent: Json, reference: Json) -> Json | None:
        """The owner itself: one of the same name with another uid is a stranger."""
        resource = resource_of_kind(reference["apiVersion"], reference["kind"])
        if resource is None:
            # Nobody can say whether it is there; the real collector waits too.
            return reference
        space = namespace_of(dependent) if resource.namespaced else ""
        found = self._storage.find(resource, space, reference["name"])
        return found if found is not None and uid_of(found) == reference["uid"] else None

    def _follow_owners(self, resource: Resource, obj: Json) -> None:
        owners = [(reference, self._owner(obj, reference)) for reference in owners_of(obj)]
        solid = [
            reference for reference, owner in owners if owner is not None and not _ends_dependents(owner)
        ]
        if solid:
            if any(owner is None for _, owner in owners):
                gone = [reference for reference, owner in owners if owner is None]
                self._drop_references(resource, obj, gone)
            return
        if not is_being_deleted(obj):
            self._registry.delete(resource, obj, _BACKGROUND)

    def _drop_references(self, resource: Resource, obj: Json, gone: list[Json]) -> None:
        uids = {reference["uid"] for reference in gone}

        def change(new: Json) -> None:
            kept = [one for one in owners_of(new) if one["uid"] not in uids]
            new["metadata"]["ownerReferences"] = kept
            if not kept:
                del new["metadata"]["ownerReferences"]

        self._storage.edit(resource, obj, change)

    def _finish_owner(self, resource: Resource, owner: Json, everything: list[tuple[Resource, Json]]) -> None:
        dependents = [
            (kind, obj)
            for kind, obj in everything
            if any(reference["uid"] == uid_of(owner) for reference in owners_of(obj))
            and self._storage.find(kind, namespace_of(obj), name_of(obj)) is not None
        ]
        if ORPHAN in finalizers_of(owner):
            for kind, obj in dependents:
                self._drop_references(kind, obj, [{"uid": uid_of(owner)}])
            self._drop_finalizer(resource, owner, ORPHAN)
        elif FOREGROUND in finalizers_of(owner) and not any(_blocks(obj, owner) for _, obj in dependents):
            self._drop_finalizer(resource, owner, FOREGROUND)

    def _drop_finalizer(self, resource: Resource, obj: Json, finalizer: str) -> None:
        self._storage.edit(resource, obj, lambda new: drop_finalizer(new, finalizer))

    def _empty(self, namespace: Json) -> None:
        left = False
        for resource in resources().values():
            if not resource.namespaced:
                continue
            for obj in self._storage.all(resource, name_of(namespace)):
                left = True
                if not is_being_deleted(obj):
                    self._registry.delete(resource, obj, _BACKGROUND)
        if not left and self._storage.find(resource_of("namespaces"), "", name_of(namespace)) is not None:
            self._storage.remove(resource_of("namespaces"), namespace)


def drop_finalizer(obj: Json, finalizer: str) -> None:
    kept = [one for one in finalizers_of(obj) if one != finalizer]
    obj["metadata"]["finalizers"] = kept
    if not kept:
        del obj["metadata"]["finalizers"]


def _ends_dependents(owner: Json) -> bool:
    return "metadata" in owner and is_being_deleted(owner) and FOREGROUND in finalizers_of(owner)


def _blocks(dependent: Json, owner: Json) -> bool:
    return any(one["uid"] == uid_of(owner) and one.get("blockOwnerDeletion") for one in owners_of(dependent))

"""The objects and their versions: what etcd and the API server's watch cache keep.

Objects that are read here belong to the storage: whoever changes one works on a clone.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from support.clock import JumpingClock
from support.kubernetes_server.errors import already_exists, conflict, not_found
from support.kubernetes_server.objects import (
    Json,
    clone,
    finalizers_of,
    is_being_deleted,
    name_of,
    namespace_of,
    random_suffix,
    timestamp,
)
from support.kubernetes_server.resources import Resource
from support.kubernetes_server.schema import self_check

_MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


@dataclass(frozen=True)
class Change:
    """An object as it became at a revision, and as it was before."""

    revision: int
    kind: str
    resource: Resource
    obj: Json
    before: Json | None


class Storage:
    """All objects under one lock; each write is a revision, and the latest changes are remembered."""

    def __init__(self, clock: JumpingClock) -> None:
        self.clock = clock
        self.changed = threading.Condition(threading.RLock())
        self.revision = 1
        self._objects: dict[Resource, dict[tuple[str, str], Json]] = {}
        self._changes: list[Change] = []
        self._oldest = 0

    def create(self, resource: Resource, obj: Json) -> Json:
        """Stores an object that admission has let pass."""
        with self.changed:
            new = clone(obj)
            metadata = new["metadata"]
            if not metadata.get("name"):
                metadata["name"] = f"{metadata['generateName'][:58]}{random_suffix()}"
            key = (namespace_of(new), name_of(new))
            if key in self._kept(resource):
                raise already_exists(resource.qualified, name_of(new))
            metadata.setdefault("uid", str(uuid.uuid4()))
            metadata.setdefault("creationTimestamp", timestamp(self.clock.now()))
            if "spec" in new:
                metadata.setdefault("generation", 1)
            return self._write("ADDED", resource, new, None)

    def get(self, resource: Resource, namespace: str, name: str) -> Json:
        found = self.find(resource, namespace, name)
        if found is None:
            raise not_found(resource.qualified, name)
        return found

    def find(self, resource: Resource, namespace: str, name: str) -> Json | None:
        with self.changed:
            return self._kept(resource).get((namespace, name))

    def all(self, resource: Resource, namespace: str = "") -> list[Json]:
        """In the order of their keys, as etcd has them."""
        with self.changed:
            kept = sorted(self._kept(resource).items())
            return [obj for (space, _), obj in kept if not namespace or space == namespace]

    def snapshot(self, resource: Resource) -> tuple[int, list[Json]]:
        with self.changed:
            return self.revision, self.all(resource)

    def update(self, resource: Resource, obj: Json) -> Json:
        """Replaces an object; 409 when it names a version or a uid that is not the present one."""
        with self.changed:
            old = self.get(resource, namespace_of(obj), name_of(obj))
            self._check_version(resource, old, obj)
            new = clone(obj)
            kept = ("uid", "creationTimestamp", "generation", "resourceVersion")
            new["metadata"] |= {key: old["metadata"][key] for key in kept if key in old["metadata"]}
            if new == old:
                return old
            if "spec" in new and new["spec"] != old.get("spec"):
                new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
            if is_being_deleted(new) and not _is_held(new):
                return self._write("DELETED", resource, new, old)
            return self._write("MODIFIED", resource, new, old)

    def edit(self, resource: Resource, obj: Json, change: Callable[[Json], None]) -> Json | None:
        """Changes the present version of an object, whatever it is; None when the object is gone."""
        with self.changed:
            present = self.find(resource, namespace_of(obj), name_of(obj))
            if present is None or present["metadata"]["uid"] != obj["metadata"]["uid"]:
                return None
            new = clone(present)
            change(new)
            return self.update(resource, new)

    def remove(self, resource: Resource, obj: Json) -> Json:
        with self.changed:
            old = self.get(resource, namespace_of(obj), name_of(obj))
            return self._write("DELETED", resource, clone(old), old)

    def wait(self, after: int, timeout_s: float) -> bool:
        """Until there is a revision after this one, or somebody calls `changed.notify_all`."""
        with self.changed:
            return self.revision > after or self.changed.wait(timeout_s)

    def changes_after(self, revision: int) -> list[Change] | None:
        """None when some of them are no longer remembered."""
        with self.changed:
            if revision < self._oldest:
                return None
            # Revisions are dense: each is one change.
            return self._changes[max(0, revision - self._oldest) :] if self._changes else []

    def compact(self) -> int:
        """Forgets all changes up to now, as etcd's compaction does every five minutes."""
        with self.changed:
            self._oldest = self.revision
            self._changes.clear()
            return self._oldest

    @property
    def oldest(self) -> int:
        return self._oldest

    def _kept(self, resource: Resource) -> dict[tuple[str, str], Json]:
        return self._objects.setdefault(resource, {})

    def _check_version(self, resource: Resource, old: Json, new: Json) -> None:
        given, present = new["metadata"], old["metadata"]
        if given.get("uid", present["uid"]) != present["uid"]:
            uids = f"UID in precondition: {given['uid']}, UID in object meta: {present['uid']}"
            detail = f"Precondition failed: {uids}"
            raise conflict(resource.qualified, name_of(old), detail)
        if given.get("resourceVersion", present["resourceVersion"]) != present["resourceVersion"]:
            raise conflict(resource.qualified, name_of(old), _MODIFIED)

    def _write(self, kind: str, resource: Resource, new: Json, before: Json | None) -> Json:
        self.revision += 1
        new["metadata"]["resourceVersion"] = str(self.revision)
        self_check(resource.definition, new)
        key = (namespace_of(new), name_of(new))
        if kind == "DELETED":
            del self._kept(resource)[key]
        else:
            self._kept(resource)[key] = new
        if not self._changes:
            self._oldest = self.revision - 1
        self._changes.append(Change(self.revision, kind, resource, new, before))
        self.changed.notify_all()
        return new


def _is_held(obj: Json) -> bool:
    """By a finalizer, by what is in a namespace, or by a pod that has time to end."""
    in_spec = obj["kind"] == "Namespace" and obj["spec"].get("finalizers")
    return bool(finalizers_of(obj) or in_spec or obj["metadata"].get("deletionGracePeriodSeconds"))

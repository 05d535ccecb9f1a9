"""Events: what happened to an object, in words; the same words again only raise a count."""

from __future__ import annotations

import hashlib

from support.kubernetes_server.objects import Json, name_of, namespace_of, timestamp, uid_of
from support.kubernetes_server.resources import resource_of
from support.kubernetes_server.storage import Storage


def record(storage: Storage, involved: Json, kind: str, reason: str, message: str, *, component: str) -> None:
    """`kind` is Normal or Warning."""
    events, now = resource_of("events"), timestamp(storage.clock.now())
    space = namespace_of(involved) or "default"
    # The same words about the same object have the same name.
    digest = hashlib.sha256(f"{uid_of(involved)} {reason} {message}".encode()).hexdigest()[:16]
    name = f"{name_of(involved)}.{digest}"

    def again(event: Json) -> None:
        event["count"] += 1
        event["lastTimestamp"] = now

    with storage.changed:
        if (found := storage.find(events, space, name)) is not None:
            storage.edit(events, found, again)
            return
        storage.create(
            events,
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": name, "namespace": space},
                "involvedObject": {
                    "apiVersion": involved["apiVersion"],
                    "kind": involved["kind"],
                    "name": name_of(involved),
                    "namespace": space,
                    "uid": uid_of(involved),
                    "resourceVersion": involved["metadata"]["resourceVersion"],
                },
                "type": kind,
                "reason": reason,
                "message": message,
                "source": {"component": component},
                "reportingComponent": component,
                "firstTimestamp": now,
                "lastTimestamp": now,
                "count": 1,
            },
        )

"""Lists in pages, and watches: from a version on, with bookmarks, until a timeout or a version too old."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from support.kubernetes_server.errors import ApiError, bad_request, expired
from support.kubernetes_server.objects import Json, name_of, namespace_of
from support.kubernetes_server.resources import Query, Resource, Route
from support.kubernetes_server.selectors import selector
from support.kubernetes_server.storage import Change, Storage

_INITIAL_EVENTS_END = {"k8s.io/initial-events-end": "true"}
_CONTINUE_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new "
    "list without the continue parameter."
)


def _chosen(route: Route, query: Query) -> Callable[[Json], bool]:
    # A path of one namespace has that namespace; `namespaces` itself is in none.
    namespace = route.namespace if route.resource.namespaced else ""
    return selector(
        route.resource,
        namespace=namespace,
        labels=query.text("labelSelector"),
        fields=query.text("fieldSelector"),
    )


def _revision(text: str, storage: Storage) -> int:
    if not text.isdigit():
        raise bad_request(f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: invalid syntax')
    revision = int(text)
    if revision > storage.revision:
        message = f"Too large resource version: {revision}, current: {storage.revision}"
        raise ApiError(504, "Timeout", message, retry_after_s=1)
    return revision


@dataclass
class Lists:
    """Lists; the rest of a list that was asked for in pages is kept as it was at the first page."""

    storage: Storage
    _snapshots: dict[int, list[Json]] = field(default_factory=dict)

    def page(self, route: Route, query: Query) -> Json:
        limit = query.number("limit") or 0
        if token := query.text("continue"):
            revision, objects = self._rest(token)
        else:
            _check_list_version(query, self.storage)
            revision, everything = self.storage.snapshot(route.resource)
            chosen = _chosen(route, query)
            objects = [obj for obj in everything if chosen(obj)]
        metadata: Json = {"resourceVersion": str(revision)}
        if limit and len(objects) > limit:
            self._snapshots[revision] = objects[limit:] if not token else self._snapshots[revision]
            metadata["continue"] = _token(revision, objects[limit])
            metadata["remainingItemCount"] = len(objects) - limit
            objects = objects[:limit]
        resource = route.resource
        items = [{k: v for k, v in obj.items() if k not in ("kind", "apiVersion")} for obj in objects]
        kind = f"{resource.kind}List"
        return {"kind": kind, "apiVersion": resource.api_version, "metadata": metadata, "items": items}

    def _rest(self, token: str) -> tuple[int, list[Json]]:
        try:
            found = json.loads(base64.urlsafe_b64decode(token))
            revision, start = int(found["rv"]), tuple(found["start"])
        except (ValueError, KeyError, TypeError):
            raise bad_request("continue key is not valid: it was not made by this server") from None
        if revision < self.storage.oldest or revision not in self._snapshots:
            raise expired(_CONTINUE_EXPIRED)
        kept = self._snapshots[revision]
        return revision, [obj for obj in kept if (namespace_of(obj), name_of(obj)) >= start]


def _token(revision: int, first: Json) -> str:
    text = json.dumps({"rv": revision, "start": [namespace_of(first), name_of(first)]})
    return base64.urlsafe_b64encode(text.encode()).decode()


def _check_list_version(query: Query, storage: Storage) -> None:
    match, version = query.text("resourceVersionMatch"), query.text("resourceVersion")
    if match and not version:
        raise bad_request("resourceVersionMatch is forbidden unless resourceVersion is provided")
    if not version or version == "0":
        return
    if _revision(version, storage) < storage.revision and match == "Exact":
        raise expired(f"The resourceVersion for the provided list is too old: {version} ({storage.revision})")


@dataclass(frozen=True)
class Watch:
    """One watch: an iterator of events that ends with its timeout, or when the server stops."""

    storage: Storage
    route: Route
    query: Query
    stopped: Callable[[], bool]
    bookmark_every_s: float

    def events(self) -> Iterator[Json]:
        chosen = _chosen(self.route, self.query)
        version = self.query.text("resourceVersion")
        # What is wrong with the request is said before the stream begins.
        revision = _revision(version, self.storage) if version not in ("", "0") else 0
        _check_initial_events(self.query)
        return self._stream(chosen, revision, fresh=version in ("", "0"))

    def _stream(self, chosen: Callable[[Json], bool], revision: int, *, fresh: bool) -> Iterator[Json]:
        if fresh or self.query.flag("sendInitialEvents"):
            revision, objects = self.storage.snapshot(self.route.resource)
            yield from ({"type": "ADDED", "object": obj} for obj in objects if chosen(obj))
            if self.query.flag("sendInitialEvents"):
                yield self._bookmark(revision, _INITIAL_EVENTS_END)
        yield from self._follow(chosen, revision)

    def _follow(self, chosen: Callable[[Json], bool], revision: int) -> Iterator[Json]:
        timeout_s = self.query.number("timeoutSeconds")
        end = time.monotonic() + (1800 if timeout_s is None else timeout_s)
        bookmarks = self.query.flag("allowWatchBookmarks")
        next_bookmark = time.monotonic() + self.bookmark_every_s
        while not self.stopped() and (now := time.monotonic()) < end:
            changes = self.storage.changes_after(revision)
            if changes is None:
                error = expired(f"too old resource version: {revision} ({self.storage.oldest})")
                yield {"type": "ERROR", "object": error.status()}
                return
            for change in changes:
                if event := _event(change, self.route.resource, chosen):
                    yield event
                revision = change.revision
            if bookmarks and now >= next_bookmark:
                yield self._bookmark(revision, {})
                next_bookmark = now + self.bookmark_every_s
            until = min(end, next_bookmark) if bookmarks else end
            self.storage.wait(revision, max(0.0, until - now))

    def _bookmark(self, revision: int, annotations: Json) -> Json:
        resource = self.route.resource
        metadata: Json = {"resourceVersion": str(revision), "creationTimestamp": None}
        metadata |= {"annotations": annotations} if annotations else {}
        obj = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
        return {"type": "BOOKMARK", "object": obj}


def _check_initial_events(query: Query) -> None:
    if query.flag("sendInitialEvents") and query.text("resourceVersionMatch") != "NotOlderThan":
        raise bad_request("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")


def _event(change: Change, resource: Resource, chosen: Callable[[Json], bool]) -> Json | None:
    """What a watcher with a selector sees: an object that no longer fits is gone for it."""
    if change.resource != resource:
        return None
    before = change.before is not None and chosen(change.before)
    after = change.kind != "DELETED" and chosen(change.obj)
    if not before and not after:
        return None
    kind = "MODIFIED" if before and after else "ADDED" if after else "DELETED"
    return {"type": kind, "object": change.obj}

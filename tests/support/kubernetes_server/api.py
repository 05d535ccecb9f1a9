"""What the API server answers to a request, whatever carried it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import Message
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support.kubernetes_server.access import Access, User, authorize, review_access, review_rules
from support.kubernetes_server.container_logs import LogOptions
from support.kubernetes_server.deletion import read_options
from support.kubernetes_server.errors import ApiError, bad_request, unsupported_media_type
from support.kubernetes_server.kubelet import Kubelet
from support.kubernetes_server.objects import Json, is_being_deleted, name_of
from support.kubernetes_server.registry import Registry
from support.kubernetes_server.resources import Query, Route, check_query, resource_of, route
from support.kubernetes_server.schema import decode, document
from support.kubernetes_server.selectors import selector
from support.kubernetes_server.watch import Lists, Watch

_PUBLIC = ("/healthz", "/livez", "/readyz")
# As http.server reads them.
Headers = Message
_EVICTION = "io.k8s.api.policy.v1.Eviction"


@dataclass(frozen=True)
class Reply:
    """A JSON object, or a stream of lines."""

    code: int
    body: Json | None = None
    stream: Iterator[bytes] | None = None
    content_type: str = "application/json"


class Api:
    """Authentication, then the path, then who may, then the operation."""

    def __init__(
        self, registry: Registry, access: Access, kubelet: Kubelet, *, bookmark_every_s: float
    ) -> None:
        self._registry = registry
        self._storage = registry.storage
        self._access = access
        self._kubelet = kubelet
        self._lists = Lists(registry.storage)
        self._bookmark_every_s = bookmark_every_s

    def answer(
        self, method: str, target: str, headers: Headers, body: bytes, stopped: Callable[[], bool]
    ) -> Reply:
        parts = urlsplit(target)
        if parts.path in _PUBLIC:
            return Reply(200, stream=iter([b"ok"]), content_type="text/plain")
        user = self._access.user(headers.get("Authorization", ""))
        if parts.path.rstrip("/") == "/version":
            return Reply(200, _version())
        given = parse_qs(parts.query, keep_blank_values=True)
        found = route(method, parts.path, {name: values[0] for name, values in given.items()})
        query = check_query(given, found.parameters)
        authorize(user, found)
        content = _content_type(headers)
        return self._operate(user, found, query, _read(body, content, found.verb), content, stopped)

    def _operate(
        self, user: User, found: Route, query: Query, body: Any, content: str, stopped: Callable[[], bool]
    ) -> Reply:
        space = found.namespace if found.resource.namespaced else ""
        dry_run = bool(query.text("dryRun"))
        if found.subresource in ("log", "eviction"):
            return (
                self._log(found, query, stopped) if found.subresource == "log" else self._evict(found, body)
            )
        match found.verb:
            case "get":
                return Reply(200, self._storage.get(found.resource, space, found.name))
            case "list":
                return Reply(200, self._lists.page(found, query))
            case "watch":
                watch = Watch(self._storage, found, query, stopped, self._bookmark_every_s)
                events = watch.events()
                return Reply(200, stream=(json.dumps(event).encode() + b"\n" for event in events))
            case "create":
                return Reply(201, self._create(user, found, body, dry_run=dry_run))
            case "update":
                new = self._registry.update(
                    found.resource, space, found.name, body, subresource=found.subresource, dry_run=dry_run
                )
                return Reply(200, new)
            case "patch":
                new = self._registry.patch(
                    found.resource,
                    space,
                    found.name,
                    body,
                    content_type=content,
                    subresource=found.subresource,
                    dry_run=dry_run,
                )
                return Reply(200, new)
            case _:
                return self._delete(found, query, body, space)

    def _create(self, user: User, found: Route, body: Any, *, dry_run: bool) -> Json:
        resource = found.resource
        reviews: dict[str, Callable[[User, Json], Json]] = {
            "selfsubjectaccessreviews": review_access,
            "selfsubjectrulesreviews": review_rules,
            "selfsubjectreviews": lambda user, _: {
                "userInfo": {"username": user.name, "groups": user.groups}
            },
        }
        if resource.plural in reviews:
            version = resource.version
            review = decode(
                resource.definition, body, kind=resource.kind, group=resource.group, version=version
            )
            status = reviews[resource.plural](user, review)
            return {**review, "apiVersion": resource.api_version, "kind": resource.kind, "status": status}
        return self._registry.create(resource, found.namespace, body, dry_run=dry_run)

    def _delete(self, found: Route, query: Query, body: Any, space: str) -> Reply:
        options = read_options(body, query)
        resource = found.resource
        if found.verb == "delete":
            obj = self._storage.get(resource, space, found.name)
            return Reply(200, self._registry.delete(resource, obj, options))
        chosen = selector(
            resource, namespace=space, labels=query.text("labelSelector"), fields=query.text("fieldSelector")
        )
        page = self._lists.page(found, query)
        with self._storage.changed:
            for obj in filter(chosen, self._storage.all(resource)):
                self._registry.delete(resource, obj, options)
        return Reply(200, page)

    def _evict(self, found: Route, body: Any) -> Reply:
        eviction = decode(_EVICTION, body, kind="Eviction", group="policy", version="v1")
        if eviction.get("metadata", {}).get("name", found.name) != found.name:
            raise bad_request("name in URL does not match name in Eviction object")
        pod = self._storage.get(resource_of("pods"), found.namespace, found.name)
        grace_s = eviction.get("deleteOptions", {}).get("gracePeriodSeconds")
        if not is_being_deleted(pod):
            said = "Eviction API: evicting"
            self._registry.evict(pod, reason="EvictionByEvictionAPI", message=said, grace_s=grace_s)
        return Reply(
            201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
        )

    def _log(self, found: Route, query: Query, stopped: Callable[[], bool]) -> Reply:
        pod = self._storage.get(resource_of("pods"), found.namespace, found.name)
        names = [one["name"] for one in pod["spec"]["containers"]]
        container = query.text("container")
        if not container and len(names) > 1:
            raise bad_request(
                f"a container name must be specified for pod {name_of(pod)}, choose one of: {names}"
            )
        container = container or names[0]
        if container not in names:
            raise bad_request(f"container {container} is not valid for pod {name_of(pod)}")
        log = self._kubelet.log(pod, container, previous=query.flag("previous"))
        if log is None:
            raise bad_request(_why_no_log(pod, container, previous=query.flag("previous")))
        since_s = query.number("sinceSeconds")
        options = LogOptions(
            follow=query.flag("follow"),
            timestamps=query.flag("timestamps"),
            tail_lines=query.number("tailLines"),
            limit_bytes=query.number("limitBytes"),
            since=self._registry.clock.now() - since_s if since_s is not None else 0.0,
        )
        return Reply(200, stream=log.read(options, stopped), content_type="text/plain")


def _why_no_log(pod: Json, container: str, *, previous: bool) -> str:
    if previous:
        return f'previous terminated container "{container}" in pod "{name_of(pod)}" not found'
    if not pod["spec"].get("nodeName"):
        return f"pod {name_of(pod)} does not have a host assigned"
    statuses = pod["status"].get("containerStatuses", ())
    waiting = (one.get("state", {}).get("waiting", {}).get("reason", "") for one in statuses)
    said = next(filter(None, waiting), "ContainerCreating")
    states = {"ImagePullBackOff": "trying and failing to pull image", "ErrImagePull": "image can't be pulled"}
    return f'container "{container}" in pod "{name_of(pod)}" is waiting to start: {states.get(said, said)}'


def _content_type(headers: Headers) -> str:
    return headers.get("Content-Type", "").partition(";")[0].strip().lower()


def _read(body: bytes, content: str, verb: str) -> Any:
    if not body:
        if verb in ("create", "update", "patch"):
            raise bad_request("the request has no body")
        return None
    json_types = ("", "application/json")
    if verb != "patch" and content not in json_types:
        raise unsupported_media_type(content, json_types[1:])
    try:
        return json.loads(body, object_pairs_hook=_no_duplicates)
    except ValueError as error:
        raise bad_request(f"couldn't get version/kind; json parse error: {error}") from error


def _no_duplicates(pairs: list[tuple[str, Any]]) -> Json:
    found: Json = {}
    for name, value in pairs:
        if name in found:
            raise bad_request(f'strict decoding error: duplicate field "{name}"')
        found[name] = value
    return found


def _version() -> Json:
    release = document()["origin"]["kubernetes"]
    major, minor, _ = release.removeprefix("v").split(".")
    return {
        "major": major,
        "minor": minor,
        "gitVersion": release,
        "gitCommit": "0" * 40,
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "go1.25.0",
        "compiler": "gc",
        "platform": "linux/amd64",
    }


def refused(error: ApiError) -> Reply:
    return Reply(error.code, error.status())

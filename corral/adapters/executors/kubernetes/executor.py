"""The executor: one Indexed Job for each order, found again by its name."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from corral.adapters.executors.kubernetes.api import (
    AccessDenied,
    ApiRefusal,
    KubernetesApi,
    events_path,
    jobs_path,
    pods_path,
    secrets_path,
)
from corral.adapters.executors.kubernetes.manifest import MOST_SECRET_BYTES, job_manifest, secret_manifest
from corral.adapters.executors.kubernetes.names import (
    INDEX,
    INSTALLATION,
    JOB_NAME,
    KEY,
    MANAGER,
    QUEUE,
    STARTED,
    JobHandle,
    is_ours,
    job_name,
    label_value,
)
from corral.adapters.executors.kubernetes.nodes import (
    NodeShape,
    capacities_of,
    models_named,
    need_refusals,
    node_refusals,
)
from corral.adapters.executors.kubernetes.options import KubernetesOptions
from corral.adapters.executors.kubernetes.pod_logs import logs_of
from corral.adapters.executors.kubernetes.preflight import list_nodes, preflight
from corral.adapters.executors.kubernetes.settled import SettledLaunches
from corral.adapters.executors.kubernetes.sightings import (
    has_finished,
    in_order,
    needs_events,
    sighting,
)
from corral.domain.errors import CorralError
from corral.domain.hosts.capability import Requirements
from corral.domain.placements.orders import Capacity, Launched, LaunchOrder, PreflightCheck, Sighting
from corral.ports.executor import LaunchRefused

Json = dict[str, Any]
_MOST_EVENTS = 1000
# Only then is the Job gone when its pods are, so that who still sees it knows that something may run.
_WITH_PODS_FIRST = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground"}


class KubernetesExecutor:
    """What there is stands in the cluster, and any process finds it there."""

    def __init__(self, options: KubernetesOptions, *, pause: Callable[[float], None] = time.sleep) -> None:
        self._options = options
        self._api = KubernetesApi(options, pause=pause)
        self._settled = SettledLaunches()

    def preflight(self) -> list[PreflightCheck]:
        return preflight(self._api, self._options)

    def capacities(self) -> list[Capacity]:
        return capacities_of(list_nodes(self._api, self._options) or [])

    def refusals(self, need: Requirements, ranks: int) -> list[str]:
        return self._refusals(need, ranks, list_nodes(self._api, self._options))

    def _refusals(self, need: Requirements, ranks: int, shapes: Sequence[NodeShape] | None) -> list[str]:
        found = need_refusals(need, self._options)
        if shapes is not None:
            return found + node_refusals(need, ranks, shapes, self._options)
        if need.gpus and need.gpu and not models_named(need.gpu, (), self._options):
            found.append(
                f"which nodes have a GPU called {' or '.join(need.gpu)} is not known: "
                "let us list nodes, or set the option `gpu_models`"
            )
        return found

    def launch(self, order: LaunchOrder) -> str:
        """The Job first, suspended, then the Secret that it owns, then its start. Whoever dies in between
        leaves a Job without pods, which the next call with this key finishes and a sweep finds; there is
        never a Secret without its Job."""
        self._check(order)
        handle = str(JobHandle(self._api.namespace, label_value(order.installation), job_name(order.key)))
        shapes = list_nodes(self._api, self._options)
        reasons = self._refusals(order.need, order.min_ranks, shapes)
        if reasons:
            # What was launched before stays so, even if it could not be launched now.
            if (job := self._existing(order)) is None:
                raise LaunchRefused(f"Kubernetes cannot run {order.key}: {'; '.join(reasons)}")
            made = False
        else:
            job, made = self._create(order, shapes or ())
        if not has_finished(job) and "deletionTimestamp" not in job["metadata"]:
            try:
                self._give_tokens(order, job)
                self._start(order, job)
            except LaunchRefused:
                if made:
                    # Where that is forbidden too, a sweep finds it: it is suspended.
                    with suppress(CorralError):
                        self.cancel(handle)
                raise
        return handle

    def _check(self, order: LaunchOrder) -> None:
        if not (order.image or self._options.image):
            raise LaunchRefused(
                f"Kubernetes cannot run {order.key}: there is no image",
                hint="Set the executor's option `image`, or name one in the run.",
            )
        if sum(map(len, order.tokens)) * 2 > MOST_SECRET_BYTES:
            raise LaunchRefused(f"Kubernetes cannot run {order.key}: one Secret cannot hold its tokens")

    def _create(self, order: LaunchOrder, shapes: Sequence[NodeShape]) -> tuple[Json, bool]:
        """The Job, and whether it was made by this call."""
        models = models_named(order.need.gpu, shapes, self._options)
        body = job_manifest(order, self._options, gpu_models=models)
        path = jobs_path(self._api.namespace)
        with _refusing(order):
            try:
                return self._api.create(path, body), True
            except ApiRefusal as error:
                if error.status != 409:
                    raise
        # One that was there, and is gone: what has this key has ended.
        return self._existing(order) or {"metadata": {"deletionTimestamp": ""}}, False

    def _existing(self, order: LaunchOrder) -> Json | None:
        space, name = self._api.namespace, job_name(order.key)
        try:
            found = self._api.get(jobs_path(space, name))
        except ApiRefusal as error:
            if error.status == 404:
                return None
            raise
        if not is_ours(found["metadata"].get("annotations", {}), order):
            raise LaunchRefused(
                f"the namespace {space} has a Job {name} that is not this installation's",
                hint="Give each installation a namespace of its own.",
            )
        return found

    def _give_tokens(self, order: LaunchOrder, job: Json) -> None:
        """The tokens of this call hold, whatever an earlier one wrote."""
        space = self._api.namespace
        body = secret_manifest(order, owner_uid=job["metadata"]["uid"])
        with _refusing(order):
            try:
                self._api.create(secrets_path(space), body)
                return
            except ApiRefusal as error:
                if error.status != 409:
                    raise
            owned = {
                "metadata": {"ownerReferences": body["metadata"]["ownerReferences"]},
                "data": body["data"],
            }
            self._patch(secrets_path(space, body["metadata"]["name"]), owned)

    def _start(self, order: LaunchOrder, job: Json) -> None:
        metadata = job["metadata"]
        if metadata.get("labels", {}).get(QUEUE) or metadata.get("annotations", {}).get(STARTED):
            # Kueue starts it; or it was started, and whoever suspended it since then meant it.
            return
        go = {"metadata": {"annotations": {STARTED: "true"}}, "spec": {"suspend": False}}
        with _refusing(order):
            self._patch(jobs_path(self._api.namespace, metadata["name"]), go)

    def _patch(self, path: str, body: Json) -> None:
        try:
            self._api.patch(path, body)
        except ApiRefusal as error:
            # Somebody cancelled it meanwhile.
            if error.status != 404:
                raise

    def observe(self, handles: Sequence[str]) -> Mapping[str, Sighting]:
        """For all handles of one installation and namespace one request, while nothing happens to them; a
        second one for their pods if something did, and a third if only events tell why something waits."""
        places: dict[tuple[str, str], list[JobHandle]] = {}
        for text in handles:
            if (handle := JobHandle.parse(text)) is not None:
                places.setdefault((handle.namespace, handle.installation), []).append(handle)
        found: dict[str, Sighting] = {}
        for (space, installation), wanted in places.items():
            found |= self._observe(space, installation, wanted)
        return found

    def _observe(self, space: str, installation: str, wanted: Iterable[JobHandle]) -> dict[str, Sighting]:
        chosen = f"{MANAGER}=corral,{INSTALLATION}={installation}"
        jobs = {job["metadata"]["name"]: job for job in self._list(jobs_path(space), labelSelector=chosen)}
        seen = {one: self._settled.get(one, jobs.get(one.name)) for one in wanted}
        if missing := [one for one, found in seen.items() if found is None]:
            pods = self._pods_by_job(space, chosen)
            seen |= {one: sighting(jobs.get(one.name), pods.get(one.name, ())) for one in missing}
            vague = [one for one in missing if (found := seen[one]) is not None and needs_events(found)]
            if vague and (events := self._warnings(space)):
                seen |= {one: sighting(jobs.get(one.name), pods.get(one.name, ()), events) for one in vague}
            for one in missing:
                self._settled.note(one, jobs.get(one.name), seen[one])
        return {str(one): found for one, found in seen.items() if found is not None}

    def _pods_by_job(self, space: str, chosen: str) -> dict[str, list[Json]]:
        found: dict[str, list[Json]] = {}
        for pod in self._list(pods_path(space), labelSelector=chosen):
            found.setdefault(pod["metadata"]["labels"].get(JOB_NAME, ""), []).append(pod)
        return found

    def _list(self, path: str, **query: object) -> list[Json]:
        found: list[Json] = self._api.get(path, **query).get("items") or []
        return found

    def _warnings(self, space: str) -> list[Json]:
        try:
            return self._list(events_path(space), fieldSelector="type=Warning", limit=_MOST_EVENTS)
        except AccessDenied:
            # They only add words.
            return []

    def logs(self, handle: str, rank: int, *, most_bytes: int) -> str:
        parsed = JobHandle.parse(handle)
        if parsed is None:
            return ""
        chosen = f"{INSTALLATION}={parsed.installation},{JOB_NAME}={parsed.name},{INDEX}={rank}"
        pods = in_order(self._list(pods_path(parsed.namespace), labelSelector=chosen))
        return logs_of(self._api, parsed.namespace, pods, most_bytes=most_bytes)

    def cancel(self, handle: str) -> None:
        parsed = JobHandle.parse(handle)
        if parsed is None:
            return
        path = jobs_path(parsed.namespace, parsed.name)
        try:
            job = self._api.get(path)
            if job["metadata"].get("labels", {}).get(INSTALLATION) != parsed.installation:
                return
            # Not one that somebody made under the same name meanwhile.
            only = {"preconditions": {"uid": job["metadata"]["uid"]}}
            self._api.delete(path, {**_WITH_PODS_FIRST, **only})
        except ApiRefusal as error:
            if error.status not in (404, 409):
                raise

    def launched(self, installation: str) -> list[Launched]:
        space, label = self._api.namespace, label_value(installation)
        chosen = f"{MANAGER}=corral,{INSTALLATION}={label}"
        return [
            Launched(noted[KEY], str(JobHandle(space, label, job["metadata"]["name"])))
            for job in self._list(jobs_path(space), labelSelector=chosen)
            for noted in [job["metadata"].get("annotations", {})]
            if noted.get(INSTALLATION) == installation and KEY in noted and not has_finished(job)
        ]

    def close(self) -> None:
        self._api.close()


@contextmanager
def _refusing(order: LaunchOrder) -> Iterator[None]:
    """A no of the server is a refusal of the order; credentials that have run out are not."""
    try:
        yield
    except (ApiRefusal, AccessDenied) as error:
        if error.status == 401:
            raise
        raise LaunchRefused(f"Kubernetes does not take {order.key}: {error}", hint=error.hint) from error

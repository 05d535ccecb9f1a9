"""The port of executors, on Modal sandboxes."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TypeVar

from corral.adapters.executors.modal.api import ModalApi, ModalRefusal, NoRoom
from corral.adapters.executors.modal.creations import Creations, wait_for
from corral.adapters.executors.modal.gpus import capacities, refusals
from corral.adapters.executors.modal.options import ModalOptions
from corral.adapters.executors.modal.preflight import preflight
from corral.adapters.executors.modal.sandboxes import (
    INSTALLATION,
    KEY,
    MIN_RANKS,
    NONE,
    RANK_TAG,
    RANKS,
    SandboxHandle,
    mark_of,
    name_of,
    request_of,
)
from corral.adapters.executors.modal.sightings import (
    SandboxEnd,
    ended_rank,
    is_broken,
    launch_sighting,
)
from corral.domain.hosts.capability import Requirements
from corral.domain.placements.orders import (
    Capacity,
    Launched,
    LaunchOrder,
    PreflightCheck,
    RankSighting,
    SightCause,
    Sighting,
    SightState,
)
from corral.ports.executor import ExecutorUnreachable, LaunchRefused

T = TypeVar("T")
# The oldest of what is remembered go first; what is forgotten is asked for again.
_MOST_KNOWN = 10_000
# Modal sends at most so many entries at once.
_MOST_LINES = 500


class ModalExecutor:
    """What there is stands at Modal, and any process finds it there."""

    def __init__(self, options: ModalOptions, *, api: ModalApi | None = None) -> None:
        self._options = options
        self._api = api or ModalApi(options)
        self._creations = Creations(self._api, self._not_made)
        self._lock = threading.Lock()
        self._ended: dict[str, SandboxEnd] = {}
        self._started: dict[str, bool] = {}
        self._tags: dict[str, dict[str, str]] = {}
        self._asked: dict[str, bool] = {}
        # Why Modal had no room for a sandbox, by its name.
        self._never: dict[str, str] = {}

    def preflight(self) -> list[PreflightCheck]:
        return preflight(self._api, self._options)

    def capacities(self) -> list[Capacity]:
        return capacities(self._options)

    def refusals(self, need: Requirements, ranks: int) -> list[str]:
        return refusals(need, ranks, self._options)

    def launch(self, order: LaunchOrder) -> str:
        """Modal lets no two sandboxes that run have one name: who asks again makes those that are missing."""
        reasons = self.refusals(order.need, order.min_ranks)
        if not (order.image or self._options.image):
            reasons.append("there is no image; set the executor's option `image`")
        known = self._known(order.installation, order.key, order.ranks)
        if reasons and not known:
            raise LaunchRefused(f"Modal cannot run {order.run_name}: {'; '.join(reasons)}")
        missing = [rank for rank in range(order.ranks) if rank not in known]
        if missing and not reasons:
            known |= self._made(order, missing)
        ids = tuple(known.get(rank, NONE) for rank in range(order.ranks))
        handle = SandboxHandle(mark_of(order.installation), order.key, order.min_ranks, ids)
        if sum(1 for one in ids if one != NONE) < order.min_ranks:
            # Half a gang holds machines for nothing.
            self.cancel(str(handle))
        return str(handle)

    def _known(self, installation: str, key: str, ranks: int) -> dict[int, str]:
        """The sandboxes that there are already, by rank."""
        marks = {INSTALLATION: mark_of(installation), KEY: key}
        found = {int(self._tags_of(one)[RANK_TAG]): one for one in self._api.running(marks)}
        for rank in range(ranks):
            if rank not in found and (one := self._api.find(name_of(installation, key, rank))) is not None:
                found[rank] = one
        return found

    def _made(self, order: LaunchOrder, missing: Sequence[int]) -> dict[int, str]:
        begun = self._creations.begin([request_of(order, self._options, rank) for rank in missing])
        wait_for(begun, self._options.timeout_s)
        found: dict[int, str] = {}
        for one in begun:
            if one.error is not None:
                _raise_unless_full(order, one.error)
            elif one.sandbox is not None:
                found[one.request.rank] = one.sandbox
        if any(one.error is None and one.sandbox is None for one in begun):
            # Others made it, or it waits for a machine: Modal knows it all the same.
            found |= self._known(order.installation, order.key, order.ranks)
        slow = [one for one in begun if one.error is None and one.request.rank not in found]
        if slow:
            raise ExecutorUnreachable(f"Modal has not taken in {len(slow)} sandboxes of {order.key} yet")
        return found

    def _not_made(self, name: str, error: Exception) -> None:
        if isinstance(error, NoRoom):
            self._keep(self._never, name, str(error))

    def observe(self, handles: Sequence[str]) -> Mapping[str, Sighting]:
        """One listing of what runs, and one look at each sandbox that has started or ended since the last."""
        asked = {text: handle for text in handles if (handle := SandboxHandle.parse(text)) is not None}
        running: set[str] = set()
        for mark in {handle.mark for handle in asked.values()}:
            running |= set(self._api.running({INSTALLATION: mark}))
        found: dict[str, Sighting] = {}
        for text, handle in asked.items():
            ranks = [self._seen(rank, one, handle, running) for rank, one in enumerate(handle.ids)]
            if all(one.state is SightState.GONE for one in ranks):
                continue
            if is_broken(ranks, handle.min_ranks):
                # As clusters do that know of gangs.
                self._terminate([one for one in handle.ids if one in running])
            found[text] = launch_sighting(ranks)
        return found

    def _seen(self, rank: int, sandbox: str, handle: SandboxHandle, running: set[str]) -> RankSighting:
        full = self._never.get(f"{handle.mark}-{handle.key}-{rank}")
        if sandbox == NONE:
            why = full or "Modal did not take it"
            return RankSighting(rank, SightState.FAILED, SightCause.UNSCHEDULABLE, why)
        if sandbox in running:
            if self._started.get(sandbox) or self._api.has_started(sandbox):
                self._keep(self._started, sandbox, True)
                return RankSighting(rank, SightState.RUNNING, node=sandbox)
            return RankSighting(rank, SightState.WAITING, None, "waits for a machine", node=sandbox)
        try:
            end = self._end_of(sandbox)
        except KeyError:
            return RankSighting(
                rank, SightState.GONE, SightCause.UNKNOWN, "Modal does not know it", node=sandbox
            )
        if end is None:
            # It came after the listing.
            return RankSighting(rank, SightState.STARTING, node=sandbox)
        seen = ended_rank(rank, end, sandbox)
        if seen.cause is SightCause.UNKNOWN and full is not None:
            # The SDK gave up the wait for a machine, and ended it.
            return seen._replace(cause=SightCause.UNSCHEDULABLE, detail=full)
        return seen

    def _end_of(self, sandbox: str) -> SandboxEnd | None:
        known = self._ended.get(sandbox)
        if known is None and (known := self._api.end_of(sandbox)) is not None:
            known = known._replace(asked=sandbox in self._asked)
            self._keep(self._ended, sandbox, known)
        return known

    def _tags_of(self, sandbox: str) -> dict[str, str]:
        known = self._tags.get(sandbox)
        if known is None:
            known = self._api.tags(sandbox)
            self._keep(self._tags, sandbox, known)
        return known

    def logs(self, handle: str, rank: int, *, most_bytes: int) -> str:
        parsed = SandboxHandle.parse(handle)
        if parsed is None or not 0 <= rank < len(parsed.ids) or parsed.ids[rank] == NONE or most_bytes <= 0:
            return ""
        text = self._api.logs(parsed.ids[rank], _MOST_LINES).encode()
        return text[-most_bytes:].decode(errors="ignore")

    def cancel(self, handle: str) -> None:
        parsed = SandboxHandle.parse(handle)
        if parsed is not None:
            self._terminate([one for one in parsed.ids if one != NONE])

    def _terminate(self, sandboxes: Sequence[str]) -> None:
        for one in sandboxes:
            self._keep(self._asked, one, True)
            self._api.terminate(one)

    def launched(self, installation: str) -> list[Launched]:
        mark = mark_of(installation)
        found: dict[str, dict[str, str]] = {}
        for sandbox in self._api.running({INSTALLATION: mark}):
            tags = self._tags_of(sandbox)
            found.setdefault(tags[KEY], tags)
        return [self._launched(installation, mark, tags) for tags in found.values()]

    def _launched(self, installation: str, mark: str, tags: Mapping[str, str]) -> Launched:
        key, ranks = tags[KEY], int(tags[RANKS])
        known = self._known(installation, key, ranks)
        ids = tuple(known.get(rank, NONE) for rank in range(ranks))
        return Launched(key, str(SandboxHandle(mark, key, int(tags[MIN_RANKS]), ids)))

    def _keep(self, known: dict[str, T], name: str, value: T) -> None:
        with self._lock:
            known[name] = value
            while len(known) > _MOST_KNOWN:
                del known[next(iter(known))]

    def close(self) -> None:
        """The SDK's connection is the process's own, and stays."""


def _raise_unless_full(order: LaunchOrder, error: Exception) -> None:
    """Where there is no room, the launch reads so: another executor may have some."""
    if isinstance(error, NoRoom):
        return
    if isinstance(error, ModalRefusal):
        said = f"Modal does not take {order.run_name}: {error}"
        raise LaunchRefused(said, hint=error.hint) from error
    raise error

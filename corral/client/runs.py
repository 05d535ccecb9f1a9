"""Submitting, reading and steering runs."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from corral.client.api import Api
from corral.client.http.stream import EventStream, Reconnecting, ServerEvent
from corral.domain.errors import SPEC_HINT, NotFound
from corral.domain.runs.runs import INSTANCE
from corral.wire.artifacts import ArtifactPage
from corral.wire.base import validated
from corral.wire.logs import LogLine, LogPage, MetricPage, MetricPoint
from corral.wire.runs import (
    CancelManyRequest,
    CancelRequest,
    EventPage,
    EventView,
    ManyAnswer,
    RemovedRun,
    RemoveManyRequest,
    RequeueManyRequest,
    RequeueRequest,
    RunDetail,
    RunPage,
    RunSelection,
    RunView,
    SubmitAnswer,
    SubmitRequest,
    WhyAnswer,
)
from corral.wire.spec.run_file import RunSpec

LATEST = "latest"


@dataclass(frozen=True)
class RunQuery:
    """Which runs a list shows; `label` as `key=value`.

    `mine` are those that the caller submitted. With `with_params` each run says what it was given.
    Without `instances` those of functions are left out.
    """

    project: str | None = None
    states: Sequence[str] = ()
    group: str | None = None
    name: str | None = None
    label: str | None = None
    schedule: str | None = None
    mine: bool = False
    with_params: bool = False
    instances: bool = True
    # How ids begin; an older server does not narrow a list down by it.
    prefix: str | None = None

    def params(self) -> dict[str, str | Sequence[str] | None]:
        params = {key: value for key, value in vars(self).items() if not isinstance(value, bool)}
        params["state"] = list(params.pop("states"))
        asked = {"mine": self.mine, "params": self.with_params}
        shown = {} if self.instances else {"instances": "false"}
        return {**params, **shown, **{name: "true" for name, wanted in asked.items() if wanted}}


RunsDone = Callable[[int], None]


def new_request_id() -> str:
    return secrets.token_hex(16)


class Runs(Api):
    """Each call takes a run's id, a unique prefix of it, or `latest`: the newest that one submitted."""

    root = "/v1/runs"

    def submit(
        self,
        specs: Sequence[RunSpec],
        *,
        group: str | None = None,
        max_running: int | None = None,
        request_id: str | None = None,
    ) -> SubmitAnswer:
        """Durable when this returns. The same `request_id` again gives the same runs."""
        body = _request(specs, request_id=request_id, group=group, max_running=max_running)
        return self._transport.repeat("POST", self.root, SubmitAnswer, body=body)

    def try_out(self, specs: Sequence[RunSpec], *, group: str | None = None) -> SubmitAnswer:
        """Check the runs and say where they could run; nothing is stored."""
        body = _request(specs, group=group, dry_run=True)
        return self._transport.repeat("POST", self.root, SubmitAnswer, body=body)

    def get(self, run: str) -> RunDetail:
        return self._transport.get(self._run(run), RunDetail)

    def resolve(self, run: str) -> str:
        """The full id."""
        return self._latest() if run == LATEST else self.get(run).id

    def page(self, where: RunQuery | None = None, *, cursor: str | None = None, limit: int = 50) -> RunPage:
        """Newest first."""
        where = where or RunQuery()
        found = self._transport.get(self.root, RunPage, {**where.params(), "cursor": cursor, "limit": limit})
        return found if where.instances or found.hidden is not None else _without_instances(found)

    def pages(self, where: RunQuery, *, page_size: int = 200) -> Iterator[RunPage]:
        """All of them."""
        page = self.page(where, limit=page_size)
        yield page
        while page.next is not None:
            page = self.page(where, cursor=page.next, limit=page_size)
            yield page

    def iter(self, where: RunQuery | None = None, *, page_size: int = 200) -> Iterator[RunView]:
        pages = self.pages(where or RunQuery(), page_size=page_size)
        return (run for page in pages for run in page.items)

    def cancel(self, run: str, *, reason: str = "") -> RunView:
        body = validated(CancelRequest, {"reason": reason}, what="the request")
        return self._transport.repeat("POST", self._run(run, "cancel"), RunView, body=body)

    def cancel_all(
        self, which: RunSelection, *, reason: str = "", dry_run: bool = False, told: RunsDone | None = None
    ) -> ManyAnswer:
        """Every run that fits, page by page."""
        given = {"which": which, "reason": reason, "dry_run": dry_run}
        body = validated(CancelManyRequest, given, what="the filter")
        return self._act_on_all(self._path("cancel"), body, told)

    def requeue_all(
        self,
        which: RunSelection,
        *,
        dry_run: bool = False,
        request_id: str | None = None,
        told: RunsDone | None = None,
    ) -> ManyAnswer:
        """Every run that fits and has ended, with those that ended because of it."""
        given = {"which": which, "request_id": request_id or new_request_id(), "dry_run": dry_run}
        body = validated(RequeueManyRequest, given, what="the filter")
        return self._act_on_all(self._path("requeue"), body, told)

    def remove_all(
        self,
        which: RunSelection,
        *,
        older_than_s: float | None = None,
        dry_run: bool = False,
        told: RunsDone | None = None,
    ) -> ManyAnswer:
        """Every run that fits and has ended, for good."""
        given = {"which": which, "older_than_s": older_than_s, "dry_run": dry_run}
        body = validated(RemoveManyRequest, given, what="the filter")
        return self._act_on_all(self._path("remove"), body, told)

    def _act_on_all(
        self,
        path: str,
        body: CancelManyRequest | RequeueManyRequest | RemoveManyRequest,
        told: RunsDone | None,
    ) -> ManyAnswer:
        """All pages as one answer; `told` hears after each how many runs were gone through."""
        answer = self._transport.repeat("POST", path, ManyAnswer, body=body)
        done, skipped = list(answer.done), list(answer.skipped)
        while answer.next is not None:
            if told is not None:
                told(len(done) + len(skipped))
            body = body.model_copy(update={"cursor": answer.next})
            answer = self._transport.repeat("POST", path, ManyAnswer, body=body)
            done += answer.done
            skipped += answer.skipped
        return ManyAnswer(done=done, skipped=skipped)

    def hold(self, run: str) -> RunView:
        """Keep it from starting until it is released."""
        return self._transport.repeat("POST", self._run(run, "hold"), RunView)

    def release(self, run: str) -> RunView:
        return self._transport.repeat("POST", self._run(run, "release"), RunView)

    def remove(self, run: str) -> RemovedRun:
        """For good. Once: a lost answer would make the second say that there is no such run."""
        return self._transport.once("DELETE", self._run(run), RemovedRun)

    def requeue(
        self, run: str, *, with_children: bool = False, request_id: str | None = None
    ) -> SubmitAnswer:
        """A final run once more, as the next generation."""
        body = RequeueRequest(request_id=request_id or new_request_id(), with_children=with_children)
        return self._transport.repeat("POST", self._run(run, "requeue"), SubmitAnswer, body=body)

    def why(self, run: str) -> WhyAnswer:
        return self._transport.get(self._run(run, "why"), WhyAnswer)

    def artifacts(self, run: str) -> ArtifactPage:
        return self._transport.get(self._run(run, "artifacts"), ArtifactPage)

    def checkpoints(self, run: str) -> ArtifactPage:
        return self._transport.get(self._run(run, "checkpoints"), ArtifactPage)

    def events(self, run: str, *, after: int = 0, limit: int = 200) -> EventPage:
        return self._transport.get(self._run(run, "events"), EventPage, {"after": after, "limit": limit})

    def iter_events(self, run: str) -> Iterator[EventView]:
        """What there is now, from the start."""
        return self._transport.items(self._run(run, "events"), EventPage, {"limit": 200}, cursor="after")

    def follow_events(
        self, run: str, *, after: int = 0, reconnecting: Reconnecting | None = None
    ) -> Iterator[EventView]:
        """Every event until the run is final, through broken connections."""
        path = self._run(run, "events")

        def cursor_of(event: ServerEvent) -> str | None:
            if event.event != "event":
                return None
            return str(EventView.model_validate_json(event.data).n)

        following = EventStream(self._transport, path, {"after": after}, "after", cursor_of, reconnecting)
        for event in following.events():
            if event.event == "event":
                yield EventView.model_validate_json(event.data)

    def iter_logs(self, run: str, *, tail: int | None = None, rank: int = 0) -> Iterator[LogLine]:
        """What there is now of a rank, from the start or the last `tail` lines."""
        page = self.log_page(run, tail=tail, rank=rank)
        yield from page.items
        while page.items:
            page = self.log_page(run, cursor=page.next, rank=rank)
            yield from page.items

    def log_page(
        self, run: str, *, cursor: str | None = None, tail: int | None = None, rank: int = 0
    ) -> LogPage:
        """What there is after `cursor`, a thousand lines at most; its `next` is where to go on."""
        params = {"cursor": cursor, "tail": tail, "limit": 1000, **_of_rank(rank)}
        return self._transport.get(self._run(run, "logs"), LogPage, params)

    def follow(
        self,
        run: str,
        *,
        cursor: str | None = None,
        tail: int | None = None,
        rank: int = 0,
        reconnecting: Reconnecting | None = None,
    ) -> Iterator[LogLine | RunView]:
        """Log lines of a rank, and the run whenever its state changes; the last item is the final run."""
        path = self._run(run, "logs")
        begin = {"cursor": cursor, "tail": tail, **_of_rank(rank)}
        following = EventStream(self._transport, path, begin, "cursor", lambda event: event.id, reconnecting)
        for event in following.events():
            if event.event == "log":
                yield LogLine.model_validate_json(event.data)
            elif event.event in ("state", "end"):
                yield RunView.model_validate_json(event.data)

    def iter_metrics(self, run: str, *, name: str | None = None) -> Iterator[MetricPoint]:
        path, cursor = self._run(run, "metrics"), None
        while True:
            page = self._transport.get(path, MetricPage, {"cursor": cursor, "limit": 1000, "name": name})
            yield from page.items
            # A page can be empty because all its points have other names; the end is where nothing moves.
            if page.next == cursor:
                return
            cursor = page.next

    def _run(self, run: str, *rest: str) -> str:
        """The path of a run, or of what is below it."""
        return self._path(self._latest() if run == LATEST else run, *rest)

    def _latest(self) -> str:
        newest = self.page(RunQuery(mine=True), limit=1).items
        if not newest:
            raise NotFound(
                "you have submitted no run yet",
                hint="Submit one: `corral run -- COMMAND`; or give a run's id.",
            )
        return newest[0].id


def _without_instances(page: RunPage) -> RunPage:
    """Of a server that does not leave them out by itself."""
    kept = [run for run in page.items if run.kind != INSTANCE]
    return page.model_copy(update={"items": kept, "hidden": len(page.items) - len(kept)})


def _of_rank(rank: int) -> dict[str, int]:
    """Older servers know no ranks, and have only the first."""
    return {"rank": rank} if rank else {}


def _request(specs: Sequence[RunSpec], *, request_id: str | None = None, **terms: Any) -> SubmitRequest:
    """InvalidInput names what is wrong with which run."""
    given = {"request_id": request_id or new_request_id(), "runs": list(specs), **terms}
    return validated(SubmitRequest, given, what="what would be submitted", hint=SPEC_HINT)

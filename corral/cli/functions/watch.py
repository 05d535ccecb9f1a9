"""What the instances of endpoints print, and which calls ended, as it comes."""

from __future__ import annotations

from collections.abc import Iterable

from corral.cli.display import render
from corral.client.corral import Corral
from corral.client.runs import RunQuery
from corral.domain.runs.runs import INSTANCE
from corral.domain.runs.states import FINAL
from corral.durations import format_duration
from corral.wire.calls import CallView
from corral.wire.runs import RunView

# Of an endpoint so many of the newest instances and calls are looked at.
_INSTANCES = 5
_CALLS = 50
_ENDED = ("succeeded", "failed", "cancelled", "expired")


class EndpointWatch:
    """`show_output` and `show_calls` print what is new since they were asked last."""

    def __init__(self, corral: Corral, project: str, *, tail: int = 100) -> None:
        self._corral = corral
        self._project = project
        self._tail = tail
        self._cursors: dict[str, str | None] = {}
        self._over: set[str] = set()
        self._told: set[str] = set()
        # Instances whose output has begun.
        self._named: set[str] = set()

    def skip_earlier(self, names: Iterable[str]) -> None:
        """What was there before the watch began is not shown."""
        for name in names:
            self._over |= {run.id for run in self.instances(name) if run.state in FINAL}
            self._told |= {call.id for call in self._calls(name) if call.state in _ENDED}

    def instances(self, name: str) -> list[RunView]:
        """The oldest first."""
        page = self._corral.runs.page(RunQuery(project=self._project, name=name), limit=_INSTANCES)
        return [run for run in reversed(page.items) if run.kind == INSTANCE]

    def show_output(self, name: str) -> None:
        for run in self.instances(name):
            if run.id in self._over:
                continue
            if run.id not in self._cursors:
                self._cursors[run.id] = None
            self._show_new(run)
            # Its last output was there before it ended.
            if run.state in FINAL:
                self._over.add(run.id)

    def _show_new(self, run: RunView) -> None:
        while True:
            cursor = self._cursors[run.id]
            page = self._corral.runs.log_page(run.id, cursor=cursor, tail=None if cursor else self._tail)
            # An instance that says nothing is not worth a line.
            if page.items and run.id not in self._named:
                self._named.add(run.id)
                render.note(f"{run.id} ({run.state})")
            for line in page.items:
                render.pass_on(f"{line.call or '-'} {line.text}", err=line.stream != "stdout")
            self._cursors[run.id] = page.next
            if not page.items:
                return

    def show_calls(self, name: str) -> None:
        for call in reversed(self._calls(name)):
            if call.state in _ENDED and call.id not in self._told:
                self._told.add(call.id)
                why = f": {call.error.get('type')}: {call.error.get('message')}" if call.error else ""
                ran = f" in {format_duration(call.ran_s)}" if call.ran_s else ""
                render.say(f"{call.id} {name} {call.function} {call.state}{ran}{why}")

    def _calls(self, name: str) -> list[CallView]:
        return self._corral.calls.page(endpoint=name, limit=_CALLS).items

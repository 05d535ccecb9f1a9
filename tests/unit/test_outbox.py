"""Outcomes that end at the same time are told in one call."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from corral.domain.errors import CorralError, LeaseLost, ServerUnreachable
from corral.domain.ids import new_lease_id
from corral.wire.leases import FinishRequest, OutcomeAnswer, OutcomeReport
from corral.worker.report.outbox import Outbox

DONE = OutcomeAnswer(run_state="succeeded", rank_state="done")


def a_report() -> OutcomeReport:
    return OutcomeReport(lease_id=new_lease_id(), epoch=1, finish=FinishRequest())


class Server:
    """Answers like the client's `leases`; the first call waits until it is let go."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.first_came = threading.Event()
        self.go = threading.Event()
        self.lost: set[str] = set()
        self.away = False

    def outcomes(
        self, reports: Sequence[OutcomeReport]
    ) -> list[tuple[OutcomeAnswer | None, CorralError | None]]:
        self.calls.append([report.lease_id for report in reports])
        self.first_came.set()
        assert self.go.wait(120)
        if self.away:
            raise ServerUnreachable("it is away")
        return [
            (None, LeaseLost("gone")) if report.lease_id in self.lost else (DONE, None) for report in reports
        ]

    @property
    def corral(self) -> Any:
        return SimpleNamespace(leases=self)


def send_in_threads(outbox: Outbox, server: Server, reports: list[OutcomeReport]) -> dict[str, object]:
    found: dict[str, object] = {}

    def send(report: OutcomeReport) -> None:
        try:
            found[report.lease_id] = outbox.send(server.corral, report)
        except CorralError as error:
            found[report.lease_id] = error

    first = threading.Thread(target=send, args=(reports[0],))
    first.start()
    assert server.first_came.wait(120)
    others = [threading.Thread(target=send, args=(report,)) for report in reports[1:]]
    for thread in others:
        thread.start()
    while len(outbox._waiting) < len(others):
        threading.Event().wait(0.001)
    server.go.set()
    for thread in (first, *others):
        thread.join(120)
    return found


def test_what_comes_while_a_call_is_under_way_goes_with_the_next() -> None:
    server, reports = Server(), [a_report() for _ in range(9)]

    found = send_in_threads(Outbox(), server, reports)

    assert [len(call) for call in server.calls] == [1, 8]
    assert found == {report.lease_id: DONE for report in reports}


def test_each_report_stands_or_falls_alone() -> None:
    server, reports = Server(), [a_report() for _ in range(3)]
    server.lost = {reports[1].lease_id}

    found = send_in_threads(Outbox(), server, reports)

    assert isinstance(found[reports[1].lease_id], LeaseLost)
    assert (found[reports[0].lease_id], found[reports[2].lease_id]) == (DONE, DONE)


def test_a_server_that_is_away_is_told_to_each_and_the_next_one_is_tried_again() -> None:
    outbox, server = Outbox(), Server()
    server.away = True
    found = send_in_threads(outbox, server, [a_report(), a_report()])
    assert all(isinstance(error, ServerUnreachable) for error in found.values())

    server.away = False
    assert outbox.send(server.corral, a_report()) == DONE
    lost = a_report()
    server.lost = {lost.lease_id}
    with pytest.raises(LeaseLost):
        outbox.send(server.corral, lost)

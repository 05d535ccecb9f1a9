"""Four replicas through a tape of failures: `python -m diloco.day_for_tests` with the tape as JSON. Each
event comes when a round is committed, so a slow machine has the same day. Prints how all ended, as JSON."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from diloco.replica_for_tests import Place, Plan, started

NAMES = ("0", "1", "2", "3")
KINDS = ("kill", "kill", "stall", "long stall", "duplicate", "join", "leave")
# A stall of so many rounds: what was read before it is still there, or long removed.
STALLS = {"stall": 1, "long stall": 5}


class Event(NamedTuple):
    """After this round: `whom` by name. Who is gone comes back after `rounds` more, and who came leaves;
    `after_s` go by first, so that it happens at any instruction."""

    round: int
    kind: str
    whom: str
    rounds: int
    after_s: float


def tape(seed: int, rounds: int) -> list[Event]:
    """At most two of the four are away at once, so that a quorum of two is always there."""
    dice, events = random.Random(seed), []
    back = dict.fromkeys(NAMES, 0)
    for number in range(1, rounds - 8):
        free = [name for name, until in back.items() if until <= number]
        if len(free) <= 2 or dice.random() < 0.3:
            continue
        kind, whom = dice.choice(KINDS), dice.choice(free)
        away = STALLS.get(kind, dice.randint(1, 3))
        back[whom] = number if kind in ("duplicate", "join") else number + away
        events.append(Event(number, kind, whom, away, round(dice.uniform(0, 0.2), 3)))
    return events


class Day:
    """The processes of all lives that replicas have had."""

    def __init__(self, place: Place, plan: Plan) -> None:
        self.place, self.plan = place, plan
        self.lives: dict[str, int] = {}
        self.of: dict[str, str] = {}
        self.guests: dict[Event, str] = {}
        for name in NAMES:
            self.start(name)

    def start(self, name: str) -> None:
        tag = f"life{len(self.lives)}"
        self.lives[f"{name}-{tag}"] = started(self.place, self.plan, name, tag)
        self.of[name] = f"{name}-{tag}"

    def newest(self) -> int:
        """By what replicas wrote down: nobody here may use the store."""
        return max((one["at"] for one in self.place.seen()), default=0)

    def wait_for(self, number: int) -> None:
        while self.newest() < min(number, self.plan.rounds):
            time.sleep(0.02)

    def send(self, name: str, what: signal.Signals) -> None:
        """To a process that may have ended by itself, and was not waited for."""
        os.kill(self.lives[self.of[name]], what)

    def happen(self, event: Event) -> None:
        time.sleep(event.after_s)
        if event.kind == "kill":
            self.send(event.whom, signal.SIGKILL)
        elif event.kind == "leave":
            self.send(event.whom, signal.SIGTERM)
        elif event.kind in STALLS:
            self.send(event.whom, signal.SIGSTOP)
        elif event.kind == "duplicate":
            self.start(event.whom)
        elif event.kind == "join":
            self.guests[event] = f"guest{len(self.lives)}"
            self.start(self.guests[event])

    def undo(self, event: Event) -> None:
        if event.kind in STALLS:
            self.send(event.whom, signal.SIGCONT)
        elif event.kind in ("kill", "leave"):
            self.start(event.whom)
        elif event.kind == "join":
            self.send(self.guests[event], signal.SIGTERM)


def main(place: Place, plan: Plan, events: Sequence[Event]) -> None:
    day = Day(place, plan)
    for number in range(1, plan.rounds + 1):
        for event in events:
            if number == event.round:
                day.wait_for(number)
                day.happen(event)
            if number == event.round + event.rounds:
                day.wait_for(number)
                day.undo(event)
    ends = {name: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for name, child in day.lives.items()}
    print(json.dumps(ends))


if __name__ == "__main__":
    said = json.loads(sys.argv[1])
    where = Place(Path(said["folder"]), said["url"], said["endpoint"])
    main(where, Plan(**said["plan"]), [Event(*one) for one in said["events"]])

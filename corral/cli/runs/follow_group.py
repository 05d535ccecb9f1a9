"""Follows a group: what its runs print, how many stand where, and 0 when every one has succeeded."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from corral.cli.display.render import note
from corral.cli.display.run_output import GroupOutput
from corral.cli.display.runs import told
from corral.cli.runs.follow import DETACHED, FAILED, POLL_S
from corral.cli.runs.waiting import WAITING, WaitingWords
from corral.client.corral import Corral
from corral.client.runs import RunQuery
from corral.domain.errors import CorralError, NotFound
from corral.domain.runs.states import FINAL, RunState
from corral.wire.logs import LogLine
from corral.wire.runs import RunView

# Each is a connection; what others print is kept by the server, and comes when one of these has ended.
MOST_STREAMS = 16
# Reading a long list again and again must not be all that the server does.
_REST_SHARE = 4

Heard = Callable[[str, LogLine | RunView], None]


@dataclass
class GroupStreams:
    """The output of several runs at once, each read in a thread of its own."""

    corral: Corral
    heard: Heard
    ended: Callable[[str], None]
    tail: int | None = None
    error: CorralError | None = None
    _begun: set[str] = field(default_factory=set)
    _threads: list[threading.Thread] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, runs: list[RunView]) -> None:
        """Read those that have something to read, as many as there is room for."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        for run in runs:
            if len(self._threads) == MOST_STREAMS:
                return
            if run.attempt > 0 and run.id not in self._begun:
                self._begun.add(run.id)
                # Ctrl-C leaves at once: nobody waits for a stream that is being read.
                thread = threading.Thread(target=self._read, args=(run.id,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def is_done(self, runs: list[RunView]) -> bool:
        """Whether all that the runs printed was read. Raise what kept a stream from being read."""
        if self.error is not None:
            raise self.error
        is_reading = any(thread.is_alive() for thread in self._threads)
        return not is_reading and all(run.attempt == 0 or run.id in self._begun for run in runs)

    def _read(self, run_id: str) -> None:
        try:
            for item in self.corral.runs.follow(run_id, tail=self.tail):
                with self._lock:
                    self.heard(run_id, item)
        except NotFound:
            # It was removed meanwhile.
            pass
        except CorralError as error:
            self.error = error
        finally:
            self.ended(run_id)


def follow_group(corral: Corral, group_id: str, count: int, *, quiet: bool = False) -> int:
    """Until all runs of a group are final; 0 when every one succeeded."""
    output = GroupOutput(quiet)

    def heard(run_id: str, item: LogLine | RunView) -> None:
        if isinstance(item, LogLine):
            output.write(run_id, item)

    return watch_group(corral, group_id, count, GroupStreams(corral, heard, output.end), say=output.say)


def watch_group(
    corral: Corral, group_id: str, count: int, streams: GroupStreams | None, *, say: Callable[[str], None]
) -> int:
    """The same; without `streams`, nothing of what the runs print is shown."""
    waiting = WaitingWords(corral, say)
    before: Counter[str] = Counter()
    try:
        while True:
            began = time.monotonic()
            runs = sorted(corral.runs.iter(RunQuery(group=group_id)), key=lambda run: run.created_at)
            states = Counter(run.state for run in runs)
            if streams is not None:
                streams.begin(runs)
            if all(run.state in FINAL for run in runs):
                break
            if states != before:
                say(_counts(states))
                before = states
            _tell_why_none_starts(waiting, runs)
            time.sleep(max(POLL_S, _REST_SHARE * (time.monotonic() - began)))
        while streams is not None and not streams.is_done(runs):
            streams.begin(runs)
            time.sleep(POLL_S / 20)
        # Below the last line that a run printed.
        say(_counts(states))
    except KeyboardInterrupt:
        note(f"\ndetached; the runs go on. Come back with `corral logs -f --group {group_id}`")
        return DETACHED
    if states[RunState.SUCCEEDED] >= count:
        return 0
    for line in _ends(corral, group_id):
        say(line)
    return FAILED


def _counts(states: Counter[str]) -> str:
    return "corral: " + ", ".join(f"{n} {state}" for state, n in sorted(states.items()))


def _tell_why_none_starts(waiting: WaitingWords, runs: list[RunView]) -> None:
    held_up = [run for run in runs if run.state in WAITING]
    moving = len(runs) - len(held_up) - sum(run.state in FINAL for run in runs)
    # While some run, the others wait for their turn.
    waiting.waits(held_up[0].id if held_up and not moving else None)
    waiting.look()


def _ends(corral: Corral, group_id: str) -> list[str]:
    lines: list[str] = []
    for one in corral.groups.get(group_id).ended_with:
        # Its further lines are what the program wrote.
        first = (one.detail or "").partition("\n")[0]
        why = ": ".join(word for word in (told(one.reason), first) if word)
        lines.append(f"corral: {one.runs} {one.state}: {why} (for example {one.example})")
    return lines

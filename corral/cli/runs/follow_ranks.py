"""What all ranks of a run print, each line with its rank: as it is now, or as it comes until the run ends."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from corral.cli.display.render import note
from corral.cli.display.run_output import RankOutput
from corral.cli.runs.follow import DETACHED, POLL_S, exit_code, follow, summary
from corral.cli.runs.waiting import WAITING, WaitingWords
from corral.client.corral import Corral
from corral.domain.errors import CorralError, InvalidInput
from corral.domain.runs.states import FINAL
from corral.wire.logs import LogLine
from corral.wire.runs import RunView

# Each is a connection.
MOST_STREAMS = 64


def iter_ranks(corral: Corral, run_id: str, ranks: int, *, tail: int | None = None) -> Iterator[LogLine]:
    """What there is now, by time."""
    lines = [corral.runs.iter_logs(run_id, tail=tail, rank=rank) for rank in range(ranks)]
    return heapq.merge(*lines, key=lambda line: line.at)


@dataclass
class RankStreams:
    """The output of all ranks, each read in a thread of its own; `last` is the run as it stands."""

    corral: Corral
    run_id: str
    ranks: int
    heard: Callable[[LogLine], None]
    tail: int | None = None
    last: RunView | None = None
    error: CorralError | None = None
    _threads: list[threading.Thread] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> None:
        for rank in range(self.ranks):
            # Ctrl-C leaves at once: nobody waits for a stream that is being read.
            thread = threading.Thread(target=self._read, args=(rank,), daemon=True)
            self._threads.append(thread)
            thread.start()

    @property
    def is_reading(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def wait(self, seconds: float) -> None:
        self._threads[0].join(seconds)

    def _read(self, rank: int) -> None:
        try:
            for item in self.corral.runs.follow(self.run_id, tail=self.tail, rank=rank):
                with self._lock:
                    if isinstance(item, LogLine):
                        self.heard(item)
                    else:
                        self.last = item
        except CorralError as error:
            self.error = error


def follow_run(corral: Corral, run_id: str, ranks: int, *, quiet: bool = False) -> int:
    """Until the run is final; gives its exit code. Of many ranks the first is shown."""
    if 1 < ranks <= MOST_STREAMS:
        return follow_ranks(corral, run_id, ranks, quiet=quiet)
    return follow(corral, run_id, quiet=quiet)


def follow_ranks(
    corral: Corral,
    run_id: str,
    ranks: int,
    *,
    tail: int | None = None,
    quiet: bool = False,
    heard: Callable[[LogLine], None] | None = None,
) -> int:
    """Until the run is final; gives its exit code. `heard` takes the lines instead of the terminal."""
    if ranks > MOST_STREAMS:
        raise InvalidInput(
            f"{run_id} has {ranks} ranks; at most {MOST_STREAMS} are followed at once",
            hint=f"Follow one of them: `corral logs {run_id} --rank 0 -f`.",
        )
    output = RankOutput(quiet, ranks=ranks)
    streams = RankStreams(corral, run_id, ranks, heard or output.write_line, tail)
    streams.begin()
    try:
        _watch(streams, WaitingWords(corral, output.say), output)
    except KeyboardInterrupt:
        note(f"\ndetached; {run_id} goes on. Come back with `corral logs -f --all {run_id}`")
        return DETACHED
    output.end_all()
    if streams.error is not None:
        raise streams.error
    last = corral.runs.get(run_id)
    if not quiet:
        for line in summary(last):
            note(line)
    return exit_code(last)


def _watch(streams: RankStreams, waiting: WaitingWords, output: RankOutput) -> None:
    said = ""
    while streams.is_reading and streams.error is None:
        streams.wait(POLL_S / 5)
        run = streams.last
        if run is None:
            continue
        if run.state != said and run.state not in FINAL:
            said = run.state
            output.say(f"corral: {run.id} is {run.state}")
        waiting.waits(run.id if run.state in WAITING else None)
        waiting.look()

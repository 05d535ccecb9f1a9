"""`python -m bench [all | NAME ...] [--quick]`: measure, print, and keep the tables in bench/results.

`python -m bench stale` lists the tables whose measured code has changed since.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from bench import (
    beats,
    cycles,
    deep_queue,
    eligibility,
    gang_start,
    gang_waits,
    help_time,
    idle,
    manifest,
    memory,
    observe,
    polling,
    simulation,
    start,
    upload,
)
from bench.commits import current, show_stale
from bench.diloco import quality as diloco_quality
from bench.diloco import rounds as diloco_rounds
from bench.diloco import streaming as diloco_streaming
from bench.functions import measure as functions
from bench.machine import look, others_busy
from bench.options import Options
from bench.report import RESULTS, Result, show, write, write_summary

SCRIPTS: Mapping[str, Callable[[Options], Result]] = {
    module.NAME: module.measure
    for module in (
        cycles,
        start,
        functions,
        deep_queue,
        eligibility,
        polling,
        beats,
        manifest,
        memory,
        upload,
        help_time,
        simulation,
        gang_waits,
        gang_start,
        observe,
        idle,
        diloco_rounds,
        diloco_streaming,
        diloco_quality,
    )
}
SETTLE_S = 20.0
QUIET = 0.2
# Twice as long as the longest takes on a quiet machine, and more.
LIMIT_S = 3600


class TookTooLong(Exception):
    """A bench was ended because of its time."""


def main() -> int:
    arguments = _parse()
    if arguments.names == ["stale"]:
        show_stale()
        return 0
    signal.signal(signal.SIGTERM, _leave)
    names = arguments.names if arguments.names and "all" not in arguments.names else list(SCRIPTS)
    options = Options(quick=arguments.quick)
    machine, commit = look(), current()
    print("\n".join(machine.lines()) + "\n", flush=True)
    results: list[Result] = []
    failed = False
    for name in names:
        others = 0.0 if options.quick else _settle()
        try:
            with _limited(name):
                results.append(SCRIPTS[name](options))
        except TookTooLong as error:
            print(f"{error}; nothing of it is kept\n", file=sys.stderr, flush=True)
            failed = True
            continue
        if others > QUIET:
            results[-1].notes.append(
                f"the machine was not quiet: others used {others:.1f} cores as this began"
            )
        print(show(results[-1]), flush=True)
        if arguments.out is not None:
            write(results[-1], machine, commit, arguments.out)
    if arguments.out is not None and len(results) == len(SCRIPTS):
        write_summary(results, machine, commit, arguments.out)
    return int(failed)


@contextmanager
def _limited(name: str) -> Iterator[None]:
    """No bench goes on for ever: an exception, so that every `finally` ends what it started."""

    def over(*_: object) -> None:
        raise TookTooLong(f"the bench {name} did not end within {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all, stale, or of {', '.join(SCRIPTS)}")
    parser.add_argument("--quick", action="store_true", help="a smoke test: seconds, no rivals, nothing kept")
    parser.add_argument("--out", type=Path, help="where to keep the tables; bench/results unless --quick")
    arguments = parser.parse_args()
    # Not by `choices`: argparse refuses an empty list there.
    if unknown := set(arguments.names) - {*SCRIPTS, "all", "stale"}:
        parser.error(f"there is no bench {', '.join(sorted(unknown))}; choose from {', '.join(SCRIPTS)}, all")
    if arguments.out is None and not arguments.quick:
        arguments.out = RESULTS
    return arguments


def _settle() -> float:
    """Give what else runs here a while to end; return how many cores it still uses."""
    give_up_at = time.monotonic() + SETTLE_S
    while (busy := others_busy()) > QUIET and time.monotonic() < give_up_at:
        pass
    return busy


def _leave(number: int, _: FrameType | None) -> None:
    # An exception, so that every `finally` ends what it started.
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())

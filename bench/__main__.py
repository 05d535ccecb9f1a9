"""`python -m bench [all | NAME ...] [--quick]`: measure, print, and keep the tables in bench/results."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType

from bench import beats, cycles, deep_queue, help_time, memory, start, upload
from bench.machine import look, others_busy
from bench.options import Options
from bench.report import RESULTS, Result, show, write, write_summary

SCRIPTS: Mapping[str, Callable[[Options], Result]] = {
    module.NAME: module.measure for module in (cycles, start, deep_queue, beats, memory, upload, help_time)
}
SETTLE_S = 20.0


def main() -> int:
    arguments = _parse()
    signal.signal(signal.SIGTERM, _leave)
    names = list(SCRIPTS) if "all" in arguments.names else arguments.names
    options = Options(quick=arguments.quick)
    machine = look()
    print("\n".join(machine.lines()) + "\n", flush=True)
    results: list[Result] = []
    for name in names:
        if not options.quick:
            _settle()
        results.append(SCRIPTS[name](options))
        print(show(results[-1]), flush=True)
        if arguments.out is not None:
            write(results[-1], machine, arguments.out)
    if arguments.out is not None and len(results) == len(SCRIPTS):
        write_summary(results, machine, arguments.out)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", default=["all"], choices=[*SCRIPTS, "all"], metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="a smoke test: seconds, no rivals, nothing kept")
    parser.add_argument("--out", type=Path, help="where to keep the tables; bench/results unless --quick")
    arguments = parser.parse_args()
    if arguments.out is None and not arguments.quick:
        arguments.out = RESULTS
    return arguments


def _settle() -> None:
    """Give what else runs here a while to end; how much others used is in the tables."""
    give_up_at = time.monotonic() + SETTLE_S
    while others_busy() > 0.2 and time.monotonic() < give_up_at:
        pass


def _leave(number: int, _: FrameType | None) -> None:
    # An exception, so that every `finally` ends what it started.
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())

"""The entry of the `corral` program: Ctrl-C while its modules are loaded ends it without a word."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        # Here, since loading it takes most of the time that a short command takes.
        from corral.cli.main import main as run  # noqa: PLC0415
    except KeyboardInterrupt:
        sys.exit(130)
    run()

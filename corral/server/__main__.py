"""`python -m corral.server`: the control plane alone."""

from __future__ import annotations

import logging
import sys

import corral.lean_imports  # noqa: F401 - before anything that imports httpx

# isort: split
from corral.bootstrap.server import run_server
from corral.domain.errors import CorralError
from corral.settings import read_settings


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        run_server(read_settings())
    except CorralError as error:
        sys.stderr.write(f"error: {error.message}\n" + (f"hint: {error.hint}\n" if error.hint else ""))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

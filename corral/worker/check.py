"""`python -m corral.worker.check FOLDER`: whether a worker can run here, and what it would report."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

# Imported to see that all of the worker loads here.
import corral.worker.__main__  # noqa: F401
from corral.worker.agent import default_slots
from corral.worker.host.probe import HostProbe


def main() -> int:
    capability = HostProbe(Path(sys.argv[1]), []).capability()
    sys.stdout.write(
        json.dumps({"capability": asdict(capability), "slots": default_slots(capability)}) + "\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

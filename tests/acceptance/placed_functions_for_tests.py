"""Functions whose instances a cluster brings up; where they are brought up, the tests say."""

from __future__ import annotations

import os
import time
from pathlib import Path

import corral

app = corral.App("yard")


@app.function(max_instances=2, per_instance=1, idle="1s")
def meet(folder: str, me: str, other: str) -> int:
    """Ends only where two instances run at a time."""
    Path(folder, me).touch()
    while not Path(folder, other).exists():
        time.sleep(0.05)
    return os.getpid()


@app.function(idle="1s")
def second_time(folder: str) -> str:
    """The first time it does not end."""
    mark = Path(folder, "begun")
    if not mark.exists():
        mark.touch()
        time.sleep(600)
    return "done"

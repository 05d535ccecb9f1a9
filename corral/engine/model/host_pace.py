"""How quickly this host sets a run up, learnt from the runs before.

Between two hosts with the same card the time to import, trace and compile differs by half. So each run
leaves how many times as long its set-up took as on a usual host, beside the code that was compiled here.
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from statistics import median

from corral.engine.model.compiled_code import folder
from corral.files.atomic import write_whole
from corral.recipes.forecast import Forecast

_FILE = "pace.json"
# So many runs are enough to even out, and few enough to follow a host that changes.
_KEPT = 5
# What lies outside says more about one odd run than about the host.
_LEAST, _MOST = 0.25, 4.0


def usual() -> float:
    """1 on a host that nothing is known of, which also counts as one run among the few that are known."""
    return median([1.0, *_read()])


def remember(forecast: Forecast, setup_s: float) -> None:
    """What a run's set-up took, beside what was forecast at the pace known then."""
    found = setup_s / forecast.setup_s * forecast.pace
    # A folder that cannot be written to teaches nothing, and the run goes on.
    with suppress(OSError):
        folder().mkdir(parents=True, exist_ok=True)
        write_whole(folder() / _FILE, json.dumps([*_read(), found][-_KEPT:]).encode())


def _read() -> list[float]:
    with suppress(OSError, ValueError):
        kept = json.loads((folder() / _FILE).read_text(encoding="utf-8"))
        if isinstance(kept, list):
            known = [float(one) for one in kept if isinstance(one, int | float) and math.isfinite(one)]
            return [min(max(one, _LEAST), _MOST) for one in known]
    return []

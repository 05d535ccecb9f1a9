"""Three replicas, one of which breaks at a chosen point of a round: `python -m diloco.grid_for_tests` with
what to break as JSON. Prints how they ended, as JSON."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from diloco.replica_for_tests import Place, Plan, started

VICTIM, BROKEN_ROUND = "1", 2
NAMES = ("0", VICTIM, "2")
_LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT


class Breaker:
    """Breaks its process at one point of one round, once."""

    def __init__(self, point: str, act: Callable[[], None]) -> None:
        self.point, self.act, self.seen = point, act, 0

    def __call__(self, point: str) -> None:
        if point == self.point:
            self.seen += 1
            if self.seen == BROKEN_ROUND:
                self.act()


def main(place: Place, plan: Plan, point: str, fault: str) -> None:
    broken = place.folder / "broken"

    def act() -> None:
        broken.touch()
        if fault in ("kill", "restart"):
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault == "stall":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif fault == "skew":
            # A day ahead, for whatever would ask this machine's clock.
            ahead = time.time() + 86400.0
            time.time = lambda: ahead

    if place.endpoint:
        # Once for all; nobody uses it here.
        importlib.import_module("corral.diloco.bucket_store")
    children = {name: started(place, plan, name) for name in NAMES if name != VICTIM}
    children[VICTIM] = started(place, plan, VICTIM, reached=Breaker(point, act))
    while not broken.exists() and os.waitid(os.P_PID, children[VICTIM], _LOOK) is None:
        time.sleep(0.01)
    if fault in ("restart", "duplicate"):
        children["again"] = started(place, plan, VICTIM, "again")
    elif fault == "join":
        children["joined"] = started(place, plan, "3", "joined")
    elif fault == "stall":
        # Longer than the grace.
        time.sleep(1.5 * plan.grace_s)
        os.kill(children[VICTIM], signal.SIGCONT)
    codes = {name: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for name, child in children.items()}
    print(json.dumps(codes))


if __name__ == "__main__":
    said = json.loads(sys.argv[1])
    where = Place(Path(said["folder"]), said["url"], said["endpoint"])
    main(where, Plan(**said["plan"]), said["point"], said["fault"])

"""DESIGN.md section 3 and 9, read again by hand: nothing here comes from `corral.domain`."""

from __future__ import annotations

from typing import Final

_ENDS: Final = ("stopped", "fail", "lease_expired", "stop_deadline")

RUN: Final[dict[str, dict[str, str]]] = {
    "held": {"release": "queued", "fail": "failed", "cancel": "cancelled"},
    "queued": {
        "hold": "held",
        "place": "placing",
        "claim": "running",
        "reattach": "running",
        "fail": "failed",
        "cancel": "cancelled",
    },
    "placing": {
        "withdraw": "queued",
        "placement_lost": "queued",
        "claim": "running",
        "reattach": "running",
        "fail": "failed",
        "cancel": "cancelled",
    },
    "running": {
        "requeue": "queued",
        "fail": "failed",
        "finish": "succeeded",
        "cancel": "stopping",
        "halt": "halting",
        "preempt": "yielding",
    },
    "stopping": {"finish": "succeeded", **dict.fromkeys(_ENDS, "cancelled")},
    "halting": {"finish": "succeeded", **dict.fromkeys(_ENDS, "failed")},
    "yielding": {
        "finish": "succeeded",
        **dict.fromkeys(_ENDS, "queued"),
        "cancel": "stopping",
        "halt": "halting",
    },
    "succeeded": {},
    "failed": {},
    "cancelled": {},
}

_RANK_ENDS: Final = ("fail", "stopped", "lease_expired")

RANK: Final[dict[str, dict[str, str]]] = {
    "waiting": {"claim": "running", "retire": "retired"},
    "running": {
        "stop": "stopping",
        "retire": "retiring",
        "finish": "done",
        **dict.fromkeys(_RANK_ENDS, "ended"),
    },
    "stopping": {"finish": "done", **dict.fromkeys(_RANK_ENDS, "ended")},
    "retiring": {"finish": "done", **dict.fromkeys(_RANK_ENDS, "retired")},
    "ended": {"restart": "waiting", "reattach": "running"},
    "done": {},
    "retired": {},
}

FINAL: Final = frozenset({"succeeded", "failed", "cancelled"})
LEASED: Final = frozenset({"running", "stopping", "halting", "yielding"})
STOPPING: Final = frozenset({"stopping", "halting", "yielding"})

# Which budget pays for a retry; None: free of charge; "never": there is none.
PAYS: Final[dict[str, str | None]] = {
    "host_lost": "infrastructure",
    "preempted": "infrastructure",
    "placement_lost": "infrastructure",
    "no_capacity": "infrastructure",
    "stalled": "infrastructure",
    "released": None,
    "yielded": None,
    "host_fault": None,
    "out_of_memory": "memory",
    "code_error": "code",
    "bad_data": "code",
    "bad_output": "code",
    "environment": "code",
    "unknown": "code",
    "wall_limit": "never",
    "money_limit": "never",
    "cancelled": "never",
    "poison": "never",
}

"""What can be seen of launches, from the ledger and from the cluster's own tables, with a fixed number of
requests however many they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray._private.state import state as cluster_state
from ray.util import placement_group_table

from corral.adapters.executors.ray.ledger import read_many

WAITS = {
    "INFEASIBLE": "no node of the cluster is large enough, or too few are",
    "NO_RESOURCES": "the cluster has no room for it at the moment",
    "QUEUED": "it is in the cluster's queue",
    "FAILED_TO_COMMIT_RESOURCES": "a node gave its room to somebody else; Ray tries again",
}


def look_at(handles: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Of each that the ledger knows: its order, whether it was cancelled, has ended, and its ranks."""
    heads = read_many(f"{handle}/{key}" for handle in handles for key in ("order", "launched", "cancelled"))
    orders = {handle: heads[f"{handle}/order"] for handle in handles if f"{handle}/order" in heads}
    marks = read_many(
        f"{handle}/{key}/{rank}"
        for handle, order in orders.items()
        for rank in range(order["ranks"])
        for key in ("started", "ended")
    )
    actors = cluster_state.actor_table(None) if orders else {}
    groups = placement_group_table() if orders else {}
    return {
        handle: _launch(handle, order, heads, marks, actors=actors, groups=groups)
        for handle, order in orders.items()
    }


def _launch(
    handle: str,
    order: dict[str, Any],
    heads: dict[str, Any],
    marks: dict[str, Any],
    *,
    actors: dict[str, Any],
    groups: dict[str, Any],
) -> dict[str, Any]:
    launched = heads.get(f"{handle}/launched")
    cancelled = heads.get(f"{handle}/cancelled")
    ranks = []
    for number, together in enumerate(order["groups"]):
        group = groups.get(launched["groups"][number], {}) if launched else {}
        for rank in together:
            ended = marks.get(f"{handle}/ended/{rank}")
            if ended is None:
                actor = actors.get(launched["actors"][rank], {}) if launched else None
                started = marks.get(f"{handle}/started/{rank}")
                ended = _unended(actor, group, started, is_cancelled=cancelled is not None)
            ranks.append({"rank": rank, **ended})
    over = all(rank["state"] in ("succeeded", "failed", "gone") for rank in ranks)
    return {
        "order": order,
        "launched": launched,
        "cancelled": cancelled,
        "ended": over,
        "ranks": sorted(ranks, key=lambda rank: int(rank["rank"])),
        "holding": [
            number
            for number, group in enumerate(launched["groups"] if launched else [])
            if groups.get(group, {}).get("state", "REMOVED") != "REMOVED"
        ],
    }


def _unended(
    actor: dict[str, Any] | None,
    group: dict[str, Any],
    started: dict[str, Any] | None,
    *,
    is_cancelled: bool,
) -> dict[str, Any]:
    """A rank that has not written down its end. No actor: its launch is not finished."""
    if actor is None:
        if is_cancelled:
            return {"state": "failed", "cause": "cancelled", "detail": "cancelled before it was launched"}
        return {"state": "waiting", "detail": "its launch is not finished"}
    where = started or {}
    node = {"node": where.get("node")}
    match actor.get("State"):
        case "ALIVE" if started:
            return {"state": "running", **node}
        case "ALIVE" | "RESTARTING":
            return {"state": "starting", **node}
        case "DEPENDENCIES_UNREADY" | "PENDING_CREATION" if group.get("state") == "CREATED":
            return {"state": "starting"}
        case "DEPENDENCIES_UNREADY" | "PENDING_CREATION" if group.get("state", "REMOVED") != "REMOVED":
            return _waiting(group)
        case "DEAD":
            return {"state": "failed", **node, **_death(actor["DeathCause"], is_cancelled=is_cancelled)}
    if is_cancelled:
        return {"state": "failed", "cause": "cancelled", "detail": "it was cancelled", **node}
    return {"state": "gone", "cause": "unknown", "detail": "Ray knows nothing of its actor", **node}


def _waiting(group: dict[str, Any]) -> dict[str, Any]:
    word = group["stats"]["scheduling_state"]
    words = f"the placement group is {group['state']}, {word}: {WAITS.get(word, 'Ray says no more')}"
    return {"state": "waiting", "cause": "unschedulable", "detail": words}


def _death(cause: Any, *, is_cancelled: bool) -> dict[str, Any]:
    """Ray's words for the end of an actor that could not write down its own."""
    kind = cause.WhichOneof("context")
    context = getattr(cause, kind) if kind else None
    words = str(getattr(context, "error_message", "") or "").strip()
    if kind == "oom_context":
        return {"cause": "out_of_memory", "detail": words}
    died = cause.actor_died_error_context
    if kind == "actor_died_error_context" and died.reason == died.NODE_DIED:
        return {"cause": "node_lost", "detail": words}
    if is_cancelled:
        return {"cause": "cancelled", "detail": "it was cancelled"}
    if kind == "runtime_env_failed_context":
        return {"cause": "refused", "detail": words}
    return {"cause": "unknown", "detail": words or "Ray does not say why its actor died"}

"""What the driver does on the cluster. Each may be repeated, and by several at the same time."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray._private.state import state as cluster_state
from ray.exceptions import GetTimeoutError, RayError, RaySystemError
from ray.util import get_placement_group, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from corral.adapters.executors.ray import guard
from corral.adapters.executors.ray.ledger import (
    NAMESPACE,
    erase,
    erase_launch,
    handles,
    read,
    read_many,
    write_once,
)
from corral.adapters.executors.ray.rank_actor import RankActor, actor_name
from corral.adapters.executors.ray.states import look_at

# An actor is asked to stop; that it has heard takes no longer, unless its node is in trouble.
HEARD_S = 5.0
REGISTERED_S = 20.0
# Beyond a worker's grace; what is there of a cancelled launch after that is taken away at once.
SLACK_S = 30.0
# So long the end of a launch is remembered.
REMEMBERED_S = 24 * 3600.0

Request = dict[str, Any]


class LaunchUnfinished(Exception):
    """The cluster has not taken all of it in; the launch can be repeated."""


def launch(request: Request) -> None:
    handle = request["handle"]
    order = {key: request[key] for key in ("ranks", "groups", "grace_s")}
    write_once(f"{handle}/order", order)
    order = read(f"{handle}/order")
    done = read_many([f"{handle}/launched", f"{handle}/cancelled"])
    if f"{handle}/cancelled" in done:
        # Whoever launched it before may have gone on after that.
        cancel({"handle": handle})
    if done:
        return
    _write_payloads(handle, request)
    groups, actors = [], {}
    for number, together in enumerate(order["groups"]):
        group = _group(f"{handle}/{number}", request, len(together))
        groups.append(group.id.hex())
        for index, rank in enumerate(together):
            actors[rank] = _actor(handle, rank, together, request, group=group, index=index)
    _wait_until_registered(list(actors.values()))
    ids = [actors[rank] for rank in sorted(actors)]
    write_once(f"{handle}/launched", {"groups": groups, "actors": ids})
    if read(f"{handle}/cancelled") is not None:
        cancel({"handle": handle})


def _write_payloads(handle: str, request: Request) -> None:
    source = Path(guard.__file__).read_text(encoding="utf-8")
    shared = {key: request[key] for key in ("command", "environ", "grace_s", "limit_s")}
    for rank, token in enumerate(request["tokens"]):
        if read(f"{handle}/started/{rank}") is None:
            write_once(f"{handle}/payload/{rank}", {**shared, "guard": source, "token": token})


def _group(name: str, request: Request, ranks: int) -> Any:
    selectors = [request["labels"]] * ranks if request["labels"] else None
    try:
        return placement_group(
            [request["bundle"]] * ranks,
            strategy=request["strategy"],
            name=name,
            lifetime="detached",
            bundle_label_selector=selectors,
        )
    except RaySystemError as error:
        if "already exists" not in str(error):
            raise
        return get_placement_group(name)


def _actor(handle: str, rank: int, together: list[int], request: Request, *, group: Any, index: int) -> str:
    bundle = request["bundle"]
    options = ray.remote(RankActor).options(
        name=actor_name(handle, rank),
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=0,
        num_cpus=bundle["CPU"],
        num_gpus=bundle.get("GPU", 0),
        memory=bundle.get("memory"),
        scheduling_strategy=PlacementGroupSchedulingStrategy(
            placement_group=group, placement_group_bundle_index=index
        ),
    )
    return str(options.remote(handle, rank, together)._actor_id.hex())


def _wait_until_registered(actors: list[str]) -> None:
    """Until the cluster starts them by itself, whatever becomes of this process."""
    give_up_at = time.monotonic() + REGISTERED_S
    while time.monotonic() < give_up_at:
        table = cluster_state.actor_table(None)
        states = [table.get(actor, {}).get("State") for actor in actors]
        if all(state not in (None, "DEPENDENCIES_UNREADY") for state in states):
            return
        time.sleep(0.02)
    raise LaunchUnfinished(f"Ray has not registered all actors: {states}")


def observe(request: Request) -> dict[str, Any]:
    found = look_at(request["handles"])
    for handle, launch in found.items():
        _tidy(handle, launch)
    return {handle: {"ended": launch["ended"], "ranks": launch["ranks"]} for handle, launch in found.items()}


def launched(request: Request) -> list[str]:
    """Those that have not ended. What ended long ago is forgotten."""
    found = look_at(handles(request["installation"]))
    closed = read_many(f"{handle}/closed" for handle in found)
    for handle, launch in found.items():
        _tidy(handle, launch)
        if launch["ended"] and closed.get(f"{handle}/closed", time.time()) < time.time() - REMEMBERED_S:
            erase_launch(handle)
    return [handle for handle, launch in found.items() if not launch["ended"]]


def _tidy(handle: str, launch: dict[str, Any]) -> None:
    """Give back what a launch holds that has ended, or was cancelled and does not end."""
    cancelled = launch["cancelled"]
    overdue = cancelled is not None and time.time() > cancelled + launch["order"]["grace_s"] + SLACK_S
    if launch["ended"]:
        write_once(f"{handle}/closed", time.time())
        _erase_payloads(handle, launch["order"])
    holding = launch["holding"]
    if cancelled is not None and launch["launched"] is None:
        # Its launch was never finished: nobody has noted what it holds.
        holding = range(len(launch["order"]["groups"]))
    if launch["ended"] or overdue:
        for number in holding:
            _remove_group(f"{handle}/{number}")


def cancel(request: Request) -> None:
    """A rank that runs is asked to end, and gives back what it holds itself; the rest is taken away."""
    handle = request["handle"]
    order = read(f"{handle}/order")
    if order is None:
        return
    write_once(f"{handle}/cancelled", time.time())
    _erase_payloads(handle, order)
    for number, together in enumerate(order["groups"]):
        if not _asked_to_stop(handle, together):
            _remove_group(f"{handle}/{number}")
    launch = look_at([handle])[handle]
    _tidy(handle, launch)


def _asked_to_stop(handle: str, together: list[int]) -> bool:
    """Whether any rank of a group ends by itself, and gives the group back; the others are killed."""
    answers = {}
    for rank in together:
        with suppress(ValueError):
            actor = ray.get_actor(actor_name(handle, rank), namespace=NAMESPACE)
            if cluster_state.actor_table(actor._actor_id.hex()).get("State") == "ALIVE":
                answers[actor] = actor.stop.remote()
            else:
                ray.kill(actor)
    give_up_at = time.monotonic() + HEARD_S
    return any([_has_heard(actor, answer, give_up_at) for actor, answer in answers.items()])


def _has_heard(actor: Any, answer: Any, give_up_at: float) -> bool:
    try:
        ray.get(answer, timeout=max(0.0, give_up_at - time.monotonic()))
    except (GetTimeoutError, RayError):
        with suppress(ValueError):
            ray.kill(actor)
        return False
    return True


def _remove_group(name: str) -> None:
    with suppress(ValueError):
        remove_placement_group(get_placement_group(name))


def _erase_payloads(handle: str, order: dict[str, Any]) -> None:
    for rank in range(order["ranks"]):
        erase(f"{handle}/payload/{rank}")


def logs(request: Request) -> str:
    handle, rank, most_bytes = request["handle"], request["rank"], request["most_bytes"]
    kept = read(f"{handle}/output/{rank}")
    if kept is not None:
        return str(kept)
    try:
        actor = ray.get_actor(actor_name(handle, rank), namespace=NAMESPACE)
        return str(ray.get(actor.tail.remote(most_bytes), timeout=HEARD_S))
    except (ValueError, GetTimeoutError, RayError):
        # It does not run yet, or it has ended in the meantime.
        return str(read(f"{handle}/output/{rank}") or "")


def nodes(_request: Request) -> list[dict[str, Any]]:
    return [
        {"name": node["NodeName"], "resources": node["Resources"], "labels": node.get("Labels", {})}
        for node in ray.nodes()
        if node["Alive"]
    ]


def versions(_request: Request) -> dict[str, str]:
    return {"ray": ray.__version__}


OPERATIONS = {
    "launch": launch,
    "observe": observe,
    "launched": launched,
    "cancel": cancel,
    "logs": logs,
    "nodes": nodes,
    "versions": versions,
}

"""What every object of the API has: metadata, owners, finalizers, conditions; and how times are written."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

# An object of the API as JSON has it.
Json = dict[str, Any]

# The letters that Kubernetes takes for suffixes: no vowels and nothing that reads like one.
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


def timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def seconds_of(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def random_suffix(length: int = 5) -> str:
    return "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(length))


def clone(value: Json) -> Json:
    return copy.deepcopy(value)


def name_of(obj: Json) -> str:
    return str(obj["metadata"]["name"])


def namespace_of(obj: Json) -> str:
    return str(obj["metadata"].get("namespace", ""))


def uid_of(obj: Json) -> str:
    return str(obj["metadata"]["uid"])


def finalizers_of(obj: Json) -> list[str]:
    return list(obj["metadata"].get("finalizers", ()))


def owners_of(obj: Json) -> list[Json]:
    return list(obj["metadata"].get("ownerReferences", ()))


def is_being_deleted(obj: Json) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def controller_uid(obj: Json) -> str | None:
    """The uid of the owner that manages this object."""
    return next((str(owner["uid"]) for owner in owners_of(obj) if owner.get("controller")), None)


def condition(obj: Json, kind: str) -> Json | None:
    found: Iterable[Json] = obj.get("status", {}).get("conditions", ())
    return next((one for one in found if one["type"] == kind), None)


def is_true(obj: Json, kind: str) -> bool:
    found = condition(obj, kind)
    return found is not None and found["status"] == "True"


def set_condition(obj: Json, kind: str, status: str, *, now: float, reason: str, message: str) -> bool:
    """Sets a condition; its transition time moves only with its status. Whether anything changed."""
    conditions: list[Json] = obj.setdefault("status", {}).setdefault("conditions", [])
    found = condition(obj, kind)
    if found is not None and (found["status"], found.get("reason")) == (status, reason or None):
        changed = bool(found.get("message", "") != message)
        if changed:
            found["message"] = message
        return changed
    moved = found is None or found["status"] != status
    new: Json = {"type": kind, "status": status}
    new |= {"reason": reason} if reason else {}
    new |= {"message": message} if message else {}
    new["lastTransitionTime"] = timestamp(now) if moved or found is None else found["lastTransitionTime"]
    if found is None:
        conditions.append(new)
    else:
        conditions[conditions.index(found)] = new
    return True

"""Names, labels and annotations of what we make, and how any text becomes one."""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from corral.domain.placements.orders import LaunchOrder

PREFIX = "corral.dev"
MANAGER = "app.kubernetes.io/managed-by"
INSTALLATION = f"{PREFIX}/installation"
KEY = f"{PREFIX}/key"
RANKS = f"{PREFIX}/ranks"
# The Job may start: its tokens are there.
STARTED = f"{PREFIX}/started"
QUEUE = "kueue.x-k8s.io/queue-name"
JOB_NAME = "batch.kubernetes.io/job-name"
INDEX = "batch.kubernetes.io/job-completion-index"
# A pod's hostname is the Job's name, a hyphen and the index, which has at most six digits.
_LONGEST_JOB_NAME = 56
_LONGEST_LABEL = 63
_HASH = 8


class JobHandle(NamedTuple):
    """What finds a Job again: its namespace, the label of its installation, its name."""

    namespace: str
    installation: str
    name: str

    def __str__(self) -> str:
        return "/".join(self)

    @classmethod
    def parse(cls, handle: str) -> JobHandle | None:
        parts = handle.split("/")
        return cls(*parts) if len(parts) == 3 and all(parts) else None


def job_name(key: str) -> str:
    """A DNS label from any key; two keys never have the same."""
    return _fitted(f"corral-{key}", _LONGEST_JOB_NAME, r"[^a-z0-9-]+", key)


def label_value(text: str) -> str:
    """The text itself if it can be the value of a label; otherwise what is left of it, and a hash."""
    return _fitted(text, _LONGEST_LABEL, r"[^A-Za-z0-9._-]+", text) if text else ""


def _fitted(text: str, longest: int, other: str, hashed: str) -> str:
    kept = re.sub(other, "-", text).strip("-._")
    if kept == text and len(kept) <= longest:
        return kept
    digest = hashlib.sha256(hashed.encode()).hexdigest()[:_HASH]
    kept = kept[: longest - _HASH - 1].strip("-._")
    return f"{kept}-{digest}" if kept else f"x-{digest}"


def labels_of(order: LaunchOrder) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "corral-worker",
        MANAGER: "corral",
        INSTALLATION: label_value(order.installation),
        KEY: label_value(order.key),
        f"{PREFIX}/run": label_value(order.run_id),
        f"{PREFIX}/project": label_value(order.project),
    }


def annotations_of(order: LaunchOrder) -> dict[str, str]:
    """The same as it was given: labels cannot hold every text."""
    return {
        INSTALLATION: order.installation,
        KEY: order.key,
        f"{PREFIX}/run": order.run_id,
        f"{PREFIX}/run-name": order.run_name,
        f"{PREFIX}/project": order.project,
        RANKS: str(order.ranks),
    }


def is_ours(annotations: dict[str, str], order: LaunchOrder) -> bool:
    return (annotations.get(INSTALLATION), annotations.get(KEY)) == (order.installation, order.key)

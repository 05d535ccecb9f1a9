"""Why a run is held: a kind and, for some kinds, a detail.

The column `hold_reason` keeps both as one text, which is also what users see.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from typing import NamedTuple


class HoldKind(Enum):
    """The values begin the text."""

    # The detail names the first parent and how many more there are.
    PARENTS = "waits for"
    # The detail is who holds it.
    PERSON = "held by"
    BACKOFF = "backoff"
    CONCURRENCY = "concurrency"
    # It is no longer in its manifest. A run that runs is marked with it too, and is not queued again.
    REMOVED = "removed"


_TEXT = re.compile(f"({'|'.join(kind.value for kind in HoldKind)})(?: (.+))?", re.DOTALL)


class Hold(NamedTuple):
    kind: HoldKind
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind.value} {self.detail}" if self.detail else self.kind.value


@lru_cache(maxsize=1024)
def parse_hold(text: str | None) -> Hold | None:
    """None where nothing is written, or something that this version does not know."""
    found = _TEXT.fullmatch(text or "")
    return None if found is None else Hold(HoldKind(found[1]), found[2] or "")


def hold_kind(text: str | None) -> HoldKind | None:
    hold = parse_hold(text)
    return None if hold is None else hold.kind


def waits_for(parents: Sequence[str]) -> str:
    more = f" and {len(parents) - 1} more" if len(parents) > 1 else ""
    return str(Hold(HoldKind.PARENTS, f"{parents[0]}{more}"))


def held_by(actor: str) -> str:
    return str(Hold(HoldKind.PERSON, actor.partition(":")[2] or actor))

"""How much the runs of one submission may name: all of it is looked up and written in one transaction, which
everybody waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from corral.domain.errors import TooLarge

if TYPE_CHECKING:
    from corral.core.runs.submit import NewRun

# A name stands for all runs of the submission that have it: where a thousand wait for a thousand, a million.
MOST_LINKS = 10_000
# Code, inputs and secrets.
MOST_NEEDS = 100_000


def names_too_much(runs: Sequence[NewRun]) -> TooLarge | None:
    """Counted, before anything of it is looked up."""
    called = Counter(new.run.name for new in runs)
    links = sum(called[after.run] or 1 for new in runs for after in new.after)
    if links > MOST_LINKS:
        return TooLarge(
            f"the runs wait for each other in {links} ways; a submission may have {MOST_LINKS}",
            hint="Let one run between them, as `true`, wait for the first, and the others wait for that one.",
        )
    needs = sum(len(new.needs.artifacts) + len(new.needs.secrets) for new in runs)
    if needs > MOST_NEEDS:
        return TooLarge(
            f"the runs name code, inputs and secrets {needs} times; a submission may {MOST_NEEDS} times",
            hint="Submit them as several groups.",
        )
    return None

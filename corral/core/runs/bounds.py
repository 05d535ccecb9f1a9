"""How much the runs of one submission may name: all of it is looked up and written in one transaction, which
everybody waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from corral.core.runs.needs import RunNeeds
from corral.domain.errors import TooLarge

# A name stands for all runs of the submission that have it: where a thousand wait for a thousand, a million.
MOST_LINKS = 10_000
# Code, inputs and secrets.
MOST_NEEDS = 100_000


def names_too_much(
    names: Sequence[str], after: Sequence[Sequence[str]], needs: Sequence[RunNeeds]
) -> TooLarge | None:
    """Of each run its name, the runs that it waits for, and its needs: counted before any is looked up."""
    called = Counter(names)
    links = sum(called[parent] or 1 for parents in after for parent in parents)
    if links > MOST_LINKS:
        return TooLarge(
            f"the runs wait for each other in {links} ways; a submission may have {MOST_LINKS}",
            hint="Let one run between them, as `true`, wait for the first, and the others wait for that one.",
        )
    needed = sum(len(one.artifacts) + len(one.secrets) for one in needs)
    if needed > MOST_NEEDS:
        return TooLarge(
            f"the runs name code, inputs and secrets {needed} times; a submission may {MOST_NEEDS} times",
            hint="Submit them as several groups.",
        )
    return None

"""The rank table and the fold, by a machine of their own: a gang of up to four, fixed or elastic."""

from __future__ import annotations

from hypothesis import seed
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from corral.domain.errors import IllegalTransition
from corral.domain.runs.states import Fold, RankEvent, RankState, fold, step_rank
from model.conftest import PROFILE
from model.seeds import SEED
from model.tables import RANK

LIVE = {"running", "stopping", "retiring"}


class Gang(RuleBasedStateMachine):
    """Any event may come to any rank at any time, as from workers that know nothing of each other."""

    def __init__(self) -> None:
        super().__init__()
        self.ranks: list[RankState] = []
        self.minimum, self.elastic = 1, False

    @initialize(size=st.integers(1, 4), minimum=st.integers(1, 4), elastic=st.booleans())
    def attempt_opens(self, size: int, minimum: int, elastic: bool) -> None:
        self.ranks = [RankState.WAITING] * size
        self.elastic = elastic
        # A fixed gang needs all of its ranks.
        self.minimum = min(minimum, size) if elastic else size

    @rule(which=st.integers(0, 3), event=st.sampled_from(RankEvent))
    def something_happens(self, which: int, event: RankEvent) -> None:
        which %= len(self.ranks)
        before = self.ranks[which]
        wanted = RANK[before].get(event)
        try:
            after = step_rank(before, event)
        except IllegalTransition:
            assert wanted is None, f"a rank that is {before} must be able to {event}"
            return
        assert after == wanted
        self.ranks[which] = after

    @invariant()
    def the_fold_is_what_the_design_says(self) -> None:
        if not self.ranks:
            return
        found = fold(self.ranks, minimum=self.minimum, elastic=self.elastic)
        kept = [rank for rank in self.ranks if rank != "retired"]
        finished = bool(kept) and all(rank == "done" for rank in kept)
        assert (found is Fold.FINISHED) == finished
        if not finished and not self.elastic and "ended" in kept:
            assert found is Fold.ENDED, "the first ended rank closes a fixed gang"
        if found is Fold.RUNNING:
            assert sum(rank in LIVE or rank == "done" for rank in kept) >= self.minimum
        if found is Fold.ENDED and self.elastic:
            assert sum(rank != "ended" for rank in kept) < self.minimum

    @invariant()
    def done_and_retired_stay(self) -> None:
        for rank in self.ranks:
            if rank in ("done", "retired"):
                assert not RANK[rank]


@seed(SEED)
class TestGangs(Gang.TestCase):  # type: ignore[misc, valid-type]
    settings = PROFILE

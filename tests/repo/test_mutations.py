"""That the list of defects which the tests must notice still names places and tests that are there."""

from __future__ import annotations

from repo import mutations


def test_every_defect_of_the_list_can_be_made_and_its_tests_are_there() -> None:
    assert len(mutations.MUTATIONS) == 20
    for mutation in mutations.MUTATIONS:
        mutations.place_of(mutation, mutations.ROOT)
        assert mutations.tests_of(mutation, mutations.ROOT)

"""That the list of defects which the tests must notice still names places and tests that are there."""

from __future__ import annotations

from repo.mutations import MUTATIONS, ROOT, place_of, tests_of


def test_every_defect_of_the_list_can_be_made_and_its_tests_are_there() -> None:
    assert len(MUTATIONS) == 20
    for mutation in MUTATIONS:
        place_of(mutation, ROOT)
        assert tests_of(mutation, ROOT)

"""A state machine over the whole API against a model of the promises, on SQLite in a file.

What failed last time is tried first: Hypothesis keeps it in `.hypothesis/`. On another machine, put the
printed `@reproduce_failure(...)` above the class, or run with the printed `CORRAL_MODEL_SEED`.
`CORRAL_MODEL_PROFILE=long` runs for an hour or so.
"""

from __future__ import annotations

import pytest
from hypothesis import seed

from model.conftest import PROFILE
from model.machine import SqliteMachine
from model.seeds import SEED


# Shrinking a failure takes longer than the run that found it.
@pytest.mark.timeout(7200)
@seed(SEED)
class TestTheApiOnSqlite(SqliteMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = PROFILE

"""The same machine on Postgres; see `test_api_sqlite` for how to replay it."""

from __future__ import annotations

import pytest
from hypothesis import seed, settings
from support.postgres import private_postgres

from model.conftest import PROFILE
from model.machine import PostgresMachine
from model.seeds import SEED


@pytest.fixture(scope="module", autouse=True)
def _a_server() -> None:
    PostgresMachine.server = private_postgres()


@pytest.mark.timeout(7200)
@seed(SEED)
class TestTheApiOnPostgres(PostgresMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(PROFILE, max_examples=PROFILE.max_examples // 3)

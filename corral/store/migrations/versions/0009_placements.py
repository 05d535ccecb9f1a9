"""Executors and placements."""

from corral.store.migrate import run_script

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    run_script(__file__)

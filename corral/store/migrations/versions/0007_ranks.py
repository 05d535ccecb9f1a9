"""Runs of several ranks."""

from corral.store.migrate import run_script

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    run_script(__file__)

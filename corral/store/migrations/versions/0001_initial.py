"""Runs, leases, hosts, access, artifacts and records."""

from corral.store.migrate import run_script

revision = "0001"
down_revision = None


def upgrade() -> None:
    run_script(__file__)

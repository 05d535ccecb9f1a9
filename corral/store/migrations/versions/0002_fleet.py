"""The fleet: declared hosts, dependencies, manifests, schedules, quotas, audit, webhooks."""

from corral.store.migrate import run_script

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    run_script(__file__)

"""Functions: endpoints and their versions, instances, calls, volumes."""

from corral.store.migrate import run_script

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    run_script(__file__)

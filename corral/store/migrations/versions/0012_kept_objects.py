"""Objects that a run keeps over its attempts."""

from corral.store.migrate import run_script

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    run_script(__file__)

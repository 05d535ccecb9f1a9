"""What placements cost."""

from corral.store.migrate import run_script

revision = "0011"
down_revision = "0009"


def upgrade() -> None:
    run_script(__file__)

"""How many small objects an attempt keeps."""

from corral.store.migrate import run_script

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    run_script(__file__)

"""How busy hosts were, what runs cost, and when they last changed."""

from corral.store.migrate import run_script

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    run_script(__file__)

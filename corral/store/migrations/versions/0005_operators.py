"""Operators: what tokens are bound to, public endpoints, and which installation a database belongs to."""

from corral.store.migrate import run_script

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    run_script(__file__)

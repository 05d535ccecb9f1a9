"""What counts towards a project's bytes beside its files: uploads under way, and what calls carry."""

from corral.store.migrate import run_script

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    run_script(__file__)

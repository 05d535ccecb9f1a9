"""All rules together, on either database."""

from __future__ import annotations

from typing import ClassVar

from support.postgres import PrivatePostgres

from model.claim_rules import ClaimRules
from model.host_rules import HostRules
from model.lease_rules import LeaseRules
from model.time_rules import TimeRules
from model.user_rules import UserRules
from model.world import Backend, PostgresBackend, SqliteBackend


class EverybodyMachine(UserRules, ClaimRules, LeaseRules, HostRules, TimeRules):
    """Everybody at once."""


class SqliteMachine(EverybodyMachine):
    def make_backend(self) -> Backend:
        return SqliteBackend()


class PostgresMachine(EverybodyMachine):
    must_settle = True
    server: ClassVar[PrivatePostgres]

    def make_backend(self) -> Backend:
        return PostgresBackend(self.server)

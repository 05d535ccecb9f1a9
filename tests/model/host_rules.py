"""Hosts that lose their credential and are let in again, and hosts whose policy changes."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from corral.core.manifests.apply import declare
from corral.domain.hosts.policy import HostPolicy
from corral.domain.ids import HostId
from corral.store.transaction import Tx
from model.base import PROJECTS, Base
from model.model import Host

pick = st.integers(0, 60)


class HostRules(Base):
    @property
    def _revocable(self) -> Host:
        # One of the three, so that there is always another to work and to be refused.
        return self.model.hosts[0]

    @precondition(lambda self: not self._revocable.revoked)
    @rule(which=pick)
    def revoke(self, which: int) -> None:
        """From its next call on (FL-D31); what it holds runs out as that of any host that is gone."""
        host = self._revocable
        self.call("POST", f"hosts/{host.name}/revoke")
        host.revoked = True
        leases = [lease for lease in self.model.leases.values() if lease.host is host]
        if leases:
            lease = leases[which % len(leases)]
            self.lease_call(lease, "POST", "beat", {}, status=401)
            self.lease_call(lease, "POST", "finish", {"ran_s": 1}, status=401)

    @precondition(lambda self: self._revocable.revoked)
    @rule()
    def let_in_again(self) -> None:
        """It is the same host: what nobody claimed meanwhile is still its own."""
        host = self._revocable
        made = self.call("POST", "tokens", {"scope": "join", "name": host.name}, status=201).body
        old, host.token = host.token, made["token"].partition(".")[0]
        body = {"request_id": self.new_request(), "hostname": "whatever"}
        answer = self.call("POST", "hosts/enroll", body, status=201, host=host).body
        assert answer["host_id"] == host.id
        host.token, host.revoked = answer["token"], False
        assert self.world.call("GET", "hosts/self", token=old).status == 401

    @rule(most=st.sampled_from([None, 1]), only=st.sampled_from([None, *PROJECTS]))
    def declare_policy(self, most: int | None, only: str | None) -> None:
        """It counts from the next claim on (FL-C05); what runs there already goes on."""
        host = self.model.hosts[2]
        host.most, host.projects = most, None if only is None else (only,)
        declared = HostPolicy(slots=host.most, projects=host.projects)

        def unit(tx: Tx) -> None:
            found = tx.hosts.lock(HostId(host.id))
            assert found is not None
            declare(tx, found, declared, by="model")

        self.world.write(unit)

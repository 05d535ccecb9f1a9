"""Where the ranks of a run meet: rank 0's worker picks a port that is free there, the others are told it."""

from __future__ import annotations

import random
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field

from corral.client.corral import Corral
from corral.domain.errors import NoObject
from corral.wire.leases import LeaseView
from corral.worker.lease import LeaseSession
from corral.worker.server_link import WaitAbandoned

# Below what systems give out to those that do not care which port they have.
PORTS = range(20_000, 32_000)
_TRIES = 200
# How long the server may wait with its answer; an order to stop is seen after that.
_WAIT_S = 2.0


@dataclass
class MasterPorts:
    """Ports of this host that runs have been given. Safe to use from several threads."""

    _given: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, lease_id: str) -> int:
        """One that nobody listens on and no other run here was given."""
        with self._lock:
            for port in random.sample(PORTS, _TRIES):
                if port not in self._given.values() and _is_free(port):
                    self._given[lease_id] = port
                    return port
        raise OSError(f"{_TRIES} ports were tried and none is free")

    def give_back(self, lease_id: str) -> None:
        with self._lock:
            self._given.pop(lease_id, None)


def _is_free(port: int) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                return False
    return True


def master_port(session: LeaseSession, ports: MasterPorts) -> int:
    """Told by rank 0 of the same attempt; WaitAbandoned if the lease is lost or stopped before it is."""
    lease = session.lease
    key = _key(lease)
    if lease.rank == 0:
        port = ports.take(lease.id)
        said = str(port).encode()
        session.keep_trying(lambda corral: corral.leases.put_object(lease.id, lease.epoch, key, said))
        return port
    while not session.control.stopping:
        said = session.keep_trying(lambda corral: _read(corral, lease, key))
        if said:
            return int(said)
    raise WaitAbandoned


def _key(lease: LeaseView) -> str:
    return f"corral/master/{lease.attempt}"


def _read(corral: Corral, lease: LeaseView, key: str) -> bytes:
    try:
        return corral.leases.read_object(lease.id, lease.epoch, key, wait_s=_WAIT_S).body
    except NoObject:
        return b""

"""The hosts that the workers of a placement are: one for each rank, with a token for its run alone."""

from __future__ import annotations

from collections.abc import Sequence

from corral.core.hosts.enroll import end_credentials
from corral.core.hosts.names import run_host_name
from corral.core.placements.workers import token_name
from corral.core.tokens import make_token
from corral.domain.hosts.hosts import Host
from corral.domain.hosts.policy import HostPolicy, render_declared
from corral.domain.placements.placements import Placement
from corral.domain.runs.runs import Run
from corral.domain.tokens import Scope
from corral.store.transaction import Tx


def has_lease(tx: Tx, run: Run, number: int) -> bool:
    """Whether it may still bring its work, whatever the cluster says of it."""
    host = tx.hosts.by_name(run_host_name(run.id, number))
    return host is not None and bool(tx.leases.live_of_host(host.id))


def held(tx: Tx, run: Run, workers: Sequence[int]) -> bool:
    """Whether the hosts of earlier workers are held now. One whose claim waits for the run, which is held
    here, is not waited for: that would be a circle."""
    hosts = (tx.hosts.by_name(run_host_name(run.id, number)) for number in workers)
    return all(host is None or tx.hosts.try_lock(host.id) is not None for host in hosts)


def worker_token(tx: Tx, run: Run, placement: Placement, number: int, now: float) -> str:
    host = _host(tx, run, number, now, is_priced=placement.price_per_hour is not None)
    name = token_name(placement.launch_key, number)
    made = make_token(tx, Scope.RUN, name, now=now, project=run.project, host_id=host.id, run_id=run.id)
    return made.text


def _host(tx: Tx, run: Run, number: int, now: float, *, is_priced: bool) -> Host:
    """For the worker of one rank: a host of its own that may take this run and no other."""
    name = run_host_name(run.id, number)
    # Where the placement has a price it pays for the whole time, and leases cost nothing beside that.
    policy = HostPolicy(
        slots=1,
        allow=(f"name:{run.name}",),
        projects=(run.project,),
        price_per_hour=0.0 if is_priced else None,
    )
    known = tx.hosts.by_name(name)
    host = known or Host.new(name, now)
    host = host._replace(declared=render_declared(policy), declared_digest=policy.digest)
    if known is None:
        tx.hosts.insert(host)
        return host
    # Of an earlier placement, whose workers must not take the run beside the new ones.
    end_credentials(tx, host.id, now=now)
    tx.hosts.save(host._replace(revoked_at=None, strikes=0, set_aside_until=None))
    return host

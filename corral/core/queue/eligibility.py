"""Eligibility per shape and host, worked out once for each pair.

What counts of a host is the more restrictive of what it reports and what is declared of it. Which projects
and which work it may take is its policy, judged apart: that needs the run's project, and at times its name.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from corral.domain.canonical import canonical
from corral.domain.errors import found
from corral.domain.hosts.capability import Capability, Gpu, Requirements, Verdict, judge
from corral.domain.hosts.hosts import Host
from corral.domain.hosts.policy import HostPolicy, RequestedWork, effective, read_declared, refusals
from corral.domain.ids import Digest
from corral.domain.runs.runs import Run
from corral.store.transaction import Tx

_PAIRS = 200_000
_HOSTS = 50_000

# Hosts of one kind fit the same shapes: the number of what they have, and the name where a shape names it.
Kind = tuple[int, str | None]


class Shapes:
    """Both what a shape is and what a capability is never change under their digests: safe to remember."""

    def __init__(self) -> None:
        self._needs: dict[Digest, Requirements] = {}
        self._named: set[str] = set()
        self._numbered: dict[tuple[str | None, ...], tuple[int, str]] = {}
        self._number_of: dict[str, int] = {}
        self._next_number = itertools.count()
        self._fits: dict[tuple[Digest, Kind], bool] = {}
        self._admits: dict[tuple[str | None, Digest, str], bool] = {}

    def get(self, tx: Tx, shape: Digest) -> Requirements:
        need = self._needs.get(shape)
        if need is None:
            need = parse_requirements(found(tx.runs.shape(shape), f"there is no shape {shape}"))
            self._named.update(need.hosts)
            self._needs[shape] = need
        return need

    def known(self, shape: Digest) -> Requirements | None:
        """Like `get`, from memory alone."""
        return self._needs.get(shape)

    def kind(self, host: Host) -> Kind:
        """All that `fits` looks at in a host."""
        number, hostname = self._number(host)
        named = host.name in self._named or hostname in self._named
        return number, f"{host.name}/{hostname}" if named else None

    def fits(self, tx: Tx, shape: Digest, host: Host) -> bool:
        """By totals, whether the host could ever run this shape."""
        # Read before the kind is asked for: it may name the host.
        need = self.get(tx, shape)
        key = (shape, self.kind(host))
        known = self._fits.get(key)
        if known is None:
            if len(self._fits) > _PAIRS:
                self._fits.clear()
            known = self._fits[key] = verdict(need, host).eligible
        return known

    def fits_if_known(self, shape: Digest, host: Host) -> bool | None:
        """Like `fits`, from memory alone."""
        return self._fits.get((shape, self.kind(host)))

    def _number(self, host: Host) -> tuple[int, str]:
        key = (host.capability_digest, host.declared_digest, host.name)
        known = self._numbered.get(key)
        if known is None:
            if len(self._numbered) > _HOSTS:
                # Numbers are not given twice: what is remembered under the old ones is never asked for again.
                self._numbered.clear()
                self._number_of.clear()
            have = effective_of(host)
            what = _what_counts(have) if host.capability is not None else ""
            number = self._number_of.setdefault(what, next(self._next_number))
            known = self._numbered[key] = (number, have.hostname)
        return known

    def admits(self, tx: Tx, shape: Digest, project: str, host: Host) -> bool:
        """Whether the host's policy lets runs of this shape and project in, some of them at least."""
        if host.declared is None:
            return True
        key = (host.declared_digest, shape, project)
        known = self._admits.get(key)
        if known is None:
            if len(self._admits) > _PAIRS:
                self._admits.clear()
            work = work_of(self.get(tx, shape), project)
            known = self._admits[key] = not refusals(declared_of(host), work)
        return known


def verdict(need: Requirements, host: Host) -> Verdict:
    if host.capability is None:
        return Verdict(("the host has not reported what it has yet",))
    return judge(need, effective_of(host), host=host.name)


def work_of(need: Requirements, project: str) -> RequestedWork:
    return RequestedWork(project, need.kind, need.recipe, need.model, secrets=need.secrets)


def policy_refusals(need: Requirements, host: Host, run: Run) -> tuple[str, ...]:
    """Every reason why the host's policy keeps the run from it."""
    work = work_of(need, run.project)._replace(name=run.name, kind=run.kind)
    return refusals(declared_of(host), work)


def declared_of(host: Host) -> HostPolicy:
    return read_declared(host.declared)


def effective_of(host: Host) -> Capability:
    """What counts: the more restrictive of what the host reports and what is declared of it."""
    return _effective(host.capability or "{}", host.name, host.declared)


@lru_cache(maxsize=16_384)
def _effective(capability: str, name: str, declared: str | None) -> Capability:
    return effective(_capability(capability, name), read_declared(declared))


def _what_counts(have: Capability) -> str:
    """All of it but what tells hosts of a kind apart: of that a verdict looks at the name, and at whether
    there is an address."""
    table = asdict(have)
    del table["hostname"], table["fault"], table["isolated"], table["isolation_note"]
    table["address"] = have.address is not None
    for gpu in table["gpus"] or ():
        del gpu["index"], gpu["uuid"]
    return canonical(table)


def parse_requirements(text: str) -> Requirements:
    return Requirements(**_tuples(json.loads(text)))


@lru_cache(maxsize=16_384)
def _capability(text: str, name: str) -> Capability:
    data = {"hostname": name, "os": "unknown", "arch": "unknown", **json.loads(text)}
    gpus = data.pop("gpus", None)
    return Capability(**_tuples(data), gpus=None if gpus is None else tuple(Gpu(**gpu) for gpu in gpus))


def _tuples(data: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}

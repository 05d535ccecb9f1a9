"""Numbers for Prometheus that are cheap enough to count on every request."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from corral.core.hosts.samples import FRESH_S
from corral.core.policy import ServerPolicy
from corral.core.queue.eligibility import declared_of, effective_of
from corral.domain.hosts.hosts import Host
from corral.domain.hosts.policy import effective_slots
from corral.store.transaction import Tx


class Counters:
    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.seconds: Counter[str] = Counter()
        self.granted = 0
        self.swept = 0
        self.sweep_failures = 0
        self.uploaded_bytes = 0

    def request(self, method: str, status: int, seconds: float) -> None:
        self.requests[method, status] += 1
        self.seconds[method] += seconds  # type: ignore[assignment]


Gauges = dict[str, list[tuple[dict[str, str], float]]]
_HELP = {
    "corral_runs": "Runs by state, those that have not ended.",
    "corral_project_runs": "The same by project.",
    "corral_queue_oldest_seconds": "How long the oldest queued run of a project has been ready.",
    "corral_runs_failed": "Failed runs that were not removed, by project and reason.",
    "corral_leases_live": "Runs and ranks that workers hold.",
    "corral_hosts": "Hosts that are enrolled, by whether they are here.",
    "corral_gpus": "GPUs of the hosts that are here.",
    "corral_gpus_busy": "GPUs that runs hold, by project.",
    "corral_slots": "Slots of the hosts that are here.",
    "corral_claims_waiting": "Workers that wait for a run.",
    "corral_disk_free_bytes": "Free space on the server's disk.",
    "corral_database_bytes": "What the database takes.",
    "corral_project_bytes": "What the files of a project take, each counted once.",
    "corral_host_cpu_ratio": "The share of a host's processors that was busy in the last minute.",
    "corral_host_memory_bytes": "Memory of a host.",
    "corral_host_memory_used_bytes": "Memory of a host that is in use.",
    "corral_gpu_utilisation_ratio": "The share of the last minute in which a GPU was at work.",
    "corral_gpu_memory_bytes": "Memory of a GPU.",
    "corral_gpu_memory_used_bytes": "Memory of a GPU that is in use.",
    "corral_gpu_temperature_celsius": "Temperature of a GPU.",
    "corral_gpu_power_watts": "What a GPU draws.",
    "corral_database_damaged": "1 once damage of the database was seen.",
}
# The gauges of a host's sample and of its GPUs', and what they are called there.
_OF_A_HOST = {
    "corral_host_cpu_ratio": "cpu",
    "corral_host_memory_bytes": "ram_bytes",
    "corral_host_memory_used_bytes": "ram_used_bytes",
}
_OF_A_GPU = {
    "corral_gpu_utilisation_ratio": "utilisation",
    "corral_gpu_memory_bytes": "memory_bytes",
    "corral_gpu_memory_used_bytes": "memory_used_bytes",
    "corral_gpu_temperature_celsius": "temperature_c",
    "corral_gpu_power_watts": "power_w",
}


def gauges_of(tx: Tx, *, now: float, policy: ServerPolicy) -> Gauges:
    """What is read from the store for one scrape."""
    hosts = [host for host in tx.hosts.page(None, 10_000) if host.revoked_at is None]
    here = [host for host in hosts if not host.is_away(now, policy.away_s)]
    # A worker that was brought up for one run goes away with it; only other hosts are missed.
    of_runs = tx.hosts.of_runs()
    away = [host for host in hosts if host not in here and host.id not in of_runs]
    cards = sum(len(effective_of(host).gpus or ()) for host in here if host.capability is not None)
    waiting = tx.runs.counts_by_project()
    return {
        "corral_runs": [({"state": state}, count) for state, count in tx.runs.counts()],
        "corral_project_runs": [({"project": p, "state": state}, n) for p, state, n, _ in waiting],
        "corral_queue_oldest_seconds": [
            ({"project": project}, max(0.0, now - since))
            for project, state, _, since in waiting
            if state == "queued"
        ],
        "corral_runs_failed": [({"project": p, "reason": why}, n) for p, why, n in tx.runs.failures()],
        "corral_leases_live": [({}, tx.leases.live_count())],
        "corral_hosts": [({"alive": "yes"}, len(here)), ({"alive": "no"}, len(away))],
        "corral_slots": [({}, sum(effective_slots(host.slots, declared_of(host)) for host in here))],
        "corral_gpus": [({}, cards)],
        "corral_gpus_busy": [
            ({"project": use.project}, use.gpus) for use in tx.leases.in_use(now=now, since=now) if use.gpus
        ],
        "corral_project_bytes": [({"project": one.project}, one.bytes) for one in tx.disk.projects()],
        **_samples_of(tx, here, now),
    }


def _samples_of(tx: Tx, here: Sequence[Host], now: float) -> Gauges:
    """How busy the hosts that are here and their GPUs are, by what they said in the last minutes."""
    found: Gauges = {name: [] for name in (*_OF_A_HOST, *_OF_A_GPU)}
    names = {host.id: host.name for host in here}
    for record in tx.host_samples.newest(names, now=now).values():
        if now - record.at > FRESH_S:
            continue
        sample = json.loads(record.sample)
        of_host = {"host": names[record.host_id]}
        _add(found, _OF_A_HOST, of_host, sample)
        for gpu in sample.get("gpus", ()):
            _add(found, _OF_A_GPU, {**of_host, "gpu": str(gpu["index"])}, gpu)
    return found


def _add(
    gauges: Gauges, kinds: Mapping[str, str], labels: dict[str, str], sample: Mapping[str, float]
) -> None:
    for gauge, name in kinds.items():
        # What is unknown has no number.
        if (value := sample.get(name)) is not None:
            gauges[gauge].append((labels, value))


class Snapshot(Collector):
    """One scrape: the counters, and what was read from the store for it."""

    def __init__(self, counters: Counters, gauges: Gauges) -> None:
        self._counters = counters
        self._gauges = gauges

    def collect(self) -> list[CounterMetricFamily | GaugeMetricFamily]:
        requests = CounterMetricFamily(
            "corral_http_requests", "Requests by method and status.", labels=["method", "status"]
        )
        for (method, status), count in self._counters.requests.items():
            requests.add_metric([method, str(status)], count)
        seconds = CounterMetricFamily("corral_http_seconds", "Time spent in requests.", labels=["method"])
        for method, spent in self._counters.seconds.items():
            seconds.add_metric([method], spent)
        counters = self._counters
        plain = (
            ("corral_leases_granted", "Leases granted.", counters.granted),
            ("corral_sweeps", "Sweeper ticks.", counters.swept),
            ("corral_sweep_failures", "Sweeper ticks that failed.", counters.sweep_failures),
            ("corral_uploaded_bytes", "Blob bytes received.", counters.uploaded_bytes),
        )
        families = [CounterMetricFamily(name, text, value=value) for name, text, value in plain]
        return [requests, seconds, *families, *self._families()]

    def _families(self) -> list[GaugeMetricFamily]:
        found: list[GaugeMetricFamily] = []
        for name, rows in self._gauges.items():
            labels = sorted({key for row, _ in rows for key in row})
            family = GaugeMetricFamily(name, _HELP[name], labels=labels)
            for row, value in rows:
                family.add_metric([row[key] for key in labels], value)
            found.append(family)
        return found

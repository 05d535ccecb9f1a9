"""Numbers for Prometheus that are cheap enough to count on every request."""

from __future__ import annotations

from collections import Counter

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector


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


class Snapshot(Collector):
    """One scrape: the counters, and what was read from the store for it."""

    def __init__(self, counters: Counters, gauges: dict[str, list[tuple[dict[str, str], float]]]) -> None:
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
            family = GaugeMetricFamily(name, name.replace("_", " "), labels=labels)
            for row, value in rows:
                family.add_metric([row[key] for key in labels], value)
            found.append(family)
        return found

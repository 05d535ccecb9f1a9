"""How busy hosts and the GPUs of runs are, from the store's records to the wire."""

from __future__ import annotations

import json
from typing import Any

from corral.domain.hosts.hosts import Host
from corral.domain.hosts.samples import HostSampleRecord
from corral.domain.leases import Lease
from corral.store.transaction import Tx
from corral.wire.hosts import GpuSampleView, HostSampleView
from corral.wire.runs import RankSampleView

# What a beat may say, and how much of it is believed: its numbers are any that are finite.
_MOST_BYTES = 2.0**62


def host_sample_view(record: HostSampleRecord, host: Host) -> HostSampleView:
    table: dict[str, Any] = json.loads(record.sample)
    names = _gpu_names(host)
    gpus = [GpuSampleView(**gpu, name=names.get(gpu["index"])) for gpu in table.pop("gpus", [])]
    return HostSampleView(**table, at=record.at, gpus=gpus)


def rank_sample_view(tx: Tx, lease: Lease, *, now: float, fresh_s: float) -> RankSampleView:
    """What the lease's last beat said of its processes and GPUs; the rest of its GPUs is the host's word."""
    beat: dict[str, float] = json.loads(lease.sample)
    host = tx.hosts.get(lease.host_id)
    names = {} if host is None else _gpu_names(host)
    told = _told_by_host(tx, lease, now=now, fresh_s=fresh_s)
    gpus = []
    for index in json.loads(lease.gpus):
        known = {**told.get(index, {}), "index": index, "name": names.get(index)}
        if (rate := _number(beat, f"gpu{index}_utilisation", 1.0)) is not None:
            known["utilisation"] = rate
        if (used := _number(beat, f"gpu{index}_memory_used_bytes", _MOST_BYTES)) is not None:
            known["memory_used_bytes"] = int(used)
        gpus.append(GpuSampleView(**known))
    return RankSampleView(
        at=lease.beaten_at,
        rss_bytes=_whole(_number(beat, "rss_bytes", _MOST_BYTES)),
        processes=_whole(_number(beat, "processes", 1e9)),
        gpus=gpus,
    )


def _number(beat: dict[str, float], name: str, most: float) -> float | None:
    value = beat.get(name)
    return value if value is not None and 0 <= value <= most else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _told_by_host(tx: Tx, lease: Lease, *, now: float, fresh_s: float) -> dict[int, dict[str, Any]]:
    if lease.gpus == "[]":
        return {}
    record = tx.host_samples.newest([lease.host_id], now=now).get(lease.host_id)
    if record is None or now - record.at > fresh_s:
        return {}
    return {gpu["index"]: gpu for gpu in json.loads(record.sample).get("gpus", [])}


def _gpu_names(host: Host) -> dict[int, str]:
    reported = json.loads(host.capability or "{}").get("gpus") or ()
    return {gpu["index"]: gpu["name"] for gpu in reported}

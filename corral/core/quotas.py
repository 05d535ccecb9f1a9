"""What projects may use: setting it, holding runs and files to it, stopping what would pass it."""

from __future__ import annotations

import json
from collections.abc import Mapping

from corral.core.audit import Author, note
from corral.core.leases.usage import known_s
from corral.core.policy import ServerPolicy
from corral.core.topics import TOPIC_QUOTA
from corral.domain.errors import FieldError, NotFound, ProjectFull, QuotaExceeded
from corral.domain.ids import Digest, RunId
from corral.domain.leases import Lease
from corral.domain.quotas import Quota, QuotaUse, month_of, month_start
from corral.store.transaction import Tx


def put(tx: Tx, quota: Quota, *, by: Author) -> None:
    tx.quotas.put(quota)
    if quota.max_bytes is not None:
        tx.blobs.count_bytes(quota.project)
        tx.calls.count_payloads(quota.project)
    tx.announce(TOPIC_QUOTA, quota.project)
    limits = {name: value for name, value in quota._asdict().items() if not name.startswith("updated_")}
    limits.pop("project")
    note(tx, "quota.set", f"project:{quota.project}", by, **limits)


def remove(tx: Tx, project: str, *, by: Author) -> None:
    if not tx.quotas.delete(project):
        raise NotFound(f"project {project} has no quota", hint="List them with `corral quotas ls`.")
    tx.announce(TOPIC_QUOTA, project)
    note(tx, "quota.remove", f"project:{project}", by)


def no_room(tx: Tx, project: str, more: int, *, written: int = 0) -> QuotaExceeded | None:
    """Why so many more runs of the project may not wait; `written` of them are in the database already."""
    quota = tx.quotas.get(project)
    if quota is None or quota.max_queued is None:
        return None
    # Locked, so that two submits at once do not both take the last place.
    quota = tx.quotas.lock(project)
    if quota is None or quota.max_queued is None:
        return None
    waiting = tx.runs.unstarted(project, quota.max_queued + 1 + written) - written
    if waiting + more > quota.max_queued:
        shown = f"more than {quota.max_queued}" if waiting > quota.max_queued else str(waiting)
        return QuotaExceeded(
            f"project {project} may have {quota.max_queued} runs waiting (max_queued): "
            f"{shown} wait already, and this would add {more}"
        )
    return None


def used_in(tx: Tx, month: str, now: float) -> list[QuotaUse]:
    """By project, what was used in a month; for the present one with what runs."""
    found: dict[str, QuotaUse] = {}
    place: tuple[str, str] | None = None
    while page := tx.quotas.hours_page(place, 1000):
        for hours in page:
            if hours.month == month:
                found[hours.project] = QuotaUse(hours.project, slot_s=hours.slot_s, gpu_s=hours.gpu_s)
        place = (page[-1].project, page[-1].month)
    if month == month_of(now):
        for use in tx.leases.in_use(now=now, since=month_start(now)):
            ended = found.get(use.project, QuotaUse(use.project))
            slot_s, gpu_s = ended.slot_s + use.slot_s, ended.gpu_s + use.gpu_s
            found[use.project] = use._replace(slot_s=slot_s, gpu_s=gpu_s)
    return [found[project] for project in sorted(found)]


def at_end_of_hours(tx: Tx, *, now: float, since: float, tick_s: float, policy: ServerPolicy) -> list[RunId]:
    """Runs to stop now, so that they have ended when their project's GPU hours of the month have.

    Of a live lease what its worker counted is believed, and the clock only for the time after that, and
    after `since`: a clock that jumped ends nothing.
    """
    found: list[RunId] = []
    for quota in tx.quotas.all():
        if quota.gpu_hours is None:
            continue
        ended = tx.quotas.hours(quota.project, month_of(now))
        used_s, ahead_s = (ended.gpu_s if ended else 0.0), 0.0
        using: list[RunId] = []
        for lease in tx.leases.live_of_project(quota.project):
            run = tx.runs.get(lease.run_id)
            gpus = len(json.loads(lease.gpus))
            if run is not None and gpus:
                used_s += gpus * _held_s(lease, now=now, since=since)
                ahead_s += gpus * (policy.stop_s(run) + tick_s)
                using.append(run.id)
        if using and used_s + ahead_s >= quota.gpu_hours * 3600:
            found += using
    return found


def _held_s(lease: Lease, *, now: float, since: float) -> float:
    """In this month."""
    heard = lease.granted_at if lease.beaten_at is None else lease.beaten_at
    held_s = known_s(lease) + max(0.0, now - max(heard, since))
    return min(held_s, max(0.0, now - month_start(now)))


def check_bytes(tx: Tx, project: str, sizes: Mapping[Digest, int]) -> None:
    """ProjectFull if these files, as far as the project lacks them, are more than its quota allows.

    Every byte is counted once, when the project gets its row: an artifact that is made of them later adds
    nothing. In the transaction that makes the rows, nobody else's can come in between.
    """
    if limits_bytes(tx, project):
        check_room(tx, project, sum(n for sha, n in sizes.items() if tx.blobs.get(project, sha) is None))


def limits_bytes(tx: Tx, project: str) -> bool:
    quota = tx.quotas.get(project)
    return quota is not None and quota.max_bytes is not None


def add_payloads(tx: Tx, project: str, size: int) -> None:
    """Count what a call carries in the database; ProjectFull if the quota does not allow it."""
    if size and limits_bytes(tx, project):
        check_room(tx, project, size)
        tx.calls.add_payload_bytes(project, size)


def check_room(tx: Tx, project: str, adding: int) -> None:
    """ProjectFull if so many bytes more are more than the quota allows.

    Files count, and uploads that are under way or broke off, what calls carry, objects of runs, and secrets.
    """
    quota = tx.quotas.get(project)
    if quota is None or quota.max_bytes is None or adding <= 0:
        return
    files = tx.blobs.project_bytes(project)
    others = {
        "uploads": tx.uploads.bytes_of(project),
        "calls": tx.calls.payload_bytes(project),
        "objects": tx.objects.bytes_of(project),
        "secrets": tx.secrets.bytes_of(project),
    }
    total = files + sum(others.values())
    if total + adding <= quota.max_bytes:
        return
    beside = [f"{size} of {what}" for what, size in others.items() if size]
    raise ProjectFull(
        f"project {project} has {total} bytes of files"
        + (f" ({', '.join(beside)} among them)" if beside else "")
        + f", of {quota.max_bytes} (max_bytes), and this would add {adding}",
        hint="Remove artifacts with `corral artifacts rm`; their bytes are free after the next collection, "
        "about an hour later. Uploads that broke off are free after a day, and what calls carry when their "
        f"`keep` is over. Or let an operator raise max_bytes of project {project}.",
        fields=[FieldError("max_bytes", str(quota.max_bytes))],
    )


def check_file_size(tx: Tx, project: str, size: int) -> None:
    """ProjectFull if a file of that size is more than the quota allows in all, whatever its bytes are."""
    quota = tx.quotas.get(project)
    if quota is not None and quota.max_bytes is not None and size > quota.max_bytes:
        raise ProjectFull(
            f"project {project} may have {quota.max_bytes} bytes of files (max_bytes), this one has {size}",
            hint=f"Let an operator raise max_bytes of project {project}.",
        )

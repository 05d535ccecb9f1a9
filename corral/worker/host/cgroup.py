"""What a container may use, read from control groups. `root` is `/`, or a made-up tree in tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

# Without a limit v1 says "as many pages as fit in 63 bits".
_UNLIMITED_BYTES = 1 << 60


def cpu_quota(root: Path) -> float | None:
    """CPUs' worth of time per second that this process may use; None without a limit."""
    quotas = [_quota_v2(group) for group in _groups_v2(root)]
    quotas += [_quota_v1(group) for group in _groups_v1(root, "cpu")]
    return min((quota for quota in quotas if quota is not None), default=None)


def memory_limit(root: Path) -> int | None:
    """Bytes that this process and those grouped with it may use; None without a limit."""
    return min((limit for limit, _ in _memory(root)), default=None)


def memory_left(root: Path) -> int | None:
    """Bytes until the tightest limit, page cache that can be dropped counted as left; None without one."""
    rooms = [limit - used for limit, used in _memory(root) if used is not None]
    return max(0, min(rooms)) if rooms else None


def own_memory_events(root: Path) -> Path | None:
    """memory.events of this process's own group, which its children share; None without cgroup v2."""
    paths = [path.lstrip("/") for controllers, path in _memberships(root) if controllers == ""]
    files = (mount / path / "memory.events" for path in paths for mount in _mounts_v2(root))
    return next((file for file in files if file.is_file()), None)


def read_counter(file: Path, name: str) -> int | None:
    """The value beside a name in a file of `name value` lines; None if it cannot be read."""
    found = (line.partition(" ") for line in _lines(file))
    return next((int(value) for key, _, value in found if key == name), None)


def _memory(root: Path) -> Iterator[tuple[int, int | None]]:
    """Limit and use of each group around this process that has a limit."""
    for group in _groups_v2(root):
        limit = _number(group / "memory.max")
        if limit is not None:
            yield limit, _used(group, "memory.current", "inactive_file")
    for group in _groups_v1(root, "memory"):
        limit = _number(group / "memory.limit_in_bytes")
        if limit is not None and limit < _UNLIMITED_BYTES:
            yield limit, _used(group, "memory.usage_in_bytes", "total_inactive_file")


def _used(group: Path, usage: str, droppable: str) -> int | None:
    used = _number(group / usage)
    return None if used is None else used - (read_counter(group / "memory.stat", droppable) or 0)


def _quota_v2(group: Path) -> float | None:
    for line in _lines(group / "cpu.max"):
        quota, _, period = line.partition(" ")
        if quota.isdecimal() and period.isdecimal() and int(period):
            return int(quota) / int(period)
    return None


def _quota_v1(group: Path) -> float | None:
    quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
    return quota / period if quota is not None and period else None


def _groups_v2(root: Path) -> Iterator[Path]:
    for controllers, path in _memberships(root):
        if controllers == "":
            for mount in _mounts_v2(root):
                yield from _with_parents(mount, path)


def _mounts_v2(root: Path) -> tuple[Path, Path]:
    return root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"


def _groups_v1(root: Path, controller: str) -> Iterator[Path]:
    for controllers, path in _memberships(root):
        if controller in controllers.split(","):
            # `cpu` is often mounted together with `cpuacct`, with or without a link of its own name.
            for name in {controller, controllers}:
                yield from _with_parents(root / "sys/fs/cgroup" / name, path)


def _memberships(root: Path) -> Iterator[tuple[str, str]]:
    """The controllers (none: v2) and the group of each hierarchy."""
    for line in _lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        yield controllers, path


def _with_parents(mount: Path, path: str) -> Iterator[Path]:
    """The group and those around it, whose limits hold too.

    In a container the path may be the host's, of which only the mount itself can be seen here.
    """
    parts = [part for part in path.split("/") if part]
    yield mount
    if ".." not in parts:
        for depth in range(1, len(parts) + 1):
            yield mount.joinpath(*parts[:depth])


def _number(file: Path) -> int | None:
    """None for "max", for "-1" and for what cannot be read."""
    lines = _lines(file)
    return int(lines[0]) if lines and lines[0].isdecimal() else None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []

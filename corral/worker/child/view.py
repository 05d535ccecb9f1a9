"""What a child sees of the host: some folders are covered, and of what lies in them only its own is shown.

Like the shim, which it is loaded beside, it imports nothing of Corral and only cheap parts of the standard
library. `enter` is called by a freshly forked process with one thread, before it executes its command. The
process gets a user namespace and a mount namespace of its own, so that it can neither take a cover away nor
go round it through another process's /proc/PID/root. Linux only.
"""

from __future__ import annotations

import ctypes
import errno
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT = 1, 2, 4, 32
MS_BIND, MS_REC, MS_SLAVE, MS_RELATIME = 4096, 16384, 1 << 19, 1 << 21
# Flags of a mount that a user namespace must not take away; all but one have the same number in both calls.
_KEPT = {2: 2, 4: 4, 8: 8, 1024: 1024, 2048: 2048, 4096: MS_RELATIME}
_COVER = "mode=0755,size=256m"

# Folders to cover; (path, whether it may be written to) of what is shown in them; whether the covers may be
# written to, which then is nobody else's and gone with the child.
View = tuple[list[str], list[tuple[str, bool]], bool]


def enter(view: View) -> None:
    """OSError if this host does not allow it; then nothing may be executed."""
    hidden, shown, writable = view
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    if user != 0 or not _may(libc, CLONE_NEWNS):
        _unshare(libc, CLONE_NEWUSER | CLONE_NEWNS)
        _map_alone(user, group)
    # What is mounted on the host later still appears; what is mounted here never does there.
    _mount(libc, None, "/", None, MS_REC | MS_SLAVE)
    opened = [(path, write, os.open(path, os.O_PATH)) for path, write in shown if os.path.exists(path)]
    for folder in hidden:
        if os.path.isdir(folder):
            _mount(libc, "tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, _COVER)
    for path, write, descriptor in opened:
        _show(libc, path, descriptor, write)
        os.close(descriptor)
    if not writable:
        for folder in hidden:
            if os.path.isdir(folder):
                _mount(libc, None, folder, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    if user == 0:
        # Root keeps its powers when it executes a program. In a namespace below the one in which the covers
        # were made, they do not reach to the covers.
        _unshare_mapped(libc)


def _show(libc: ctypes.CDLL, path: str, descriptor: int, write: bool) -> None:
    source = f"/proc/self/fd/{descriptor}"
    if os.path.isdir(source):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    _mount(libc, source, path, None, MS_BIND | MS_REC)
    if not write:
        found = os.statvfs(path).f_flag
        kept = sum(there for here, there in _KEPT.items() if found & here)
        _mount(libc, None, path, None, MS_REMOUNT | MS_BIND | MS_RDONLY | kept)


def _map_alone(user: int, group: int) -> None:
    """The same user and group inside as outside, and no others."""
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{user} {user} 1")
    _write("/proc/self/gid_map", f"{group} {group} 1")


def _unshare_mapped(libc: ctypes.CDLL) -> None:
    """Every user and group is the same inside as outside. Only a process outside may say so: a helper."""
    go, go_end = os.pipe()
    process = os.getpid()
    helper = os.fork()
    if helper == 0:
        status = 1
        try:
            os.close(go_end)
            if os.read(go, 1):
                for name in ("uid_map", "gid_map"):
                    _write(f"/proc/{process}/{name}", _all_of(name))
                status = 0
        finally:
            os._exit(status)
    try:
        _unshare(libc, CLONE_NEWUSER | CLONE_NEWNS)
        os.write(go_end, b"1")
    finally:
        os.close(go)
        os.close(go_end)
        status = os.waitpid(helper, 0)[1]
    if status != 0:
        raise PermissionError(errno.EPERM, "the users of a namespace cannot be mapped")


def _all_of(name: str) -> str:
    with open(f"/proc/self/{name}") as file:
        rows = [line.split() for line in file]
    return "".join(f"{first} {first} {count}\n" for first, _, count in rows)


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _may(libc: ctypes.CDLL, flags: int) -> bool:
    return bool(libc.unshare(flags) == 0)


def _unshare(libc: ctypes.CDLL, flags: int) -> None:
    if libc.unshare(flags) != 0:
        raise _failure("a namespace of its own")


def _mount(
    libc: ctypes.CDLL, source: str | None, target: str, kind: str | None, flags: int, data: str | None = None
) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    options = None if data is None else data.encode()
    if libc.mount(*words, ctypes.c_ulong(flags), options) != 0:
        raise _failure(f"a mount at {target}")


def _failure(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what} is refused: {os.strerror(number)}")

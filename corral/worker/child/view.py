"""What a child sees of the host: some folders are covered, and all but a few can only be read.

Like the shim, which it is loaded beside, it imports nothing of Corral and only cheap parts of the standard
library. `enter` is called by a freshly forked process with one thread, before it executes its command. The
process gets a user namespace and a mount namespace of its own, so that it can neither take a cover away nor
go round it through another process's /proc/PID/root. Linux only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT = 1, 2, 4, 32
MS_BIND, MS_REC, MS_SLAVE, MS_RELATIME = 4096, 16384, 1 << 19, 1 << 21
PR_SET_NO_NEW_PRIVS = 38
# Calls that the C library may not know yet; their numbers are the same on every machine.
OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442
AT_FDCWD, AT_EMPTY_PATH, AT_RECURSIVE = -100, 0x1000, 0x8000
OPEN_TREE_CLONE, MOVE_MOUNT_F_EMPTY_PATH = 1, 4
# By machine, as `uname` names it.
KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}
KEYCTL_JOIN_SESSION_KEYRING = 1
# Flags of a mount that a user namespace must not take away; all but one have the same number in both calls.
_KEPT = {2: 2, 4: 4, 8: 8, 1024: 1024, 2048: 2048, 4096: MS_RELATIME}
_COVER = "mode=0755,size=256m"
# A process says there what it is; nobody can write to what is not its own, but for root.
_PROCESSES = ("/proc", True)
_OF_ALL_PROCESSES = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus")

assert sys.platform != "win32"


def enter(view: tuple[list[str], list[tuple[str, bool]], bool]) -> None:
    """A `View` of command.py. OSError if this host does not allow it; then nothing may be executed."""
    hidden, shown, writable = view
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    if user != 0 or not _may(libc, CLONE_NEWNS):
        _unshare(libc, CLONE_NEWUSER | CLONE_NEWNS)
        _map_alone(user, group)
    # What is mounted on the host later still appears; what is mounted here never does there.
    _mount(libc, None, "/", None, MS_REC | MS_SLAVE)
    shown = [*shown, _PROCESSES]
    if user == 0:
        shown += [(path, False) for path in _OF_ALL_PROCESSES]
    # A folder before what lies in it, or it would be mounted over it.
    shown = sorted(one for one in shown if os.path.exists(one[0]))
    arrange = _arrange if _has_tree_calls(libc) else _arrange_one_by_one
    arrange(libc, sorted(path for path in hidden if os.path.isdir(path)), shown, writable)
    if user == 0:
        # Root keeps its powers when it executes a program. In a namespace below the one in which the covers
        # were made, they do not reach to the covers.
        _unshare_mapped(libc)
    _leave_keys(libc)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0) != 0:
        raise _failure("that it gains no rights")


def _leave_keys(libc: ctypes.CDLL) -> None:
    """A keyring of its own: that of the worker's session has tickets and keys of whoever started it, and all
    runs would share it."""
    number = KEYCTL.get(os.uname().machine)
    if number is None or libc.syscall(number, KEYCTL_JOIN_SESSION_KEYRING, None) >= 0:
        return
    # A kernel without keys, or a container whose rules refuse all that has to do with them.
    if ctypes.get_errno() not in {errno.ENOSYS, errno.EPERM, errno.EACCES}:
        raise _failure("a keyring of its own")


def _has_tree_calls(libc: ctypes.CDLL) -> bool:
    """Linux 5.12 has them; a container's rules may refuse what they do not know."""
    libc.syscall(MOUNT_SETATTR, -1, b"", 0, None, ctypes.c_size_t(0))
    return ctypes.get_errno() not in {errno.ENOSYS, errno.EPERM}


def _arrange(libc: ctypes.CDLL, hidden: list[str], shown: list[tuple[str, bool]], writable: bool) -> None:
    """Set aside what is shown, as it is; make the rest read-only as one act; put it back."""
    trees = [(path, _tree(libc, path)) for path, _ in shown]
    for (_, write), (_, tree) in zip(shown, trees, strict=True):
        if not write:
            _set_read_only(libc, tree, "", AT_EMPTY_PATH | AT_RECURSIVE)
    _set_read_only(libc, AT_FDCWD, "/", AT_RECURSIVE)
    waiting = [*trees]
    for folder in [*hidden, None]:
        while waiting and (folder is None or waiting[0][0] < folder):
            path, tree = waiting.pop(0)
            _make_place(path, os.path.isdir(f"/proc/self/fd/{tree}"))
            words = (tree, b"", AT_FDCWD, os.fsencode(path), MOVE_MOUNT_F_EMPTY_PATH)
            if libc.syscall(MOVE_MOUNT, *words) != 0:
                raise _failure(f"a mount at {path}")
            os.close(tree)
        if folder is not None:
            _mount(libc, "tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, _COVER)
    for folder in () if writable else hidden:
        _set_read_only(libc, AT_FDCWD, folder, 0)


def _tree(libc: ctypes.CDLL, path: str) -> int:
    """The folder or file and all that is mounted below it, mounted nowhere yet."""
    how = OPEN_TREE_CLONE | AT_RECURSIVE | os.O_CLOEXEC
    tree: int = libc.syscall(OPEN_TREE, AT_FDCWD, os.fsencode(path), how)
    if tree < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return tree


def _set_read_only(libc: ctypes.CDLL, folder: int, path: str, how: int) -> None:
    # What to set, what to clear, how mounts spread, and a namespace: 64 bits each.
    attributes = (ctypes.c_uint64 * 4)(MS_RDONLY, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    words = (folder, os.fsencode(path), ctypes.c_uint(how), ctypes.byref(attributes), size)
    if libc.syscall(MOUNT_SETATTR, *words) != 0:
        raise _failure(f"a mount at {path or 'a folder'} that can only be read")


def _arrange_one_by_one(
    libc: ctypes.CDLL, hidden: list[str], shown: list[tuple[str, bool]], writable: bool
) -> None:
    """The same for a system without those calls: each mount there is, but what was shown to be written to."""
    opened = [(path, os.open(path, os.O_PATH)) for path, _ in shown]
    waiting = [*opened]
    for folder in [*hidden, None]:
        while waiting and (folder is None or waiting[0][0] < folder):
            path, descriptor = waiting.pop(0)
            source = f"/proc/self/fd/{descriptor}"
            _make_place(path, os.path.isdir(source))
            _mount(libc, source, path, None, MS_BIND | MS_REC)
            os.close(descriptor)
        if folder is not None:
            _mount(libc, "tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, _COVER)
    rules = {**dict.fromkeys(hidden, writable), **dict(shown)}
    for place in _mount_points():
        rule = next((up for up in _upwards(place) if up in rules), None)
        if rule is None or not rules[rule]:
            _remount_read_only(libc, place)


def _mount_points() -> list[str]:
    with open("/proc/self/mountinfo", "rb") as file:
        words = [line.split()[4] for line in file]
    return sorted({os.fsdecode(word.decode("unicode_escape").encode("latin-1")) for word in words})


def _upwards(path: str) -> list[str]:
    found = [path]
    while found[-1] != "/":
        found.append(os.path.dirname(found[-1]))
    return found


def _remount_read_only(libc: ctypes.CDLL, path: str) -> None:
    try:
        found = os.statvfs(path).f_flag
        kept = sum(there for here, there in _KEPT.items() if found & here)
        _mount(libc, None, path, None, MS_REMOUNT | MS_BIND | MS_RDONLY | kept)
    except OSError as error:
        # It lies below a cover or where this user cannot go: nobody reaches it from here.
        if error.errno not in {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EINVAL}:
            raise


def _make_place(path: str, is_folder: bool) -> None:
    """Where something is to be mounted; below a cover it is missing."""
    if os.path.exists(path):
        return
    os.makedirs(path if is_folder else os.path.dirname(path), exist_ok=True)
    if not is_folder:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))


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

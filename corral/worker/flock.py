"""Locks between threads and processes of one host, which the kernel drops when their holder dies.

The files stay: removing one while another opens it would let two hold "the same" lock.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

POLL_S = 0.05


@contextmanager
def shared(path: Path) -> Iterator[bool]:
    """True if held; False at once if someone holds it exclusively."""
    with _opened(path) as descriptor:
        yield _try(descriptor, fcntl.LOCK_SH)


@contextmanager
def exclusive(path: Path) -> Iterator[bool]:
    """True if held; False at once if anyone else holds it."""
    with _opened(path) as descriptor:
        yield _try(descriptor, fcntl.LOCK_EX)


@contextmanager
def joined(path: Path) -> Iterator[None]:
    """Shared, after waiting for whoever holds it exclusively; only where that is short."""
    with _opened(path) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield


@contextmanager
def waited(
    path: Path, note: Callable[[], None], should_stop: Callable[[], bool], *, every_s: float
) -> Iterator[bool]:
    """Wait for the exclusive lock, calling `note` at once and every `every_s`; False if told to stop."""
    next_note = time.monotonic()
    with _opened(path) as descriptor:
        while not (held := _try(descriptor, fcntl.LOCK_EX)) and not should_stop():
            if time.monotonic() >= next_note:
                note()
                next_note = time.monotonic() + every_s
            time.sleep(POLL_S)
        yield held


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    # Not inherited (the default since PEP 446): a child that outlives us must not keep the lock.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _try(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

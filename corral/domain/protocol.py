"""Which form of the protocol each side speaks: named by both in every call, so that what differs is told.

Within `/v1` answers only gain fields, and requests only gain optional ones. The number rises when a request
may hold something that an older server refuses, or a worker must do something that an older one does not.
"""

from __future__ import annotations

PROTOCOL = 3
# What says nothing is from before the number was sent.
OLDEST = 1
# From here on a server knows what a worker says of memory, faults, isolation and lent slots.
WORKER_NEWS = 3
CLIENT_HEADER = "Corral-Protocol"
SERVER_HEADER = "corral-protocol"


def parse_protocol(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 6 else OLDEST


def newer_client_hint(server: int, server_version: str) -> str:
    """What to do when a server refuses a request that it may be too old for."""
    return (
        f"The server is older than this client (corral {server_version or 'of unknown version'}, protocol "
        f"{server}; here {PROTOCOL}) and may not know what was sent: update the server, or leave that out."
    )

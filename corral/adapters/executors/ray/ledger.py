"""What the cluster itself remembers of our launches, in the key-value store of its head.

Actors and placement groups are forgotten when they end, and with them how they ended; this is not. Keys of a
launch start with its handle, INSTALLATION/KEY:

    order         what was asked for; whoever writes it first has claimed the key
    launched      the ids of its actors and placement groups, once all are registered
    payload/RANK  what the rank runs, with its token: taken out when it starts
    started/RANK  where; a rank for which it is there is never started again
    ended/RANK    how
    output/RANK   the end of what its worker wrote
    cancelled     when
    closed        when its end was first seen
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from ray.experimental import internal_kv

NAMESPACE = "corral"


def write_once(key: str, value: Any) -> bool:
    """False if it was there already: then the old value stays."""
    taken = internal_kv._internal_kv_put(
        key, json.dumps(value).encode(), overwrite=False, namespace=NAMESPACE
    )
    return not taken


def read(key: str) -> Any:
    """None if it is not there."""
    return read_many([key]).get(key)


def read_many(keys: Iterable[str]) -> dict[str, Any]:
    """Those that are there, with one request."""
    asked = [key.encode() for key in keys]
    if not asked:
        return {}
    client = internal_kv.internal_kv_get_gcs_client()
    found = client.internal_kv_multi_get(asked, NAMESPACE.encode())
    return {key.decode(): json.loads(value) for key, value in found.items()}


def handles(installation: str) -> list[str]:
    """Of all its launches that are remembered."""
    keys = internal_kv._internal_kv_list(f"{installation}/", namespace=NAMESPACE)
    names = (key.decode() for key in keys)
    return sorted(name.removesuffix("/order") for name in names if name.endswith("/order"))


def erase(key: str) -> None:
    internal_kv._internal_kv_del(key, namespace=NAMESPACE)


def erase_launch(handle: str) -> None:
    internal_kv._internal_kv_del(f"{handle}/", del_by_prefix=True, namespace=NAMESPACE)

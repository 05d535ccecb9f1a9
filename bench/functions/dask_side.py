"""Dask distributed. Usage: dask_side.py CALLS MAP MB STARTS. Prints one JSON line."""

from __future__ import annotations

import distributed

from bench.functions import timing


def nop(n: int) -> int:
    return n


def echo(data: bytes) -> bytes:
    return data


def main() -> None:
    calls, many, mb, _ = timing.sizes()
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        ms = timing.one_by_one(lambda n: client.submit(nop, n, pure=False).result(), calls)
        found = {"ms": ms, "version": distributed.__version__}
        if many:
            client.gather(client.map(nop, range(min(many, 500)), pure=False))
            map_s, _ = timing.timed(lambda: client.gather(client.map(nop, range(many), pure=False)))
            large = timing.large(lambda data: client.submit(echo, data, pure=False).result(), mb)
            found |= {"map": many, "map_s": map_s, **large}
        timing.tell(**found)


if __name__ == "__main__":
    main()

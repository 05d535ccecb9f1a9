"""Ray tasks. Usage: ray_side.py CALLS MAP MB STARTS. Prints one JSON line."""

from __future__ import annotations

from typing import Any

import ray

from bench.functions import timing


def give_back(value: Any) -> Any:
    return value


nop = echo = ray.remote(give_back)


def main() -> None:
    calls, many, mb, _ = timing.sizes()
    ray.init(
        num_cpus=2,
        _node_ip_address="127.0.0.1",
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=2 << 30,
    )
    ms = timing.one_by_one(lambda n: ray.get(nop.remote(n)), calls)
    found = {"ms": ms, "version": ray.__version__}
    if many:
        ray.get([nop.remote(n) for n in range(min(many, 500))])
        map_s, _ = timing.timed(lambda: ray.get([nop.remote(n) for n in range(many)]))
        found |= {"map": many, "map_s": map_s, **timing.large(lambda data: ray.get(echo.remote(data)), mb)}
    timing.tell(**found)
    ray.shutdown()


if __name__ == "__main__":
    main()

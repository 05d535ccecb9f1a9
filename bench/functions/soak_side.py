"""A part of the soak. Usage: soak_side.py CALLS FOLDER ROUND. Prints one JSON line."""

from __future__ import annotations

import json
import os
import sys
import time

import corral

app = corral.App("soak")


@app.function(idle="10m", max_instances=2)
def mark(n: int, folder: str) -> int:
    """Leaves a byte for every time that it runs."""
    with open(os.path.join(folder, str(os.getpid())), "ab", buffering=0) as file:
        file.write(b".")
    return n


def main() -> None:
    count, folder, number = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    first = number * count
    began = time.perf_counter()
    got = list(mark.map(range(first, first + count), [folder] * count))
    spent = time.perf_counter() - began
    good = sum(one == first + place for place, one in enumerate(got))
    sys.stdout.write(json.dumps({"good": good, "s": spent}) + "\n")


if __name__ == "__main__":
    main()

"""Procrastinate doing the same: defer, fetch, finish no-op jobs on a given Postgres. Prints one JSON line.

Usage: procrastinate_jobs.py URL SECONDS WORKERS CONCURRENCY BATCH
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time

import procrastinate
import psycopg

BACKLOG = 1024
DEFERRERS = 16
QUEUE_SQL = "SELECT status::text, count(*) FROM procrastinate_jobs GROUP BY 1"


def make_app(url: str, connections: int) -> procrastinate.App:
    connector = procrastinate.PsycopgConnector(conninfo=url, min_size=1, max_size=connections)
    app = procrastinate.App(connector=connector)

    @app.task(name="noop")  # type: ignore[untyped-decorator]
    async def noop() -> None:
        return None

    return app


async def defer(url: str, batch: int) -> None:
    """Keep the queue filled until killed."""
    app = make_app(url, DEFERRERS + 2)
    async with app.open_async():
        room = asyncio.Event()

        async def watch() -> None:
            async with await psycopg.AsyncConnection.connect(url, autocommit=True) as reader:
                while True:
                    cursor = await reader.execute(
                        "SELECT count(*) FROM procrastinate_jobs WHERE status = 'todo'"
                    )
                    row = await cursor.fetchone()
                    (room.set if row is not None and row[0] < BACKLOG else room.clear)()
                    await asyncio.sleep(0.2)

        async def one() -> None:
            task = app.tasks["noop"]
            while True:
                await room.wait()
                if batch == 1:
                    await task.defer_async()
                else:
                    await task.batch_defer_async(*({} for _ in range(batch)))

        await asyncio.gather(watch(), *(one() for _ in range(DEFERRERS)))


async def work(url: str, workers: int, concurrency: int) -> None:
    app = make_app(url, min(64, workers * concurrency) + 2 * workers)
    async with app.open_async():
        await asyncio.gather(
            *(
                app.run_worker_async(
                    concurrency=concurrency, install_signal_handlers=False, fetch_job_polling_interval=0.1
                )
                for _ in range(workers)
            )
        )


def counts(url: str) -> dict[str, int]:
    with psycopg.connect(url, autocommit=True) as connection:
        return dict(connection.execute(QUEUE_SQL).fetchall())


def settings(url: str) -> dict[str, str]:
    with psycopg.connect(url, autocommit=True) as connection:
        names = ("fsync", "synchronous_commit", "server_version")
        rows = [connection.execute(f"SHOW {name}".encode()).fetchone() for name in names]
    return {name: str(row[0]) for name, row in zip(names, rows, strict=True) if row is not None}


def measure(url: str, seconds: float, workers: int, concurrency: int, batch: int) -> dict[str, object]:
    with make_app(url, 2).open() as app:
        app.schema_manager.apply_schema()
    command = [sys.executable, __file__]
    children = [
        subprocess.Popen([*command, "defer", url, str(batch)]),
        subprocess.Popen([*command, "work", url, str(workers), str(concurrency)]),
    ]
    try:
        time.sleep(3)
        before, began = counts(url).get("succeeded", 0), time.perf_counter()
        time.sleep(seconds)
        after, wall = counts(url), time.perf_counter() - began
    finally:
        for child in children:
            child.kill()
            child.wait()
    done = after.get("succeeded", 0) - before
    return {
        "jobs_per_s": done / wall,
        "jobs": done,
        "backlog_left": after.get("todo", 0),
        "workers": workers,
        "concurrency": concurrency,
        "batch": batch,
        "version": procrastinate.__version__,
        **settings(url),
    }


def main() -> None:
    first, *rest = sys.argv[1:]
    if first == "defer":
        asyncio.run(defer(rest[0], int(rest[1])))
    elif first == "work":
        asyncio.run(work(rest[0], int(rest[1]), int(rest[2])))
    else:
        found = measure(first, float(rest[0]), int(rest[1]), int(rest[2]), int(rest[3]))
        sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    # A rival that is asked to log every job at INFO would be slower than it has to be.
    os.environ.pop("PROCRASTINATE_VERBOSE", None)
    main()

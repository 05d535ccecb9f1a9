"""Ray's job submission doing the same: submit to the entrypoint's first instruction. Prints one JSON line.

Usage: ray_jobs.py DASHBOARD_URL RUNS ENTRYPOINT
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ.setdefault("RAY_AUTH_MODE", "disabled")

import ray
from ray.job_submission import JobStatus, JobSubmissionClient

WARM = 2
ENDED = {JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.STOPPED}


def start_ms(client: JobSubmissionClient, entrypoint: str) -> float:
    began = time.time_ns()
    job = client.submit_job(entrypoint=entrypoint)
    while (status := client.get_job_status(job)) not in ENDED:
        time.sleep(0.05)
    log = client.get_job_logs(job)
    printed = [line for line in log.splitlines() if line.isdigit() and len(line) == 19]
    if status != JobStatus.SUCCEEDED or not printed:
        raise RuntimeError(f"job {job} is {status}: {log[-500:]}")
    return (int(printed[0]) - began) / 1e6


def main() -> None:
    address, runs, entrypoint = sys.argv[1:]
    client = JobSubmissionClient(address)
    for _ in range(WARM):
        start_ms(client, entrypoint)
    # Bounded: a slow machine gets fewer runs rather than a longer bench.
    give_up_at = time.monotonic() + 35
    spent: list[float] = []
    while len(spent) < int(runs) and time.monotonic() < give_up_at:
        spent.append(start_ms(client, entrypoint))
    sys.stdout.write(json.dumps({"ms": spent, "version": ray.__version__}) + "\n")


if __name__ == "__main__":
    main()

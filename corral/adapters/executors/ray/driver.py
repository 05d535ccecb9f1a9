"""The process that is connected to the cluster: `python -m corral.adapters.executors.ray.driver`.

Requests and replies are lines of JSON on standard input and output; the first request says where the cluster
is. It ends with its standard input.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
from typing import Any, TextIO

PACKAGE = "corral.adapters.executors.ray"
_REACH_S = 5.0


def main() -> None:
    # Ray and what it starts write where they like; only this goes to whoever asks.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    operations: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["do"] == "connect":
                operations = _connect(request)
                _reply(replies, {"result": operations["versions"](request)})
            else:
                _reply(replies, {"result": operations[request["do"]](request)})
        # Ray raises whatever it likes; the one that asked must hear of it.
        except Exception as error:  # noqa: BLE001
            _reply(replies, {"error": type(error).__name__, "detail": str(error)})


def _connect(request: dict[str, Any]) -> Any:
    os.environ.update(request.get("environ", {}))
    # Not at the top: who has no Ray must be told so in a reply.
    ray = importlib.import_module("ray")
    cloudpickle = importlib.import_module("ray.cloudpickle")
    _reach(request["address"])
    options = {"_node_ip_address": request["node_ip"]} if request.get("node_ip") else {}
    ray.init(
        address=request["address"],
        namespace="corral",
        log_to_driver=False,
        logging_level="ERROR",
        **options,
    )
    # The nodes need not have this version of Corral, or any, in the Python that Ray runs in.
    cloudpickle.register_pickle_by_value(importlib.import_module(PACKAGE))
    return importlib.import_module(f"{PACKAGE}.operations").OPERATIONS


def _reach(address: str) -> None:
    """Ray itself asks for minutes at an address where nobody listens, and does not say why."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()


def _reply(replies: TextIO, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message) + "\n")
    replies.flush()


if __name__ == "__main__":
    main()

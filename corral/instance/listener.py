"""Listens to the worker in a thread of its own: the main thread runs the user's code."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable
from typing import Any

from corral.instance.channel import Channel


def start_listening(channel: Channel, handle: Callable[[dict[str, Any], bytes], None]) -> None:
    """`handle` gets each message."""
    threading.Thread(target=_listen, args=(channel, handle), name="corral-listener", daemon=True).start()


def _listen(channel: Channel, handle: Callable[[dict[str, Any], bytes], None]) -> None:
    try:
        while (message := channel.receive()) is not None:
            handle(*message)
    except Exception:  # noqa: BLE001 - whatever it is, an instance that hears nothing must not go on
        traceback.print_exc()
    # The worker is gone, and the shim ends us: nothing that we do reaches anybody.
    os._exit(1)

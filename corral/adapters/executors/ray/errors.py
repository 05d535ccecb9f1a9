"""What the driver and Ray say, in the words of the port."""

from __future__ import annotations

from typing import Any

from corral.ports.executor import ExecutorUnreachable, LaunchRefused

# Ray could not read what was asked for; it will not be able to the next time.
_REFUSALS = frozenset({"ValueError", "TypeError"})


def error_of(doing: str, reply: dict[str, Any]) -> Exception:
    detail = f"{reply['error']}: {reply['detail']}".strip()
    if doing == "launch" and reply["error"] in _REFUSALS:
        return LaunchRefused(f"Ray refused the launch: {detail}")
    return ExecutorUnreachable(f"Ray failed to {doing}: {detail}")

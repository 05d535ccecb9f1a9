"""What of uv's words reaches the run's log."""

from __future__ import annotations

from pathlib import Path

from corral.client.environments.lock import Lock
from corral.worker.prepare.environments import Environments

# uv --color never venv FOLDER ...
FAKE_UV = """#!/bin/sh
echo "Using CPython" >&2
mkdir -p "$4/bin" && touch "$4/bin/python" && chmod +x "$4/bin/python"
echo "Activate with: source building/x/bin/activate" >&2
"""


def test_the_advice_to_activate_an_environment_is_left_out(tmp_path: Path) -> None:
    uv = tmp_path / "uv"
    uv.write_text(FAKE_UV)
    uv.chmod(0o755)
    said: list[str] = []

    Environments(tmp_path / "root", {"PATH": "/usr/bin:/bin"}, uv=uv).build(Lock("", "3.12"), said.append)

    assert "Using CPython" in said
    assert not any("Activate" in line for line in said)

"""Rivals live in a virtual environment of their own, so that the project's is not changed by them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
VENV = ROOT / ".cache" / "bench-venv"
PYTHON = VENV / "bin" / "python"
PACKAGES = (
    "procrastinate>=3",
    "psycopg[binary,pool]>=3.2",
    "ray[default]==2.60.0",
    "celery==5.7.*",
    "redis>=5",
    "distributed==2026.8.*",
    "numpy==2.2.*",
)
_STAMP = VENV / "packages.txt"


class RivalMissing(Exception):
    """A rival that could not be installed is reported as absent; Corral is measured all the same."""


def install() -> None:
    """Once; later runs find what the first one made."""
    wanted = "\n".join(PACKAGES)
    if _STAMP.exists() and _STAMP.read_text(encoding="utf-8") == wanted:
        return
    sys.stderr.write(f"installing the rivals into {VENV} (once)\n")
    if not PYTHON.exists():
        venv.create(VENV, with_pip=True)
    done = subprocess.run(
        [str(PYTHON), "-m", "pip", "install", "--quiet", *PACKAGES],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RivalMissing(done.stderr.strip()[-500:])
    _STAMP.write_text(wanted, encoding="utf-8")


def run(script: str, arguments: Sequence[str], *, timeout_s: float) -> Any:
    """Run a program of `bench/rivals` there; its last line is JSON."""
    install()
    command = [str(PYTHON), str(Path(__file__).parent / "rivals" / script), *arguments]
    return read(command, os.environ, timeout_s=timeout_s)


def read(command: Sequence[str], environ: Mapping[str, str], *, timeout_s: float) -> Any:
    """The JSON in the last line that it prints."""
    name = Path(command[1]).name
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False, env=dict(environ)
        )
    except subprocess.TimeoutExpired as error:
        raise RivalMissing(f"{name} took longer than {timeout_s:.0f} s") from error
    if done.returncode != 0 or not done.stdout.strip():
        raise RivalMissing(f"{name} failed: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])

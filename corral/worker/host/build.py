"""Which Corral this is: its version, and the commit where it was installed from a repository."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
from functools import cache
from pathlib import Path

from corral.version import __version__

_LIMIT_S = 5.0


@cache
def build() -> str:
    """`0.1.0`, or `0.1.0+1a2b3c4d5e6f`. Never raises; asked once."""
    commit = _installed_commit() or _checkout_commit()
    return f"{__version__}+{commit[:12]}" if commit else __version__


def _installed_commit() -> str | None:
    """As pip notes it for `pip install git+https://...`."""
    try:
        said = importlib.metadata.distribution("corral").read_text("direct_url.json")
        found = json.loads(said or "{}").get("vcs_info", {}).get("commit_id")
    except (importlib.metadata.PackageNotFoundError, ValueError, AttributeError, OSError):
        return None
    return found if isinstance(found, str) else None


def _checkout_commit() -> str | None:
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip() or None

"""What of the models of the hub lies on this machine already."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from corral.recipes import models

_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def is_hub_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None and ".." not in text and len(text) <= 200


def hub_folder(model: str, environ: Mapping[str, str]) -> Path:
    """Where the hub's own library keeps a model."""
    return _cache(environ) / f"models--{model.replace('/', '--')}"


def cached_bytes(model: str, revision: str | None, environ: Mapping[str, str]) -> int:
    """The size of the model's weights, as far as they are here; 0 if they are not."""
    listed = models.facts(model)
    name = listed.hf if listed is not None and listed.hf else model
    if revision is None or _COMMIT.fullmatch(revision) is None or not is_hub_id(name):
        return 0
    return folder_bytes(hub_folder(name, environ) / "snapshots" / revision, "*.safetensors")


def folder_bytes(folder: Path, pattern: str = "*") -> int:
    """The sizes of a folder's files together; 0 where it cannot be read."""
    try:
        return sum(path.stat().st_size for path in folder.rglob(pattern) if path.is_file())
    except OSError:
        return 0


def _cache(environ: Mapping[str, str]) -> Path:
    if given := environ.get("HF_HUB_CACHE"):
        return Path(given)
    home = environ.get("HF_HOME") or f"{environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    return Path(home).expanduser() / "hub"

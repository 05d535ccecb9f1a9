"""What the Hugging Face hub knows of a model: the commit that its name stands for now, its shape and size.

Asked once, at submit, so that every attempt and every seed of a run reads the same weights. A hub that cannot
be reached is no error: the host may have the model already.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from corral.client.training.model_cache import cached_bytes, hub_folder
from corral.domain.errors import FieldError, InvalidInput

HUB = "https://huggingface.co"
# How a note ends about a model whose commit could not be found out.
NOT_PINNED = "is not pinned"
TIMEOUT_S = 5.0
_CONFIG_MAX_BYTES = 1 << 20
_MOST_BYTES = 1 << 50
_COMMIT = re.compile(r"[0-9a-f]{40}")
_TRUE = ("1", "true", "yes", "on")
# Bytes of one weight, by the names that safetensors has for its kinds.
_WIDTHS = {
    **{"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2},
    **{"F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1, "BOOL": 1},
}


@dataclass(frozen=True)
class PinnedModel:
    """What is not known is None; `note` says why."""

    revision: str | None = None
    config: Mapping[str, Any] | None = None
    note: str = ""
    # What its weights take on a disk.
    weights_bytes: int | None = None


def pin(model: str, environ: Mapping[str, str], *, has_token: bool) -> PinnedModel:
    """InvalidInput if the hub says that there is no such model. `has_token`: whether the run brings one."""
    cached = _from_cache(model, environ)
    if environ.get("HF_HUB_OFFLINE", "").lower() in _TRUE:
        return cached
    headers = {"Authorization": f"Bearer {token}"} if (token := environ.get("HF_TOKEN")) else {}
    base = environ.get("HF_ENDPOINT", HUB).rstrip("/")
    try:
        with httpx.Client(timeout=TIMEOUT_S, headers=headers, follow_redirects=True) as http:
            return _ask(http, base, model, cached, has_token=has_token)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        if cached.revision:
            return cached
        return PinnedModel(
            note=f"the model hub cannot be asked ({type(error).__name__}): {model} {NOT_PINNED}"
        )


def _ask(http: httpx.Client, base: str, model: str, cached: PinnedModel, *, has_token: bool) -> PinnedModel:
    answer = http.get(f"{base}/api/models/{model}/revision/main")
    gated = answer.status_code == 403 or answer.headers.get("x-error-code") == "GatedRepo"
    if gated:
        return PinnedModel(note=_gated(model, has_token=has_token))
    # The hub says 401 to strangers also for what is not there.
    if answer.status_code in (401, 404):
        raise _absent(model)
    answer.raise_for_status()
    said = answer.json()
    commit = said.get("sha") if isinstance(said, dict) else None
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        return cached
    note = _gated(model, has_token=has_token) if said.get("gated") and not has_token else ""
    size = _weights_bytes(said)
    if commit == cached.revision:
        return PinnedModel(commit, cached.config, note, size or cached.weights_bytes)
    return PinnedModel(commit, _config(http, f"{base}/{model}/resolve/{commit}/config.json"), note, size)


def _weights_bytes(said: Mapping[str, Any]) -> int | None:
    """The hub counts the weights of each kind; None where it does not, or knows a kind that we do not."""
    table = said.get("safetensors")
    counts = table.get("parameters") if isinstance(table, dict) else None
    if not isinstance(counts, dict) or not counts:
        return None
    if any(kind not in _WIDTHS or type(count) is not int or count < 0 for kind, count in counts.items()):
        return None
    total = sum(_WIDTHS[kind] * count for kind, count in counts.items())
    return total if 0 < total < _MOST_BYTES else None


def _config(http: httpx.Client, url: str) -> Mapping[str, Any] | None:
    answer = http.get(url)
    if answer.status_code != 200 or len(answer.content) > _CONFIG_MAX_BYTES:
        return None
    return _table(answer.text)


def _absent(model: str) -> InvalidInput:
    message = f"names {model}, which the model hub does not have"
    return InvalidInput(
        f"`model` {message}",
        hint="Check its name; `corral models` lists short names. A private one needs HF_TOKEN here.",
        fields=[FieldError("model", message)],
    )


def _gated(model: str, *, has_token: bool) -> str:
    if has_token:
        return f"{model} is gated; the run's own HF_TOKEN must be one that may read it"
    return (
        f"{model} is gated: unless the host has it already, set a token with "
        '`corral secrets set HF_TOKEN` and put secrets = ["HF_TOKEN"] into the run file'
    )


def _from_cache(model: str, environ: Mapping[str, str]) -> PinnedModel:
    """What an earlier download left on this machine."""
    folder = hub_folder(model, environ)
    try:
        commit = (folder / "refs" / "main").read_text(encoding="ascii").strip()
        if not _COMMIT.fullmatch(commit):
            return PinnedModel()
        text = (folder / "snapshots" / commit / "config.json").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return PinnedModel()
    return PinnedModel(commit, _table(text), weights_bytes=cached_bytes(model, commit, environ) or None)


def _table(text: str) -> Mapping[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None

"""Fetches models from the Hugging Face hub: by commit, and only the files that are safe to read."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from corral.engine.errors import ModelProblem
from corral.recipes import models as listed

_FILES = [
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "chat_template*",
    "*.safetensors",
    "*.safetensors.index.json",
]
# Folders hold the same weights in other formats; Mistral's `consolidated` is a second copy.
_NOT = ["*/*", "consolidated*"]


def fetch(ref: str, revision: str | None, cache_dir: Path | None) -> Path:
    """The folder of one commit, whose name is the commit. What is in the cache is not fetched again."""
    try:
        found = snapshot_download(
            ref, revision=revision, cache_dir=cache_dir, allow_patterns=_FILES, ignore_patterns=_NOT
        )
    except (OSError, HFValidationError) as error:
        raise _explanation(ref, revision, error) from error
    return Path(str(found))


def has(ref: str, revision: str | None, cache_dir: Path | None) -> bool:
    """Whether the commit is in the cache, as far as can be told without asking the hub."""
    try:
        snapshot_download(ref, revision=revision, cache_dir=cache_dir, local_files_only=True)
    except (OSError, HFValidationError):
        return False
    return True


def _explanation(ref: str, revision: str | None, error: Exception) -> ModelProblem:
    found = _plain_explanation(ref, revision, error)
    near = listed.near(ref)
    if near is not None and listed.facts(ref) is None:
        found.hint = f"Did you mean {near!r}? {found.hint}"
    return found


def _plain_explanation(ref: str, revision: str | None, error: Exception) -> ModelProblem:
    match error:
        case GatedRepoError():
            return ModelProblem(
                f"model {ref!r} is gated: its owner must let you in",
                "Ask for access on its page, then give the run your token: secrets = ['HF_TOKEN'].",
            )
        case RepositoryNotFoundError():
            return ModelProblem(
                f"model {ref!r} is not on the hub, or is private",
                "Check its name; for a private one, give the run your token: secrets = ['HF_TOKEN'].",
            )
        case RevisionNotFoundError():
            return ModelProblem(
                f"model {ref!r} has no revision {revision!r}", "Name a branch, a tag or a commit of it."
            )
        case HFValidationError():
            return ModelProblem(
                f"{ref!r} is neither a folder nor a name of a model",
                "Give a folder, a listed model, or a name such as 'owner/model'.",
            )
        case LocalEntryNotFoundError() | OfflineModeIsEnabled():
            return ModelProblem(
                f"model {ref!r} is not on this machine, and the hub cannot be reached",
                "Give this machine a network, fetch the model into its cache first, or name a folder.",
            )
        case HfHubHTTPError():
            return ModelProblem(
                f"the hub refused model {ref!r}: {str(error).strip().splitlines()[0]}", "Try again later."
            )
    return ModelProblem(f"model {ref!r} cannot be fetched: {error}", "Check the disk and the network.")

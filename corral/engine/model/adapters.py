"""What of a model is trained: LoRA adapters by peft, or every weight; attached, saved and loaded."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from corral.engine.errors import ModelProblem
from corral.engine.model import seeded_random
from corral.recipes import models as listed
from corral.recipes.train_tables import Lora

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# peft's own name for the model inside the one that it wraps; what it saves begins so.
_PREFIX = "base_model.model."
# peft's name of the one adapter in a model; a file leaves it out.
_ADAPTER = ".default"
# Settings of peft that change what the weights mean, and that the engine does not implement.
_UNKNOWN = (
    "alora_invocation_tokens",
    "alpha_pattern",
    "layer_replication",
    "lora_bias",
    "megatron_config",
    "modules_to_save",
    "rank_pattern",
    "target_parameters",
    "trainable_token_indices",
    "use_dora",
)


def attach(
    model: PreTrainedModel, lora: Lora | None, *, seed: int = 0, start_from: Path | None = None
) -> list[str]:
    """Make the model trainable, in place; give the names of its trainable parameters.

    With `lora` its linear layers become peft's LoRA layers, and only those train: fp32, whatever the
    model's own weights are. Without, every weight trains. `start_from` is a saved adapter to begin with; it
    must be of this model and have the rank, scale and layers that `lora` asks for.
    """
    if lora is None:
        if start_from is not None:
            raise ModelProblem("an adapter cannot be continued by full training", "Set method = 'lora'.")
        model.requires_grad_(True)
        return [name for name, _ in model.named_parameters()]
    config = _config(model, lora)
    if start_from is not None:
        _refuse_unlike(_read_config(start_from), config, model, start_from)
    # peft draws weights, from the global generators; ours replace them.
    used = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=used):
        inject_adapter_in_model(config, model)
    _draw(model, seed)
    if start_from is not None:
        load_into(model, start_from)
        if not any(p.any() for name, p in model.named_parameters() if ".lora_B." in name):
            raise ModelProblem(
                f"the adapter in {start_from} was never trained: its B matrices are zero",
                "Leave `adapter` out: a new adapter is the same.",
            )
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def _config(model: PreTrainedModel, lora: Lora) -> LoraConfig:
    if lora.targets != "all-linear":
        _refuse_unknown_targets(model, lora.targets)
    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha or 2 * lora.rank,
        use_rslora=lora.rslora,
        # The head is not one of "all": peft leaves it out, and the loss never multiplies by it whole.
        target_modules="all-linear" if lora.targets == "all-linear" else list(lora.targets),
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
        base_model_name_or_path=model.name_or_path,
    )


def _refuse_unknown_targets(model: PreTrainedModel, targets: tuple[str, ...]) -> None:
    """peft is content if one of them is there."""
    layers = {name.rsplit(".", 1)[-1]: layer for name, layer in model.named_modules()}
    linear = sorted(name for name, layer in layers.items() if isinstance(layer, (nn.Linear, Conv1D)))
    for target in targets:
        if target not in layers:
            near = difflib.get_close_matches(target, linear, n=1)
            raise ModelProblem(
                f"the model has no layer {target!r}",
                f"Did you mean {near[0]!r}?" if near else f"It has: {', '.join(linear)}.",
            )


def _draw(model: PreTrainedModel, seed: int) -> None:
    """A as peft spreads it, B zero; fp32."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_" in name:
                parameter.data = parameter.data.float()
            if ".lora_A." in name:
                bound = 1 / math.sqrt(parameter.shape[1])
                parameter.copy_(seeded_random.uniform(name, seed, parameter.shape, bound))
            elif ".lora_B." in name:
                parameter.zero_()


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        said = json.loads((folder / _CONFIG).read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ModelProblem(
            f"{folder} holds no adapter: {_CONFIG} is missing",
            "Name the folder that `save_pretrained` of peft wrote, or a run that trained one.",
        ) from None
    except ValueError as error:
        raise ModelProblem(f"{folder / _CONFIG} is not JSON: {error}") from error
    kind = said.get("peft_type") if isinstance(said, dict) else None
    if kind != "LORA":
        raise ModelProblem(f"the adapter in {folder} is {kind or 'of no known kind'}, not LORA", _PLAIN)
    if odd := [key for key in _UNKNOWN if said.get(key)]:
        raise ModelProblem(f"the adapter in {folder} has {odd[0]}", _PLAIN)
    if said.get("bias", "none") != "none":
        raise ModelProblem(f"the adapter in {folder} has trained biases", _PLAIN)
    # PiSSA, OLoRA and their like change the model's own weights, which the file does not hold.
    if said.get("init_lora_weights", True) not in (True, False, "gaussian", "orthogonal", "eva"):
        raise ModelProblem(
            f"the adapter in {folder} belongs to a changed model ({said['init_lora_weights']})", _PLAIN
        )
    return dict(said)


_PLAIN = "Only plain LoRA can be continued."


def _refuse_unlike(said: Mapping[str, Any], asked: LoraConfig, model: PreTrainedModel, folder: Path) -> None:
    """An adapter's scale is not in its weights: with another one it would be another adapter."""
    theirs, ours = str(said.get("base_model_name_or_path") or ""), str(model.name_or_path or "")
    known = [listed.facts(name) for name in (theirs, ours)]
    if None not in known and known[0] != known[1]:
        raise ModelProblem(
            f"the adapter in {folder} is of {theirs!r}, and the model is {ours!r}",
            f"Set model = {theirs!r}, or take an adapter of {ours!r}.",
        )
    has = {"rank": said.get("r"), "alpha": said.get("lora_alpha"), "rslora": bool(said.get("use_rslora"))}
    wanted = {"rank": asked.r, "alpha": asked.lora_alpha, "rslora": asked.use_rslora}
    if has != wanted:
        raise ModelProblem(
            f"the adapter in {folder} has {_listed(has)}; asked for is {_listed(wanted)}",
            f"Set in [train.lora]: {_listed(has)}.",
        )


def _listed(settings: Mapping[str, object]) -> str:
    return ", ".join(f"{key} = {json.dumps(value)}" for key, value in settings.items())


def is_adapted(model: PreTrainedModel) -> bool:
    return any(".lora_A." in name for name, _ in model.named_parameters())


def save(model: PreTrainedModel, folder: Path, *, base: str | None = None) -> None:
    """What stock peft loads; without an adapter, what transformers loads. `base` names the model in it."""
    folder.mkdir(parents=True, exist_ok=True)
    if not is_adapted(model):
        model.save_pretrained(folder)
        return
    tensors = {
        _PREFIX + name: parameter.detach().cpu().contiguous() for name, parameter in _adapter(model).items()
    }
    save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
    config = model.peft_config["default"].to_dict()
    config["inference_mode"] = True
    config["base_model_name_or_path"] = base or model.name_or_path or None
    config = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
    (folder / _CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True, default=str) + "\n", "utf-8")


def _adapter(model: PreTrainedModel) -> dict[str, nn.Parameter]:
    """The adapter's parameters as a file names them."""
    return {
        name.replace(_ADAPTER, ""): parameter
        for name, parameter in model.named_parameters()
        if ".lora_" in name
    }


def load_into(model: PreTrainedModel, folder: Path) -> None:
    """The saved weights into a model that has the adapter (or none, if none was saved). All must fit."""
    adapted = is_adapted(model)
    paths = [folder / _WEIGHTS] if adapted else sorted(folder.glob("model*.safetensors"))
    tensors: dict[str, Tensor] = {}
    try:
        for path in paths:
            tensors |= load_file(path)
    except FileNotFoundError:
        raise ModelProblem(f"{folder} holds no adapter: {_WEIGHTS} is missing") from None
    except (SafetensorError, OSError) as error:
        raise ModelProblem(f"the weights in {folder} cannot be read: {error}") from error
    if not tensors:
        raise ModelProblem(f"{folder} holds no weights")
    wanted: dict[str, Tensor] = dict(_adapter(model)) if adapted else _whole(model, tensors)
    tensors = {name.removeprefix(_PREFIX): tensor for name, tensor in tensors.items()}
    _refuse_unfit(tensors, wanted, folder)
    with torch.no_grad():
        for name, tensor in tensors.items():
            wanted[name].copy_(tensor)


def _whole(model: PreTrainedModel, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every weight by name; of names for one tensor (a tied head), those that were saved."""
    named = model.state_dict(keep_vars=True)
    kept = {id(named[name]) for name in saved if name in named}
    return {name: tensor for name, tensor in named.items() if name in saved or id(tensor) not in kept}


def _refuse_unfit(tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor], folder: Path) -> None:
    hint = "Start from an adapter that was trained on this model, with the same targets."
    if unlike := sorted(wanted.keys() ^ tensors.keys()):
        where = "there and not in the model" if unlike[0] in tensors else "in the model and not there"
        raise ModelProblem(
            f"the weights in {folder} are of another model or of other layers:"
            f" {unlike[0]} is {where} ({len(unlike)} differ)",
            hint,
        )
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            raise ModelProblem(
                f"the weights in {folder} are of another model: {name} is {list(tensor.shape)},"
                f" here it is {list(wanted[name].shape)}",
                hint,
            )
        if not tensor.isfinite().all():
            raise ModelProblem(f"the weights in {folder} are damaged: {name} is not all finite")

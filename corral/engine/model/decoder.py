"""The decoder of the Llama family, written once for training, prefill and decoding.

It takes over the weights of a transformers model and shares their memory, so that the model stays whole:
peft still owns the adapters, and saving goes through it. What is gained: projections that read the same
input are one matrix product, adapters run in the base's precision without copies, and a layer is one
function of tensors, which compiles once for all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corral.engine.model.attention import Attend
from corral.engine.model.lora import adapted, stacked
from corral.recipes.models import FAMILIES

# Rows: a product of bf16 numbers is fast only if what it writes begins at a multiple of 16 bytes.
_ALIGNED = 16


class Dims(NamedTuple):
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    scale: float


class LoraPairs(NamedTuple):
    """A LoRA pair of peft's, or None, for each projection of a fused one."""

    a: tuple[Tensor | None, ...]
    b: tuple[Tensor | None, ...]
    scales: tuple[float, ...]


class Linear(NamedTuple):
    """Projections of one input. Frozen ones are one tensor; trained ones stay apart.

    `stacked` is there where an adapter is: the frozen rows, and below them room for the adapter's A.
    """

    weights: tuple[Tensor, ...]
    bias: Tensor | None
    sizes: tuple[int, ...]
    adapter: LoraPairs | None
    stacked: Tensor | None = None


class Layer(NamedTuple):
    input_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


class FusedAdapter(NamedTuple):
    """An adapter in the base's precision: y += (x @ a) @ b. With `stacked`, a lies below the frozen rows, and
    one product gives both."""

    a: Tensor
    b: Tensor
    stacked: Tensor | None = None


LayerAdapters = tuple[FusedAdapter | None, FusedAdapter | None, FusedAdapter | None, FusedAdapter | None]


def fits(model: Any, *, trained: bool = False) -> str | None:
    """Why this model cannot be run by this decoder; None if it can. `trained`: its own weights train."""
    config = model.config
    if config.model_type not in FAMILIES:
        return f"architecture {config.model_type!r} is not one of {', '.join(sorted(FAMILIES))}"
    if getattr(config, "hidden_act", "silu") != "silu":
        return f"activation {config.hidden_act!r} is not silu"
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or (config.model_type == "mistral" and config.sliding_window):
        return "it attends through a sliding window"
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    if rope in ("dynamic", "longrope"):
        return f"its positions are written by the longest sequence of a pass (rope {rope!r})"
    for name in ("lm_head", "embed_tokens"):
        # Only peft's own layer would run such an adapter.
        if any(part.endswith(name) and hasattr(layer, "base_layer") for part, layer in model.named_modules()):
            return f"{name} has an adapter"
    if trained and any(name.endswith("_proj.bias") for name, _ in model.named_parameters()):
        return "full training of projections with biases is not supported"
    return None


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As transformers rounds it: normalised in fp32, back to the input's precision, then scaled."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions for heads [T, H, D]; cos and sin are [T, D]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos.unsqueeze(1) + torch.cat((-second, first), dim=-1) * sin.unsqueeze(1)


def fuse(linear: Linear, dtype: torch.dtype) -> FusedAdapter | None:
    """The adapters of a fused projection as one pair: A side by side, B as blocks."""
    adapter = linear.adapter
    if adapter is None:
        return None
    a = torch.cat([a.to(dtype) for a in adapter.a if a is not None])
    blocks = [
        linear.weights[0].new_zeros((size, 0), dtype=dtype) if b is None else (b * scale).to(dtype)
        for b, scale, size in zip(adapter.b, adapter.scales, linear.sizes, strict=True)
    ]
    return FusedAdapter(a.t().contiguous(), torch.block_diag(*blocks).t().contiguous())


def fuse_layer(layer: Layer, dtype: torch.dtype) -> LayerAdapters:
    return fuse(layer.qkv, dtype), fuse(layer.out, dtype), fuse(layer.gate_up, dtype), fuse(layer.down, dtype)


@torch.no_grad()
def stack_layer(layer: Layer, dtype: torch.dtype) -> LayerAdapters:
    """The same for sampling, each A in the room below its frozen rows. `restack` brings it up to date."""
    found = [_stack(linear, dtype) for linear in (layer.qkv, layer.out, layer.gate_up, layer.down)]
    return (found[0], found[1], found[2], found[3])


def _stack(linear: Linear, dtype: torch.dtype) -> FusedAdapter | None:
    fused = fuse(linear, dtype)
    if fused is None or linear.stacked is None:
        return fused
    room = linear.stacked[linear.weights[0].shape[0] :]
    b = fused.b.new_zeros((room.shape[0], fused.b.shape[1]))
    return restack(FusedAdapter(room.t(), b, linear.stacked), fused)


def restack(kept: FusedAdapter, new: FusedAdapter) -> FusedAdapter:
    """`kept` with the values of `new`, in place. Room beyond the adapter's rank stays zero."""
    rank = new.a.shape[1]
    kept.a[:, :rank].copy_(new.a)
    kept.b[:rank].copy_(new.b)
    return kept


def project(x: Tensor, linear: Linear, adapter: FusedAdapter | None) -> Tensor:
    if adapter is not None and adapter.stacked is not None:
        y: Tensor = stacked(x, adapter.stacked, adapter.b)
    elif adapter is not None and len(linear.weights) == 1:
        y = adapted(x, linear.weights[0], adapter.a, adapter.b)[0]
    else:
        outs = [F.linear(x, weight) for weight in linear.weights]
        y = outs[0] if len(outs) == 1 else torch.cat(outs, dim=-1)
    return y if linear.bias is None else y + linear.bias


def before_attention(
    x: Tensor, layer: Layer, on_qkv: FusedAdapter | None, cos: Tensor, sin: Tensor, dims: Dims
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [T, heads, head_dim] of tokens [T, hidden]."""
    qkv = project(rms_norm(x, layer.input_norm, dims.eps), layer.qkv, on_qkv)
    heads = qkv.view(x.shape[0], -1, dims.head_dim)
    q, k, v = heads.split((dims.heads, dims.kv_heads, dims.kv_heads), dim=1)
    if layer.q_norm is not None and layer.k_norm is not None:
        q, k = rms_norm(q, layer.q_norm, dims.eps), rms_norm(k, layer.k_norm, dims.eps)
    return rotate(q, cos, sin), rotate(k, cos, sin), v


def after_attention(x: Tensor, attended: Tensor, layer: Layer, adapters: LayerAdapters, dims: Dims) -> Tensor:
    """The layer's result from its input and what attention gave, [T, heads, head_dim]."""
    _, on_out, on_gate_up, on_down = adapters
    x = x + project(attended.reshape(x.shape[0], dims.heads * dims.head_dim), layer.out, on_out)
    gate, up = project(rms_norm(x, layer.mlp_norm, dims.eps), layer.gate_up, on_gate_up).chunk(2, dim=-1)
    return x + project(F.silu(gate) * up, layer.down, on_down)


def run_layer(
    x: Tensor,
    layer: Layer,
    adapters: LayerAdapters | None,
    cos: Tensor,
    sin: Tensor,
    dims: Dims,
    attend: Attend,
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer over tokens [T, hidden]; also the keys and values that it made, [T, kv_heads, head_dim].

    Without `adapters`, the layer's own are fused here, with gradient.
    """
    adapters = fuse_layer(layer, x.dtype) if adapters is None else adapters
    q, k, v = before_attention(x, layer, adapters[0], cos, sin, dims)
    return after_attention(x, attend(q, k, v), layer, adapters, dims), k, v


class Decoder:
    """The weights of a model of the family, layer by layer."""

    def __init__(self, model: Any, *, trained: bool) -> None:
        """`model` is a transformers causal LM, perhaps with adapters. `trained`: its own weights are too."""
        if why := fits(model, trained=trained):
            raise ValueError(why)
        config = model.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.dims = Dims(
            config.num_attention_heads,
            config.num_key_value_heads,
            head_dim,
            config.rms_norm_eps,
            head_dim**-0.5,
        )
        self.trained = trained
        self.hidden: int = config.hidden_size
        self.vocab: int = config.vocab_size
        body = model.model
        self.embedding: Tensor = body.embed_tokens.weight
        self.head: Tensor = model.lm_head.weight
        self.norm: Tensor = body.norm.weight
        self.layers = [self._layer(layer) for layer in body.layers]
        self._rotary = body.rotary_emb

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    def rope(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin for positions [T], as the model itself would make them."""
        cos, sin = self._rotary(self.embedding, positions.unsqueeze(0))
        return cos.squeeze(0), sin.squeeze(0)

    def _layer(self, layer: Any) -> Layer:
        attention, mlp = layer.self_attn, layer.mlp
        norms = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
        q_norm, k_norm = (None if norm is None else norm.weight for norm in norms)
        made = Layer(
            layer.input_layernorm.weight,
            self._linear([attention.q_proj, attention.k_proj, attention.v_proj]),
            q_norm,
            k_norm,
            self._linear([attention.o_proj]),
            layer.post_attention_layernorm.weight,
            self._linear([mlp.gate_proj, mlp.up_proj]),
            self._linear([mlp.down_proj]),
        )
        if self.device.type == "cuda":
            # The weights as they were loaded are gone. Their memory fits nothing that follows, and with
            # that of all layers a model would take twice its size.
            torch.cuda.empty_cache()
        return made

    def _linear(self, modules: Sequence[Any]) -> Linear:
        plain = [getattr(module, "base_layer", module) for module in modules]
        sizes = tuple(module.weight.shape[0] for module in plain)
        weights = tuple(module.weight for module in plain)
        adapter, whole = _adapter(modules), None
        if not self.trained and (len(plain) > 1 or adapter is not None):
            whole = _share(plain, room=_room(adapter))
            weights = (whole[: sum(sizes)],)
        biases = [module.bias for module in plain]
        bias = None if biases[0] is None else torch.cat([b.detach() for b in biases])
        return Linear(weights, bias, sizes, adapter, None if adapter is None else whole)


def _room(adapter: LoraPairs | None) -> int:
    """Rows for all A of an adapter, rounded up to what matrix units like."""
    ranks = sum(a.shape[0] for a in adapter.a if a is not None) if adapter else 0
    return -(-ranks // _ALIGNED) * _ALIGNED


def _share(modules: Sequence[Any], *, room: int) -> Tensor:
    """One tensor for frozen weights, with some rows of zeros after them; each module's own becomes a view."""
    first = modules[0].weight.detach()
    below = [first.new_zeros((room, first.shape[1]))] if room else []
    whole = torch.cat([*(module.weight.detach() for module in modules), *below])
    row = 0
    for module in modules:
        rows = module.weight.shape[0]
        module.weight = nn.Parameter(whole[row : row + rows], requires_grad=False)
        row += rows
    return whole


def _adapter(modules: Sequence[Any]) -> LoraPairs | None:
    names = [next(iter(getattr(module, "lora_A", ())), None) for module in modules]
    if not any(names):
        return None
    pairs = [
        (None, None, 1.0)
        if name is None
        else (module.lora_A[name].weight, module.lora_B[name].weight, float(module.scaling[name]))
        for module, name in zip(modules, names, strict=True)
    ]
    a, b, scales = zip(*pairs, strict=True)
    return LoraPairs(a, b, scales)

"""Any causal language model of transformers: its own layers and peft's, with our packs, loss and head.

Slower than `decoder`, which knows one family. What a model cannot do right is found out when it is loaded,
by trying it on a few tokens: a pack must give what its sequences give by themselves, and the logits must be
those of the hidden states times one matrix.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from corral.engine.data.packing import Pack, pack
from corral.engine.data.sequences import Example
from corral.engine.device import send
from corral.engine.errors import ModelProblem
from corral.engine.model import generic_attention
from corral.engine.model.attention import Layout, layout_of

# How far two ways to compute the same may be apart, as a share of the whole. What should be equal to the
# last bit, since only strangers in the pack differ, may be apart by the second.
_EXACT, _ROUNDED = (1e-4, 1e-5), (5e-2, 1e-2)
# Layers whose rule is one over two positions, so that it can be asked about a pack. Of others, such as those
# that choose what to look at, a few tokens would not tell what they do to a long pack.
_KINDS = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
_CAPS = ("final_logit_softcapping", "logits_soft_cap")
# Factors that models apply to their logits; some divide by them.
_FACTORS = ("logit_scale", "logits_scaling", "lm_head_multiplier", "output_multiplier")
# What a model that was not made for packs may answer to one.
FAULTS = (TypeError, ValueError, RuntimeError, AttributeError, LookupError, AssertionError)
# A column for the bias of the head, and what it takes to keep rows aligned in memory.
_BIAS_COLUMNS = 8


class PackingSupport(NamedTuple):
    """Whether sequences may share a pack, and a group its prefix; `note` says why not."""

    packs: bool
    shares: bool
    note: str | None = None


class BatchingSupport(NamedTuple):
    """Whether prompts of several lengths may share a batch, and its rows be copied and dropped."""

    pads: bool
    takes: bool


class GenericBackbone:
    """Stands in for both `Decoder` and `Backbone`."""

    def __init__(self, model: PreTrainedModel, *, ref: str, trained: bool, length: int = 1) -> None:
        """`trained`: the model's own weights train, not an adapter's. `length`: that of packs on a GPU."""
        # transformers has few types, and not all of them are right.
        self.model: Any = model
        self._ref, self._trained, self._length = ref, trained, length
        self.text = model.config.get_text_config()
        nn.Module.eval(model)
        _drop_nothing(model)
        self._base = _body(model, ref)
        self._takes = frozenset(inspect.signature(type(self._base).forward).parameters)
        # Only plain code does this kind of attention.
        capped = getattr(self.text, "attn_logit_softcapping", None)
        now = "sdpa" if model.config._attn_implementation == generic_attention.NAME else None
        self._plain = "eager" if capped else now or model.config._attn_implementation
        self._attention = ""
        self._layers: list[nn.Module] | None = None
        self._scale, self._bias = 1.0, False
        self.head = self._read_head()
        # Found out by the first sampler.
        self.batching: BatchingSupport | None = None
        # Beyond it, the longest sequence of a pass decides how positions are written for all.
        self.rope_limit = _rope_limit(self.text)

    @property
    def notes(self) -> list[str]:
        """What people should know of how this model is trained."""
        found = [self.packing.note] if self.packing.note else []
        experts = any(p.dim() == 3 and "expert" in name for name, p in self.model.named_parameters())
        if experts and not self._trained:
            found.append(f"{self._ref} has experts, which adapters leave as they are")
        return found

    @property
    def device(self) -> torch.device:
        return self.head.device

    # -- passes ---------------------------------------------------------------------------------------

    def packed(
        self, examples: Sequence[Example], capacity: int, *, share_prefix: bool, multiple: int = 1
    ) -> list[Pack]:
        """As `packing.pack`; what may not lie with others is a pack of its own."""
        if any(len(example.tokens) > capacity for example in examples):
            return pack(examples, capacity, share_prefix=False)  # says which one it is
        packs, shares, _ = self.packing
        # Padding is a stranger too.
        multiple = multiple if packs else 1
        places: list[list[int]] = [[]]
        for place, example in enumerate(examples):
            if packs and len(example.tokens) <= self.rope_limit:
                places[0].append(place)
            else:
                places.append([place])
        found = []
        for some in places:
            chosen = [examples[place] for place in some]
            for part in pack(chosen, capacity, share_prefix=share_prefix and shares, multiple=multiple):
                found.append(replace(part, index=[some[place] for place in part.index]))
        return found

    def train(self, tokens: Tensor, positions: Tensor, layout: Layout, *, recompute: bool) -> Tensor:
        """What the head is to be multiplied with [T, columns of the head], with gradient."""
        packs = self.packing.packs
        with self._recomputing(recompute):
            if packs:
                hidden = self._together(tokens, positions, layout)
            elif len(layout.spans) == 1:
                hidden = self._alone(tokens)
            else:
                raise ValueError(f"{self._ref} cannot run several sequences in one pass")
        return self._before_head(hidden)

    def _together(self, tokens: Tensor, positions: Tensor, layout: Layout) -> Tensor:
        self.attend(generic_attention.NAME)
        with generic_attention.packed(layout, positions):
            # With a mask, transformers does not look for boundaries itself, in the steps of the positions.
            return self._run(tokens, positions, torch.ones_like(tokens).unsqueeze(0))

    def _alone(self, tokens: Tensor) -> Tensor:
        self.attend(self._plain)
        return self._run(tokens, torch.arange(tokens.shape[0], device=tokens.device), None)

    def _run(self, tokens: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        given = {
            "input_ids": tokens.unsqueeze(0),
            "position_ids": positions.unsqueeze(0),
            "attention_mask": mask,
            "use_cache": False,
        }
        hidden = self._base(**{name: value for name, value in given.items() if name in self._takes})[0]
        assert isinstance(hidden, Tensor)
        return hidden.squeeze(0)

    def attend(self, name: str | None = None) -> None:
        """Attention by this function of transformers' from now on; by the model's own if none is named.

        It stays: layers that are recomputed in the backward pass look it up again.
        """
        name = name or self._plain
        if name != self._attention:
            self.model.set_attn_implementation(name)
            self._attention = name

    # -- recomputation --------------------------------------------------------------------------------

    @contextmanager
    def _recomputing(self, wanted: bool) -> Iterator[None]:
        """transformers recomputes only layers in training mode; those inside them stay as they were."""
        layers = self._checkpointed() if wanted else []
        for layer in layers:
            layer.training = True
        try:
            yield
        finally:
            for layer in layers:
                layer.training = False

    def _checkpointed(self) -> list[nn.Module]:
        if self._layers is None:
            self._layers = []
            if self.model.supports_gradient_checkpointing:
                # Before transformers 5.23 it had the other name alone.
                names = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
                enable = next(getattr(self.model, name) for name in names if hasattr(self.model, name))
                enable({"use_reentrant": False, "preserve_rng_state": False})
                self._layers = [m for m in self.model.modules() if hasattr(m, "gradient_checkpointing")]
        return self._layers

    # -- the head -------------------------------------------------------------------------------------

    def _before_head(self, hidden: Tensor) -> Tensor:
        hidden = hidden.to(self.head.dtype)
        if self._scale != 1.0:
            hidden = hidden * self._scale
        if self._bias:
            one = hidden.new_zeros(hidden.shape[0], _BIAS_COLUMNS)
            one[:, 0] = self._scale
            hidden = torch.cat((hidden, one), dim=1)
        return hidden

    @torch.no_grad()
    def _read_head(self) -> Tensor:
        """The matrix of the head. Refuses a model whose logits are anything but a product with it."""
        layer = self.model.get_output_embeddings()
        weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
        if not isinstance(weight, Tensor) or hasattr(layer, "base_layer"):
            raise self._refusal("its head is not one matrix, or has an adapter of its own")
        for name in _CAPS:
            if (cap := getattr(self.text, name, None)) is not None:
                raise self._refusal(f"its logits are bounded ({name} = {cap})")
        if bias is not None and self._trained:
            raise self._refusal("its head has a bias, which cannot train", "Train an adapter: method 'lora'.")
        hidden, logits = self._first_words()
        plain = F.linear(hidden.to(weight.dtype), weight, bias).float()
        scales = [scale for scale in self._scales() if not self.differ(logits, plain * scale)]
        if not scales:
            raise self._refusal("its logits are more than its last hidden states times a matrix")
        self._scale, self._bias = scales[0], bias is not None
        if bias is None:
            return weight
        rest = weight.new_zeros(weight.shape[0], _BIAS_COLUMNS - 1)
        return torch.cat((weight, bias.unsqueeze(1), rest), dim=1)

    def _first_words(self) -> tuple[Tensor, Tensor]:
        """Hidden states and logits of a few tokens. Refuses a model that cannot run, or looks ahead."""
        tokens = self.words(11, 0)
        try:
            hidden = self._alone(tokens)
            logits = self.model(input_ids=tokens.unsqueeze(0), use_cache=False).logits[0].float()
            shorter = self._alone(tokens[:-1])
        except torch.OutOfMemoryError:
            raise
        except FAULTS as error:
            raise self._refusal(f"it does not run on tokens alone ({_line(error)})") from error
        if self.differ(hidden[:-1], shorter):
            raise self._refusal("it is not causal: its tokens see those that follow")
        return hidden, logits

    def _scales(self) -> list[float]:
        named = [getattr(self.text, name, None) for name in _FACTORS]
        factors = [float(value) for value in named if isinstance(value, int | float) and value]
        return [1.0, *factors, *(1 / factor for factor in factors)]

    def _refusal(self, why: str, hint: str = "Take another model.") -> ModelProblem:
        return ModelProblem(f"{self._ref} cannot be trained: {why}", hint)

    # -- trying out -----------------------------------------------------------------------------------

    @property
    def _tolerance(self) -> tuple[float, float]:
        return _EXACT if self.model.dtype == torch.float32 else _ROUNDED

    def differ(self, a: Tensor, b: Tensor) -> bool:
        """By more than rounding can explain."""
        return not _apart(a, b) <= self._tolerance[0]

    def words(self, count: int, seed: int) -> Tensor:
        """Some tokens that mean nothing in particular."""
        marks = {v for name, v in self.text.to_dict().items() if name.endswith("token_id") and v is not None}
        random = torch.Generator().manual_seed(seed)
        drawn = torch.randint(self.text.vocab_size, (count * 4 + 64,), generator=random).tolist()
        words = [word for word in drawn if word not in marks][:count]
        return send(torch.tensor(words), next(self.model.parameters()).device)

    @cached_property
    def packing(self) -> PackingSupport:
        """Whether packs give what separate sequences give; if not, nothing is packed."""
        others = set(getattr(self.text, "layer_types", None) or ()) - _KINDS
        others |= {name for name in vars(self.text) if name.startswith("index_topk")}
        why = f"it has layers of {', '.join(sorted(others))}" if others else self._fault()
        if why is not None:
            return PackingSupport(False, False, f"{self._ref} is trained one sequence at a time: {why}")
        if self._fault(share=True) is None:
            return PackingSupport(True, True)
        return PackingSupport(
            True, False, f"{self._ref} is trained without shared prefixes: they change results"
        )

    @torch.no_grad()
    def _fault(self, *, share: bool = False) -> str | None:
        """What is wrong with a pack of two sequences (`share`: of one group); None if nothing is."""
        first, other, second = self.words(9, 1), self.words(9, 2), self.words(14, 3)
        if share:
            first, second = (torch.cat((other[:6], tail)) for tail in (first[:5], second[:8]))
        pair = [Example(words.tolist(), {}, group=0 if share else -1, prefix=6) for words in (first, second)]
        try:
            whole = self._try_pack(pair)
            for words, found in zip((first, second), whole, strict=True):
                if self.differ(self._alone(words)[-1 - len(found) : -1], found):
                    return "in a pack it gave other results than by itself"
            if share:
                return None
            stranger = self._try_pack([Example(other.tolist(), {}), pair[1]])
        except torch.OutOfMemoryError:
            raise
        except FAULTS as error:
            return f"it cannot run a pack ({_line(error)})"
        if not _apart(whole[1], stranger[1]) <= self._tolerance[1]:
            return "in a pack its sequences see each other"
        return None

    def _try_pack(self, examples: Sequence[Example]) -> list[Tensor]:
        on_gpu = self.device.type == "cuda"
        (part,) = pack(examples, 64, share_prefix=True, multiple=self._length if on_gpu else 1)
        layout = layout_of(part.segment, part.prefix, self.device)
        tokens, positions = send(part.tokens, self.device), send(part.positions, self.device)
        hidden = self._together(tokens, positions, layout)
        return [hidden[start:end] for start, end in part.spans]


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]:.120}"


def _apart(a: Tensor, b: Tensor) -> float:
    """The difference as a share of the whole."""
    return float((a.float() - b.float()).norm() / a.float().norm())


def _body(model: Any, ref: str) -> nn.Module:
    """The model below its head."""
    for base in (model.base_model, model.get_decoder(), getattr(model, "model", None)):
        if isinstance(base, nn.Module) and base is not model:
            return base
    raise ModelProblem(f"{ref} cannot be trained: it has no body apart from its head", "Take another model.")


def _drop_nothing(model: nn.Module) -> None:
    """No dropout, whatever the mode: training is to be the same each time and however it is cut up."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if ("dropout" in name or name == "layerdrop") and isinstance(value, float):
                setattr(module, name, 0.0)


def _rope_limit(config: Any) -> float:
    """The length from which on positions are written otherwise, where a model does that; else infinite."""
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    limits = [float("inf")]
    for kind in kinds:
        if kind.get("rope_type") in ("dynamic", "longrope"):
            # Set for a model that was stretched; for others it is what they were made for.
            limits.append(kind.get("original_max_position_embeddings") or config.max_position_embeddings)
    return min(limits)

"""The primitives that recipes are written on: forward_backward, optim_step, sample, save and load."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from corral.engine.data.packing import UNWEIGHTED, Pack
from corral.engine.data.sequences import Completion, Example, SamplingParams, SamplingRequest
from corral.engine.device import send
from corral.engine.model import adapters, head
from corral.engine.model import load as models
from corral.engine.model.attention import Layout, layout_of
from corral.engine.model.backbone import Backbone
from corral.engine.model.decoder import Decoder, fits
from corral.engine.model.generic_backbone import GenericBackbone
from corral.engine.sampling.generic_sampler import GenericSampler
from corral.engine.sampling.sampler import Sampler
from corral.engine.training.cuda_graphs import GraphedPasses
from corral.engine.training.losses import Loss, Sums, add_sums
from corral.engine.training.optimizer import Optimizer
from corral.recipes.train_tables import Lora

_OPTIMIZER = "optimizer.safetensors"
# Tokens whose logits are computed together. On a GPU all chunks have this length, for the compiler's sake.
_CHUNK = 2048


@dataclass
class Step:
    """What forward_backward measured. The numbers stay on the device until `read`, which waits for them."""

    tokens: int = 0
    padding: int = 0
    loss: Tensor = field(default_factory=lambda: torch.zeros(()))
    sums: Sums = field(default_factory=dict)

    def add(self, loss: Tensor, sums: Sums) -> None:
        # The zero that it begins with is on the host, and goes along as a number: moving it would wait.
        self.loss = self.loss + loss
        add_sums(self.sums, sums)

    def read(self) -> dict[str, float]:
        names = list(self.sums)
        values = torch.stack([self.loss.float(), *(self.sums[name].float() for name in names)]).tolist()
        return {"loss": values[0], **dict(zip(names, values[1:], strict=True))}


@dataclass(frozen=True)
class Options:
    """How to run, not what to compute: results agree to rounding whatever is chosen here."""

    micro_tokens: int = 8192
    recompute: bool = False
    share_prefix: bool = True
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.0


class Engine:
    """A model, its adapter and its optimiser on one device."""

    def __init__(self, loaded: models.LoadedModel, names: Sequence[str], options: Options) -> None:
        self.loaded = loaded
        self.options = options
        wanted = set(names)
        self._trained = {name: p for name, p in loaded.model.named_parameters() if name in wanted}
        full = not any(".lora_" in name for name in names)
        self._backbone: Backbone | GenericBackbone
        self._decoder: Decoder | GenericBackbone
        if fits(loaded.model, trained=full) is None:
            self._decoder = Decoder(loaded.model, trained=full)
            self._backbone = Backbone(self._decoder)
        else:
            self._decoder = self._backbone = GenericBackbone(
                loaded.model, ref=loaded.ref, trained=full, length=options.micro_tokens
            )
        self._optimizer = Optimizer(
            self._trained, beta1=options.beta1, beta2=options.beta2, weight_decay=options.weight_decay
        )
        self._sampler: Sampler | None = None
        self._replays: GraphedPasses | None = None
        if isinstance(self._backbone, Backbone) and self.device.type == "cuda":
            self._replays = GraphedPasses(self._backbone, list(self._trained.values()))

    @classmethod
    def load(
        cls,
        ref: str,
        *,
        lora: Lora | None,
        seed: int = 0,
        start_from: Path | None = None,
        options: Options | None = None,
        device: str | None = None,
        dtype: torch.dtype | None = None,
        revision: str | None = None,
        cache_dir: Path | None = None,
    ) -> Engine:
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        dtype = dtype or (torch.bfloat16 if device.startswith("cuda") else torch.float32)
        loaded = models.load(ref, revision=revision, dtype=dtype, device=device, cache_dir=cache_dir)
        names = adapters.attach(loaded.model, lora, seed=seed, start_from=start_from)
        return cls(loaded, names, options or Options())

    @property
    def device(self) -> torch.device:
        return self._decoder.device

    @property
    def notes(self) -> list[str]:
        """What a person should know of how this model is run; empty where it is run at its best."""
        return self._backbone.notes

    # -- training -------------------------------------------------------------------------------------

    def forward_backward(self, examples: Sequence[Example], loss: Loss, *, temperature: float = 1.0) -> Step:
        """Add the gradients of the loss over the examples to those that are there already."""
        step = Step()
        for part in self._packs(examples):
            step.tokens += part.real
            step.padding += part.tokens.shape[0] - part.real
            step.add(*self._backward(part, loss, temperature))
        return step

    def optim_step(self, learning_rate: float, *, clip: float = 1.0) -> Tensor:
        """Update the weights and drop the gradients. Returns their norm before clipping."""
        self._check_idle()
        norm = self._optimizer.step(learning_rate, clip=clip)
        self.weights_changed()
        return norm

    def _check_idle(self) -> None:
        """Call before weights change: a sequence under way would be of two sets of weights."""
        if self._sampler is not None:
            self._sampler.check_idle()

    def forget_gradients(self) -> None:
        self._optimizer.forget()

    @torch.no_grad()
    def logprobs(self, examples: Sequence[Example], *, temperature: float = 1.0) -> list[list[float]]:
        """For each example the logprob of each of its tokens given those before it; 0.0 for the first."""
        found: list[list[float]] = [[] for _ in examples]
        for part in self._packs(examples, share=False):
            hidden = self._backbone.train(*self._inputs(part), recompute=False)
            targets = send(part.targets, self.device)
            scored = head.score(hidden, self._decoder.head, targets, temperature=temperature, chunk=_CHUNK)
            values = scored.logprob.tolist()
            for place, (start, end) in zip(part.index, part.spans, strict=True):
                found[place] = [0.0, *values[start:end]]
        return found

    def _packs(self, examples: Sequence[Example], *, share: bool | None = None) -> list[Pack]:
        micro_tokens = self.options.micro_tokens
        share_prefix = self.options.share_prefix if share is None else share
        multiple = micro_tokens if self.device.type == "cuda" else 1
        return self._backbone.packed(examples, micro_tokens, share_prefix=share_prefix, multiple=multiple)

    def _inputs(self, part: Pack) -> tuple[Tensor, Tensor, Layout]:
        layout = layout_of(part.segment, part.prefix, self.device)
        return send(part.tokens, self.device), send(part.positions, self.device), layout

    def _forward(self, part: Pack) -> tuple[Tensor, Callable[[Tensor], object]]:
        """Hidden states, and what takes the derivative by them."""
        inputs, recompute = self._inputs(part), self.options.recompute
        if self._replays is not None and (ready := self._replays.take(*inputs, recompute=recompute)):
            return ready.forward(*inputs), ready.backward
        hidden = self._backbone.train(*inputs, recompute=recompute)
        return hidden, hidden.backward

    def _backward(self, part: Pack, loss: Loss, temperature: float) -> tuple[Tensor, Sums]:
        chosen = self._chosen(part)
        if not chosen.shape[0]:
            return torch.zeros((), device=self.device), {}
        hidden, backward = self._forward(part)
        place = send(chosen, self.device)
        weight = self._decoder.head
        weight_slope = torch.zeros_like(weight) if weight.requires_grad else None
        streams = {name: stream[chosen] for name, stream in part.streams.items()}
        if chosen.shape[0] and (extra := int((chosen == chosen[-1]).sum()) - 1):
            # The last place stands in for what is missing to a whole chunk, and counts once.
            for name, stream in streams.items():
                if name not in UNWEIGHTED:
                    stream[-extra:] = 0
        streams = {name: send(stream, self.device) for name, stream in streams.items()}
        with torch.no_grad():
            value, sums, slope, _ = head.loss_and_slope(
                hidden.detach()[place],
                weight.detach(),
                send(part.targets[chosen], self.device),
                streams,
                send(part.example[chosen], self.device),
                loss,
                temperature=temperature,
                chunk=min(_CHUNK, chosen.shape[0]),
                weight_slope=weight_slope,
            )
            whole = torch.zeros_like(hidden).index_add_(0, place, slope)
        backward(whole)
        if weight_slope is not None:
            weight.grad = weight_slope if weight.grad is None else weight.grad.add_(weight_slope)
        return value, sums

    def _chosen(self, part: Pack) -> Tensor:
        """The places that any loss asks for; on a GPU repeated up to whole chunks."""
        weighted = [stream for name, stream in part.streams.items() if name not in UNWEIGHTED]
        if not weighted:
            return torch.zeros(0, dtype=torch.long)
        chosen = torch.stack(weighted).ne(0).any(0).nonzero().squeeze(1)
        missing = -chosen.shape[0] % _CHUNK if self.device.type == "cuda" else 0
        if missing and chosen.shape[0]:
            chosen = torch.cat((chosen, chosen[-1:].expand(missing)))
        return chosen

    # -- sampling -------------------------------------------------------------------------------------

    def sampler(self, *, rows: int = 256, context: int | None = None, usual: int | None = None) -> Sampler:
        """The sampler on these weights; made once, and enlarged when asked for more. Sequences have at most
        `context` tokens, and mostly no more than `usual`."""
        if self._sampler is None or not self._sampler.holds(rows, context):
            backbone, tokenizer = self._backbone, self.loaded.tokenizer
            self._drop_replays()
            if self._sampler is not None:
                rows, context, usual = self._sampler.enlarged(rows, context, usual)
                self._sampler = None  # before the next one: the device may not hold two caches
            if isinstance(backbone, GenericBackbone):
                self._sampler = GenericSampler(backbone, tokenizer, rows=rows, context=context)
            else:
                self._sampler = Sampler(
                    backbone.decoder, backbone, tokenizer, rows=rows, context=context, usual=usual
                )
        return self._sampler

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """What is trained, in fp32. Who changes it calls `weights_written`."""
        return self._optimizer.masters

    def weights_written(self) -> None:
        """After `weights` were written to: the model computes with them from now on."""
        self._check_idle()
        self._optimizer.spread()
        self.weights_changed()

    def weights_changed(self) -> None:
        """After the weights were changed from outside: the sampler has the adapters in a form of its own."""
        if self._sampler is not None:
            self._sampler.weights_changed()

    def drop_sampler(self) -> None:
        """Give back the memory of its cache; the next one may be of another size."""
        self._sampler = None
        self._drop_replays()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _drop_replays(self) -> None:
        """Their memory is theirs alone, and a sampler may need it."""
        if self._replays is not None:
            self._replays.drop()

    def sample(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[Completion]:
        """One completion for each prompt, in their order; the seed is counted up."""
        longest = max((len(prompt) for prompt in prompts), default=0)
        sampler = self.sampler(rows=min(256, max(1, len(prompts))), context=longest + params.max_tokens)
        for key, prompt in enumerate(prompts):
            sampler.submit(SamplingRequest(key, list(prompt), replace(params, seed=params.seed + key)))
        done: dict[int, Completion] = {}
        while sampler.pending:
            done |= {completion.key: completion for completion in sampler.step()}
        return [done[key] for key in range(len(prompts))]

    # -- the model before training --------------------------------------------------------------------

    @contextmanager
    def without_adapter(self) -> Iterator[None]:
        """Inside, the adapter adds nothing: with B at 0 the product of its two matrices is 0. A KL term and a
        comparison need the model as it was, and this spares a second copy of it."""
        outer = [p for name, p in self._trained.items() if ".lora_B." in name]
        kept = [p.detach().clone() for p in outer]
        with torch.no_grad():
            for p in outer:
                p.zero_()
        self.weights_changed()
        try:
            yield
        finally:
            with torch.no_grad():
                for p, value in zip(outer, kept, strict=True):
                    p.copy_(value)
            self.weights_changed()

    # -- what is kept ---------------------------------------------------------------------------------

    def save_adapter(self, folder: Path) -> None:
        """What stock peft (or, without an adapter, transformers) loads."""
        adapters.save(self.loaded.model, folder)

    def save(self, folder: Path) -> None:
        """Weights and optimiser; sampling and data order need no state of their own."""
        folder.mkdir(parents=True, exist_ok=True)
        self.save_adapter(folder / "adapter")
        self._optimizer.save(folder / _OPTIMIZER)

    def load_state(self, folder: Path) -> None:
        self._check_idle()
        adapters.load_into(self.loaded.model, folder / "adapter")
        self._optimizer.load(folder / _OPTIMIZER)
        self.weights_changed()


def gradients(engine: Engine) -> Mapping[str, Tensor]:
    """The present gradients by parameter; for tests."""
    return {name: p.grad for name, p in engine._trained.items() if p.grad is not None}

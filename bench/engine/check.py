"""That the GPU's paths compute what plain transformers does, before any of them is timed."""

from __future__ import annotations

import copy

import torch
from transformers import PreTrainedModel

from bench.engine import shapes
from bench.engine.ours import engine
from corral.engine.data.sequences import Example, SamplingParams
from corral.engine.engine import Options, gradients
from corral.engine.model.kernels import PAGE, attend_pages
from corral.engine.sampling.decode import attend_plainly
from corral.engine.training import losses


def _far(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours.double() - theirs.double()).norm() / theirs.double().norm())


def kernel() -> dict[str, float]:
    """The decode kernel against plain torch in fp64."""
    found = {}
    draw = torch.Generator("cuda").manual_seed(1)
    for rows, heads, kv_heads, size in ((3, 16, 8, 128), (256, 16, 8, 128), (40, 32, 8, 128), (5, 9, 3, 64)):
        most = 12
        lengths = torch.randint(1, most * PAGE, (rows,), generator=draw, device="cuda", dtype=torch.int32)
        table = torch.randperm(rows * most, generator=draw, device="cuda").view(rows, most).int()
        keys, values = (
            torch.randn(rows * most, kv_heads, PAGE, size, generator=draw, device="cuda").bfloat16()
            for _ in range(2)
        )
        q = torch.randn(rows, heads, size, generator=draw, device="cuda").bfloat16()
        ours = attend_pages(q, keys, values, table, lengths, size**-0.5)
        theirs = attend_plainly(q.double(), keys.double(), values.double(), table, lengths, size**-0.5)
        found[f"kernel {rows}x{heads}/{kv_heads}x{size}"] = _far(ours, theirs)
    return found


def gradients_agree() -> dict[str, float]:
    """Packed, with shared prefixes and recomputation, against one sequence at a time in fp32."""
    made = shapes.model("qwen3-0.6b", layers=3)
    side = engine(made, Options(micro_tokens=2048))
    with torch.no_grad():
        for name, p in made.named_parameters():
            if ".lora_B." in name:
                p.normal_(0, 0.02)
    exact = copy.deepcopy(made).float()
    examples = _examples()
    theirs_loss, theirs = _plain(exact, examples)
    found = {}
    for label, options in {
        "packed": Options(micro_tokens=2048, share_prefix=False),
        "shared prefix": Options(micro_tokens=2048),
        "recomputed": Options(micro_tokens=2048, recompute=True),
    }.items():
        side.options = options
        step = side.forward_backward(examples, losses.cross_entropy())
        ours = gradients(side)
        found[f"{label}: loss"] = abs(step.read()["loss"] - theirs_loss) / abs(theirs_loss)
        found[f"{label}: gradients, worst"] = max(_far(ours[name], theirs[name]) for name in ours)
        side.forget_gradients()
    # By now passes are replayed. Another pack first, so that it shows if this one is not what they read.
    side.options = Options(micro_tokens=2048)
    for _ in range(3):
        side.forward_backward(examples[::-1][:5], losses.cross_entropy())
    side.forget_gradients()
    step = side.forward_backward(examples, losses.cross_entropy())
    ours = gradients(side)
    found["replayed: loss"] = abs(step.read()["loss"] - theirs_loss) / abs(theirs_loss)
    found["replayed: gradients, worst"] = max(_far(ours[name], theirs[name]) for name in ours)
    side.forget_gradients()
    half_loss, half = _plain(made, examples)
    found["bf16 transformers: loss"] = abs(half_loss - theirs_loss) / abs(theirs_loss)
    found["bf16 transformers: gradients, worst"] = max(_far(half[name], theirs[name]) for name in half)
    return found


def _examples() -> list[Example]:
    texts = shapes.texts(shapes.lengths(12, seed=4))
    prompt = texts[0][:150]
    alone = [Example(t, {"ce": [0.0] + [1e-3] * (len(t) - 1)}) for t in texts[1:6]]
    group = [
        Example(prompt + t[:200], {"ce": [0.0] * 150 + [1e-3] * len(t[:200])}, group=1, prefix=len(prompt))
        for t in texts[6:]
    ]
    return alone + group


def _plain(model: PreTrainedModel, examples: list[Example]) -> tuple[float, dict[str, torch.Tensor]]:
    total = 0.0
    model.zero_grad()
    for example in examples:
        tokens = torch.tensor([list(example.tokens)], device="cuda")
        logprobs = model(tokens).logits[0, :-1].float().log_softmax(-1)
        picked = logprobs.gather(1, tokens[0, 1:, None]).squeeze(1)
        loss = -(picked * torch.tensor(example.streams["ce"][1:], device="cuda")).sum()
        loss.backward()
        total += loss.item()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return total, found


def sampling_agrees() -> dict[str, float]:
    """Greedy tokens against generate(), and the sampler's logprobs against the trainer's."""
    made = shapes.model("qwen3-0.6b", layers=4, dtype=torch.float32)
    side = engine(made, Options(micro_tokens=4096))
    prompts = [text[:300] for text in shapes.texts(shapes.lengths(9, seed=7))]
    prompts += [prompts[0]] * 3
    done = side.sample(prompts, SamplingParams(max_tokens=64, temperature=0.0))
    same = 0
    for prompt, completion in zip(prompts, done, strict=True):
        theirs = made.generate(
            torch.tensor([prompt], device="cuda"), max_new_tokens=64, do_sample=False, eos_token_id=None
        )[0, len(prompt) :].tolist()
        same += sum(a == b for a, b in zip(theirs, completion.tokens, strict=True))
    found = {"greedy tokens that differ from generate()": 1 - same / (64 * len(prompts))}
    made = shapes.model("qwen3-0.6b")
    side = engine(made, Options(micro_tokens=4096))
    done = side.sample(prompts, SamplingParams(max_tokens=64, seed=3))
    whole = [Example([*p, *c.tokens], {}) for p, c in zip(prompts, done, strict=True)]
    gaps = [
        abs(a - b)
        for theirs, c in zip(side.logprobs(whole), done, strict=True)
        for a, b in zip(theirs[-len(c.tokens) :], c.logprobs, strict=True)
    ]
    found["mean gap of sampler and trainer, nats"] = sum(gaps) / len(gaps)
    found["largest"] = max(gaps)
    return found

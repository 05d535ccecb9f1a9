"""TRL 1.16 as the oracle: its real trainers on a random Qwen3 of about a hundred thousand parameters, in fp32
on the CPU, and the same batch done our way: each sequence alone, packed, or packed with shared prompts."""

from __future__ import annotations

import copy
import math
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, cast

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from corral.engine.data.packing import Pack
from corral.engine.data.sequences import Example
from corral.engine.training import advantages
from corral.engine.training.losses import Loss

WORDS, END, PAD = 96, 1, 2
MAX_COMPLETION = 24
TOLERANCE = 3e-6  # of gradients up to 0.6; the issue asks for 1e-5, measured is 6e-7
FAMILY = ("grpo", "dapo", "dr_grpo", "bnpo", "cispo", "gspo")
# Their constructors have no types.
QWEN3: Any = Qwen3ForCausalLM
TOKENIZER: Any = PreTrainedTokenizerFast

FOLDER = tempfile.TemporaryDirectory()

Graded = tuple[Tensor, dict[str, Tensor]]  # a loss and its gradients by parameter


def trl_and_datasets() -> tuple[Any, Any]:
    """Loaded by the tests that need them: every process collects this file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("trl"), pytest.importorskip("datasets")


@cache
def model() -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=WORDS,
        hidden_size=48,
        intermediate_size=176,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=False,
        # Wide enough that the predictions differ from each other, as those of a trained model do.
        initializer_range=0.1,
        eos_token_id=END,
        pad_token_id=PAD,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        # TRL loads the reference again from where the model came from.
        QWEN3(config).save_pretrained(FOLDER.name)
    loaded = QWEN3.from_pretrained(FOLDER.name, dtype=torch.float32)
    return cast(Qwen3ForCausalLM, loaded.train())


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(WORDS)}, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()
    names = {"eos_token": f"w{END}", "pad_token": f"w{PAD}", "unk_token": "w0"}
    return cast(PreTrainedTokenizerFast, TOKENIZER(tokenizer_object=words, **names))


def made(*, tools: bool = False, seed: int = 0) -> dict[str, Tensor]:
    """Eight completions of two prompts in TRL's layout; `sampled` is ours alone."""
    rng = torch.Generator().manual_seed(seed)
    prompts, lengths = (7, 4), (5, 12, 1, MAX_COMPLETION, 9, 3, 17, 8)
    rows, width = len(lengths), max(lengths)
    prompt_ids = torch.full((rows, max(prompts)), PAD)
    prompt_mask = torch.zeros_like(prompt_ids)
    for row in range(rows):
        size = prompts[row // 4]
        words = torch.randint(3, WORDS, (size,), generator=torch.Generator().manual_seed(row // 4))
        prompt_ids[row, -size:], prompt_mask[row, -size:] = words, 1
    kept = (torch.arange(width) < torch.tensor(lengths).unsqueeze(1)).long()
    words = torch.randint(3, WORDS, (rows, width), generator=rng)
    batch = {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": words.masked_fill(kept == 0, PAD),
        "completion_mask": kept,
        "advantages": torch.randn(rows, generator=rng),
    }
    if tools:
        batch["tool_mask"] = 1 - ((torch.arange(width) % 5) == 3).long().expand(rows, width)
    now = torch.zeros(rows, width)
    with torch.no_grad():
        for row, (tokens, start) in enumerate(sequences(batch)):
            now[row, : len(tokens) - start] = alone(tokens)[0][start - 1 :]
    # Ratios from about 0.4 to 2.5, so that every bound is met on both sides.
    for name, off in (
        ("old_per_token_logps", 0.3),
        ("ref_per_token_logps", 0.3),
        ("sampled", 0.5),
    ):
        batch[name] = now + off * torch.randn(now.shape, generator=rng)
    return batch | {"num_items_in_batch": trained(batch).sum()}


def trained(batch: Mapping[str, Tensor]) -> Tensor:
    mask = batch["completion_mask"]
    return mask * batch["tool_mask"] if "tool_mask" in batch else mask


def sequences(batch: Mapping[str, Tensor]) -> list[tuple[Tensor, int]]:
    """Each row without its padding, and where its completion begins."""
    columns = (batch[name] for name in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask"))
    return [
        (torch.cat((prompt[given.bool()], completion[kept.bool()])), int(given.sum()))
        for prompt, given, completion, kept in zip(*columns, strict=True)
    ]


def examples_of(batch: Mapping[str, Tensor], kind: str) -> list[Example]:
    """Our examples of TRL's batch, with the weights that our side gives this loss type."""
    mask = trained(batch)
    lengths = mask.sum(1).tolist()
    each = advantages.weights(lengths, kind, max_completion=MAX_COMPLETION)
    columns = {
        "old": batch["old_per_token_logps"],
        "ref": batch["ref_per_token_logps"],
        "sampled": batch["sampled"],
        "advantage": batch["advantages"].unsqueeze(1).expand_as(mask),
    }
    examples = []
    for row, (tokens, start) in enumerate(sequences(batch)):
        size = len(tokens) - start
        on = mask[row, :size].tolist()
        streams = {name: [0.0] * start + values[row, :size].tolist() for name, values in columns.items()}
        streams["policy"] = streams["kl"] = [0.0] * start + [each[row] * m for m in on]
        streams["entropy"] = [0.0] * start + [m / sum(lengths) for m in on]
        examples.append(Example(tokens.tolist(), streams, group=row // 4, prefix=start))
    return examples


# Their side


def called(kind: str) -> dict[str, Any]:
    """What TRL calls a loss: GSPO is GRPO with a ratio for the sequence."""
    if kind == "gspo":
        return {"loss_type": "grpo", "importance_sampling_level": "sequence"}
    return {"loss_type": kind}


def grpo_trainer(**config: Any) -> Any:
    settings = {
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": MAX_COMPLETION,
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "output_dir": FOLDER.name,
    }
    trl, datasets = trl_and_datasets()
    trainer = trl.GRPOTrainer(
        model=copy.deepcopy(model()),  # TRL puts a forward of its own on it
        args=trl.GRPOConfig(**(settings | config)),
        reward_funcs=lambda points, **_: list(points),
        train_dataset=datasets.Dataset.from_list([{"prompt": "w5 w6"}] * 8),
        processing_class=tokenizer(),
    )
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def theirs(batch: Mapping[str, Tensor], **config: Any) -> Graded:
    trainer = grpo_trainer(**config)
    return graded(trainer.model, trainer._compute_loss(trainer.model, dict(batch)))


def graded(model: Any, loss: Tensor) -> Graded:
    model.zero_grad()
    torch.autograd.backward(loss)
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    assert len(found) == len(list(model.parameters()))
    return loss.detach(), found


# Our side


def alone(tokens: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Logprob and entropy of each prediction of one sequence, from plain logits."""
    return read(model()(input_ids=tokens.unsqueeze(0)).logits[0, :-1] / temperature, tokens[1:])


def read(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    logs = torch.log_softmax(logits.float(), dim=-1)
    return logs.gather(1, targets.unsqueeze(1)).squeeze(1), -(logs.exp() * logs).sum(-1)


def separate(examples: Sequence[Example], loss: Loss, temperature: float = 1.0) -> Graded:
    """Our loss with each example passed through the model alone, without padding."""
    scores = [alone(torch.tensor(example.tokens), temperature) for example in examples]
    streams = {
        name: torch.cat([torch.tensor(example.streams[name][1:]) for example in examples])
        for name in examples[0].streams
    }
    place = torch.cat([torch.full((len(e.tokens) - 1,), i) for i, e in enumerate(examples)])
    logprob, entropy = (torch.cat(column) for column in zip(*scores, strict=True))
    return graded(model(), loss(logprob, entropy, streams, place)[0])


def packed(packs: Sequence[Pack], loss: Loss) -> Graded:
    """Our loss over packs, with the attention rule as a dense mask."""
    total = torch.zeros(())
    for part in packs:
        sees = part.segment.unsqueeze(1) == part.segment
        sees |= part.prefix.unsqueeze(1) == part.segment
        sees &= torch.ones_like(sees).tril()
        mask = torch.zeros(sees.shape).masked_fill(~sees, -math.inf)[None, None]
        tokens, positions = part.tokens.unsqueeze(0), part.positions.unsqueeze(0)
        logits = model()(input_ids=tokens, position_ids=positions, attention_mask=mask).logits[0]
        logprob, entropy = read(logits, part.targets)
        total = total + loss(logprob, entropy, part.streams, part.example)[0]
    return graded(model(), total)


def assert_same(ours: Graded, theirs: Graded) -> None:
    torch.testing.assert_close(ours[0], theirs[0], rtol=0, atol=TOLERANCE)
    assert ours[1].keys() == theirs[1].keys()
    # Gradients of nothing would agree too.
    assert max(float(slope.abs().max()) for slope in theirs[1].values()) > 1e-2
    apart = {name: float((ours[1][name] - slope).abs().max()) for name, slope in theirs[1].items()}
    assert max(apart.values()) <= TOLERANCE, apart

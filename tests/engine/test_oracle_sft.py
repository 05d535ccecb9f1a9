"""Our cross-entropy, and the gradients of every parameter, equal those of TRL's SFT trainer."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from trl_oracle import (
    FOLDER,
    WORDS,
    Graded,
    assert_same,
    graded,
    model,
    packed,
    separate,
    tokenizer,
    trl_and_datasets,
)

from corral.engine.data.packing import pack
from corral.engine.training import advantages, losses

pytestmark = pytest.mark.filterwarnings("ignore")  # TRL's and its libraries'

Row = tuple[list[int], list[float]]


def rows() -> list[Row]:
    """Sequences of different lengths, trained on their second halves."""
    rng = torch.Generator().manual_seed(1)
    made = []
    for size in (5, 23, 11, 2, 17):
        tokens = torch.randint(3, WORDS, (size,), generator=rng).tolist()
        made.append((tokens, [0.0] * (size // 2) + [1.0] * (size - size // 2)))
    return made


def theirs(rows: Sequence[Row]) -> Graded:
    """With the collator that the trainer uses."""
    trl, datasets = trl_and_datasets()
    trainer = trl.SFTTrainer(
        model=copy.deepcopy(model()),
        args=trl.SFTConfig(
            output_dir=FOLDER.name, report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False
        ),
        train_dataset=datasets.Dataset.from_list([{"text": "w5 w6 w7"}]),
        processing_class=tokenizer(),
    )
    batch = trainer.data_collator(
        [
            {
                "input_ids": tokens,
                "labels": [token if on else -100 for token, on in zip(tokens, mask, strict=True)],
            }
            for tokens, mask in rows
        ]
    )
    return graded(trainer.model, trainer.compute_loss(trainer.model, dict(batch)))


def test_loss_and_gradients_equal_trls() -> None:
    """EN-C02, MT-D36: the prompt has no loss."""
    assert_same(separate(advantages.supervised(rows()), losses.cross_entropy()), theirs(rows()))


def test_loss_on_every_token_equals_trls() -> None:
    every = [(tokens, [1.0] * len(tokens)) for tokens, _ in rows()]
    assert_same(separate(advantages.supervised(every), losses.cross_entropy()), theirs(every))


def test_packed_equals_trls_padded_batch() -> None:
    packs = pack(advantages.supervised(rows()), 30, share_prefix=False, multiple=4)
    assert len(packs) > 1
    assert_same(packed(packs, losses.cross_entropy()), theirs(rows()))


def test_a_samples_weight_scales_its_part_of_trls_loss() -> None:
    """EN-D21: TRL has no weights, so its losses of each sample alone are weighed outside of it."""
    weights = (0.5, 2.0, 0.0, 1.0, 0.25)
    weighted = [(tokens, [w * m for m in mask]) for w, (tokens, mask) in zip(weights, rows(), strict=True)]
    total = sum(sum(mask) for _, mask in weighted)
    shares = [sum(mask) / total for _, mask in weighted]
    parts = [theirs([row]) for row in rows()]
    oracle = (
        torch.stack([share * loss for share, (loss, _) in zip(shares, parts, strict=True)]).sum(),
        {
            name: torch.stack([share * g[name] for share, (_, g) in zip(shares, parts, strict=True)]).sum(0)
            for name in parts[0][1]
        },
    )
    assert_same(separate(advantages.supervised(weighted), losses.cross_entropy()), oracle)

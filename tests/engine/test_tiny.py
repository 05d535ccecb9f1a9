"""`corral/tiny` and its tokenizer: the same everywhere, and quick to teach."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer

from corral.engine.model import adapters, bytes_tokenizer, seeded_random, tiny
from corral.engine.model import load as models
from corral.recipes import models as listed
from corral.recipes.train_tables import Lora

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Answer."},
    {"role": "user", "content": "1+2="},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}],
    },
    {"role": "tool", "content": "3"},
    {"role": "assistant", "content": "3"},
    {"role": "user", "content": "And é?\n"},
    {"role": "assistant", "content": "A letter."},
]


def test_its_weights_are_the_same_bits_on_every_machine() -> None:
    """A change of this digest is a change of every user's results with it."""
    expected = "a81a30c869bbc097d08a53693fa0b006dc69bdc25421185287a2599740490d66"
    assert models.load(tiny.NAME).digest == expected


def test_random_numbers_are_the_same_bits_on_every_machine() -> None:
    even = [[0.1328582763671875, -0.5676422119140625], [0.4882659912109375, 0.6829376220703125]]
    assert seeded_random.uniform("a", 1, (2, 2), 1.0).tolist() == even
    assert seeded_random.normal("a", 1, (2,), 1.0).tolist() == [0.6377581357955933, -2.6192986965179443]


def test_random_numbers_are_spread_as_asked() -> None:
    even, normal = (
        seeded_random.uniform("x", 0, (500, 500), 0.5),
        seeded_random.normal("x", 0, (500, 500), 2.0),
    )

    assert even.abs().max() < 0.5
    assert even.std().item() == pytest.approx(0.5 / 3**0.5, rel=0.01)
    assert normal.std().item() == pytest.approx(2.0, rel=0.01)
    assert abs(normal.mean().item()) < 0.02
    assert even.all()  # no weight begins as zero


def test_its_shape_is_the_one_that_the_catalogue_forecasts_with() -> None:
    model, _ = tiny.build()
    facts = listed.facts(tiny.NAME)
    assert facts is not None

    seen = listed.from_config(model.config.to_dict(), id=tiny.NAME)

    assert facts.params == seen.params == sum(p.numel() for p in model.parameters())
    assert 0.9e6 < facts.params < 1.2e6
    shape = ("family", "layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab", "tied")
    assert [getattr(facts, key) for key in shape] == [getattr(seen, key) for key in shape]
    assert facts.context == seen.context == tiny.CONTEXT


def test_making_it_leaves_the_generators_of_torch_alone() -> None:
    before = torch.random.get_rng_state()
    first, _ = tiny.build(1)
    torch.rand(5)
    second, _ = tiny.build(1)
    other, _ = tiny.build(2)
    torch.random.set_rng_state(before)
    expected = torch.rand(3)
    torch.random.set_rng_state(before)
    tiny.build()

    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)


def test_rounding_errors_do_not_grow_in_it() -> None:
    """Tests compare kernels on it: a model that made much of the last bit would tell nothing."""
    model, tokenizer = tiny.build()
    tokens = torch.tensor([tokenizer.encode("The sum of 3 and 4 is 7. " * 8)])
    with torch.no_grad():
        exact = model(tokens).logits
        nudge = seeded_random.normal("nudge", 0, model.model.embed_tokens.weight.shape, 1e-6)
        model.model.embed_tokens.weight.mul_(1 + nudge)
        moved = (model(tokens).logits - exact).abs()

    assert moved.mean() < 1e-5
    assert moved.max() < 1e-4


# -- the tokenizer --------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", " a  b\r\n\t", "é日本🙂", "\x00\x7f", "Ġ Ċ ÿ", "1234 don't"])
def test_a_text_is_its_bytes_and_comes_back(text: str) -> None:
    tokenizer = bytes_tokenizer.build(100)

    tokens = tokenizer.encode(text, add_special_tokens=False)

    assert tokens == list(text.encode())
    assert tokenizer.decode(tokens) == text


def test_marks_are_one_token_each() -> None:
    tokenizer = bytes_tokenizer.build(100)
    assert tokenizer.encode("".join(bytes_tokenizer.SPECIAL)) == list(range(256, 264))
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (258, 259)
    assert len(tokenizer) == bytes_tokenizer.VOCABULARY == 264


@pytest.mark.parametrize("tools", [None, TOOLS])
def test_the_beginning_of_a_talk_is_the_beginning_of_its_tokens(tools: object) -> None:
    """EN-C27, EN-D05: what was sampled need never be tokenised again."""
    tokenizer = bytes_tokenizer.build(4096)
    whole = tokenizer.apply_chat_template(TALK, tools=tools, return_dict=False)

    for count, message in list(enumerate(TALK))[1:]:
        start = tokenizer.apply_chat_template(
            TALK[:count], tools=tools, add_generation_prompt=message["role"] == "assistant", return_dict=False
        )
        assert whole[: len(start)] == start


def test_the_template_marks_what_the_assistant_wrote() -> None:
    tokenizer = bytes_tokenizer.build(4096)
    said = tokenizer.apply_chat_template(
        TALK, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )

    written = [t for t, own in zip(said["input_ids"], said["assistant_masks"], strict=True) if own]

    assert tokenizer.decode(written) == (
        '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call><|im_end|>'
        "3<|im_end|>A letter.<|im_end|>"
    )


def test_a_saved_tokenizer_is_the_same_one(tmp_path: Path) -> None:
    tokenizer = bytes_tokenizer.build(4096)
    tokenizer.save_pretrained(tmp_path)

    loaded = AutoTokenizer.from_pretrained(tmp_path)

    text = "Ünï 12  <|im_start|>x<|im_end|>\n"
    assert loaded.encode(text) == tokenizer.encode(text)
    assert loaded.decode(loaded.encode(text)) == text
    assert loaded.chat_template == tokenizer.chat_template
    assert loaded.eos_token_id == tokenizer.eos_token_id


# -- what it learns -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lora", "rate"), [(Lora(rank=16), 2e-3), (None, 1e-3)], ids=["lora", "full"])
def test_it_learns_sums_of_two_digits_in_seconds(lora: Lora | None, rate: float) -> None:
    """About three seconds of one core, over all hundred sums."""
    model, tokenizer = tiny.build()
    adapters.attach(model, lora)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=rate, betas=(0.9, 0.99), weight_decay=0.0)
    tokens, targets = sums(tokenizer)
    draw = random.Random(0)
    for step in range(40):
        optimizer.param_groups[0]["lr"] = rate * min(1, (step + 1) / 5) * (1 - step / 40)
        rows = draw.sample(range(100), 32)
        logits = model(tokens[rows]).logits[:, :-1]
        loss = cross_entropy(logits.flatten(0, 1), targets[rows][:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    with torch.no_grad():
        guesses = model(tokens).logits[:, :-1].argmax(-1)
    right = (guesses == targets[:, 1:]) | (targets[:, 1:] == -100)
    assert right.all(1).float().mean() >= 0.95


def sums(tokenizer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, targets = [], []
    for a in range(10):
        for b in range(10):
            asked = [{"role": "user", "content": f"{a}+{b}="}]
            prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
            answer = [*str(a + b).encode(), 258]
            filler = 3 - len(answer)
            tokens.append(prompt + answer + [259] * filler)
            targets.append([-100] * len(prompt) + answer + [-100] * filler)
    return torch.tensor(tokens), torch.tensor(targets)


def test_untaught_it_writes_numbers_and_short_answers_but_not_the_right_ones() -> None:
    """So that a reward finds something to begin with, and finds nearly nothing."""
    model, tokenizer = tiny.build()
    tokens, _ = sums(tokenizer)
    with torch.no_grad():
        chances = model(tokens[:, :-3]).logits[:, -1].softmax(-1)

    assert 0.2 < chances[:, ord("0") : ord("9") + 1].sum(1).mean() < 0.5
    assert 0.1 < chances[:, 258].mean() < 0.5
    right = [ord(str(a + b)) for a in range(5) for b in range(5)]
    first = chances[[10 * a + b for a in range(5) for b in range(5)], right]
    assert first.mean() < 0.06

"""The set that is trained on: what is left out is counted and named, and nothing depends on a restart."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import tokenizers_for_tests as made
from transformers import PreTrainedTokenizerFast

from corral.engine.data.packing import pack
from corral.engine.data.rows import BadRows, RowSet, read
from corral.engine.data.sequences import Example
from corral.engine.data.sft_dataset import SftDataset, build_dataset, split
from corral.engine.errors import DataError
from corral.recipes.train import parse
from corral.recipes.train_tables import Train

Load = Callable[..., RowSet]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load(*rows: object) -> RowSet:
        path = tmp_path / "data.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return read(path, recipe="sft")

    return load


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return made.byte_pairs()


TRAIN: Train = parse("corral/tiny", {"recipe": "sft", "data": "data.jsonl", "max_length": 64})


def chat(*turns: tuple[str, str]) -> dict[str, object]:
    return {
        "messages": [
            message
            for asked, said in turns
            for message in ({"role": "user", "content": asked}, {"role": "assistant", "content": said})
        ]
    }


SHORT = chat(("What is two plus two?", "It is four."))
LONG = chat(("What is two plus two?", "It is four. " * 30))
LONG_PROMPT = chat(("What is two plus two? " * 30, "It is four."))


def plain(made: SftDataset) -> list[tuple[list[int], list[float]]]:
    return [(list(sample.tokens), list(sample.weights)) for sample in made]


def test_each_row_is_its_tokens_and_weights(load: Load, tokenizer: PreTrainedTokenizerFast) -> None:
    """MT-D36: prompt tokens have weight 0."""
    made = build_dataset(load(SHORT, chat(("Hi", "Hello"))), tokenizer, TRAIN)
    assert len(made) == 2
    tokens, weights = made[0]
    assert tokenizer.decode([t for t, w in zip(tokens, weights, strict=True) if w]) == "It is four.<|im_end|>"
    assert list(made.lengths) == [len(sample.tokens) for sample in made]
    assert made.facts.rows == 2
    assert made.facts.tokens == sum(made.lengths)
    assert made.facts.longest == max(made.lengths)
    assert made.facts.trained == sum(bool(weight) for sample in made for weight in sample.weights)
    assert list(made[-1].tokens) == list(made[1].tokens)
    with pytest.raises(IndexError):
        made[2]


def test_rows_that_are_too_long_are_refused_by_line(load: Load, tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(BadRows) as caught:
        build_dataset(load(SHORT, LONG, SHORT, LONG_PROMPT), tokenizer, TRAIN)
    assert caught.value.total == 2
    assert [problem.where.line for problem in caught.value.problems] == [2, 4]
    assert "tokens; max_length is 64" in caught.value.problems[0].message
    assert "max_length" in caught.value.hint
    assert "bad_rows" not in caught.value.hint


def test_rows_that_are_too_long_are_skipped_and_counted(
    load: Load, tokenizer: PreTrainedTokenizerFast
) -> None:
    made = build_dataset(load(SHORT, LONG, SHORT), tokenizer, replace(TRAIN, too_long="skip"))
    assert [made.row(i) for i in range(len(made))] == [0, 2]
    assert (made.counts.rows, made.counts.too_long, made.counts.cut) == (3, 1, 0)
    assert made.counts.problems.kinds[0].where.line == 2


def test_rows_that_are_too_long_are_cut_and_counted(load: Load, tokenizer: PreTrainedTokenizerFast) -> None:
    rows = load(LONG, SHORT, LONG_PROMPT)
    made = build_dataset(rows, tokenizer, replace(TRAIN, too_long="cut"))
    whole = build_dataset(rows, tokenizer, replace(TRAIN, max_length=2048))
    assert len(made[0].tokens) == 64
    assert list(made[0].tokens) == list(whole[0].tokens[:64])
    assert (made.counts.cut, made.counts.too_long) == (1, 1)
    assert "what is trained begins after that" in made.counts.problems.kinds[0].message


def test_a_row_without_a_certain_mask_is_refused_or_skipped_by_line(load: Load) -> None:
    """EN-D05."""
    tokenizer = made.byte_pairs(made.QWEN3)
    thoughts: dict[str, object] = chat(("a", "b"))
    thoughts["messages"][1]["reasoning_content"] = "hm"  # type: ignore[index]
    rows = load(SHORT, thoughts)
    with pytest.raises(BadRows, match=r"data\.jsonl:2: messages\[1\]: the chat template asks") as caught:
        build_dataset(rows, tokenizer, TRAIN)
    assert "bad_rows" in caught.value.hint
    skipping = build_dataset(rows, tokenizer, replace(TRAIN, bad_rows="skip"))
    assert len(skipping) == 1
    assert skipping.counts.refused == 1


def test_a_conversation_that_becomes_several_samples_is_counted(load: Load) -> None:
    """EN-D05: on a break a new sample starts and is counted."""
    tokenizer = made.byte_pairs(made.QWEN3)
    set_ = build_dataset(load(chat(("a", "b"), ("c", "d")), SHORT), tokenizer, TRAIN)
    assert [set_.row(i) for i in range(3)] == [0, 0, 1]
    assert set_.counts.split == 1
    again = build_dataset(load(chat(("a", "b"), ("c", "d")), SHORT), tokenizer, TRAIN, kept_bytes=0)
    assert plain(set_) == plain(again)


def test_what_is_not_kept_in_memory_is_rendered_to_the_same_bits(
    load: Load, tokenizer: PreTrainedTokenizerFast
) -> None:
    rows = load(SHORT, LONG, {**SHORT, "weight": 0.1})
    cut = replace(TRAIN, too_long="cut")
    kept = build_dataset(rows, tokenizer, cut)
    for room in (0, 300):
        assert plain(build_dataset(rows, tokenizer, cut, kept_bytes=room)) == plain(kept)


def test_if_nothing_is_left_it_is_an_error_whatever_the_policy(
    load: Load, tokenizer: PreTrainedTokenizerFast
) -> None:
    with pytest.raises(BadRows, match="2 of 2 rows"):
        build_dataset(load(LONG, LONG_PROMPT), tokenizer, replace(TRAIN, too_long="skip"))


def test_settings_reach_the_tokens(load: Load, tokenizer: PreTrainedTokenizerFast) -> None:
    rows = load(SHORT)
    everything = build_dataset(rows, tokenizer, replace(TRAIN, loss_on="all"))[0]
    assert all(everything.weights[1:])
    with_system = build_dataset(rows, tokenizer, replace(TRAIN, system="Be brief."))[0]
    assert "Be brief." in str(tokenizer.decode(list(with_system.tokens)))


def test_a_system_message_for_rows_that_cannot_have_one_is_refused(
    load: Load, tokenizer: PreTrainedTokenizerFast
) -> None:
    """EN-D02: a setting is honoured or refused."""
    with pytest.raises(DataError, match="`system` is set, but the rows are text"):
        build_dataset(load({"text": "a b"}), tokenizer, replace(TRAIN, system="Be brief."))


def test_weights_per_sample_and_per_token_reach_the_pack(
    load: Load, tokenizer: PreTrainedTokenizerFast
) -> None:
    """EN-D21: weights per sample and per token."""
    rows = load(
        {"tokens": [5, 6, 7, 8], "weights": [0, 1, 0.5, 0]},
        {"tokens": [5, 6], "weights": [0, 1], "weight": 3},
    )
    made = build_dataset(rows, tokenizer, TRAIN)
    [one] = pack([Example(s.tokens, {"ce": s.weights}) for s in made], 16, share_prefix=False)
    assert one.streams["ce"].tolist() == [1.0, 0.5, 0.0, 0.0, 3.0, 0.0]
    assert one.targets.tolist() == [6, 7, 8, 0, 6, 0]


# Held-out rows


def lines(rows: RowSet) -> list[int]:
    return [rows.where(i).line for i in range(len(rows))]


def test_a_held_out_part_is_the_same_every_time_and_apart_from_the_rest(load: Load) -> None:
    rows = load(*({"text": f"row {i}"} for i in range(100)))
    train, held_out = split(rows, 0.1)
    assert held_out is not None
    assert (len(train), len(held_out)) == (90, 10)
    assert sorted(lines(train) + lines(held_out)) == list(range(1, 101))
    again = split(load(*({"text": f"row {i}"} for i in range(100))), 0.1)[1]
    assert again is not None
    assert lines(again) == lines(held_out)


def test_copies_of_a_row_are_never_on_both_sides(load: Load) -> None:
    rows = load(*({"text": f"row {i % 7}"} for i in range(70)))
    for fraction in (0.05, 0.1, 0.3, 0.5):
        train, held_out = split(rows, fraction)
        assert held_out is not None
        assert {train.key(i) for i in range(len(train))}.isdisjoint(
            held_out.key(i) for i in range(len(held_out))
        )


def test_adding_rows_moves_few_of_those_held_out(load: Load) -> None:
    before = split(load(*({"text": f"row {i}"} for i in range(100))), 0.1)[1]
    after = split(load(*({"text": f"row {i}"} for i in range(110))), 0.1)[1]
    assert before is not None
    assert after is not None
    assert len(set(lines(before)) & set(lines(after))) >= 7


@pytest.mark.parametrize("rows", [[{"text": "a"}], [{"text": "a"}] * 5])
def test_nothing_is_held_out_of_one_row_and_that_is_said(load: Load, rows: list[object]) -> None:
    train, held_out = split(load(*rows), 0.2)
    assert held_out is None
    assert len(train) == len(rows)
    assert any("nothing is held out" in note for note in train.notes)


def test_no_fraction_holds_nothing_out(load: Load) -> None:
    rows = load({"text": "a"}, {"text": "b"})
    assert split(rows, 0.0) == (rows, None)
    train, held_out = split(rows, 0.01)
    assert held_out is not None
    assert (len(train), len(held_out)) == (1, 1)

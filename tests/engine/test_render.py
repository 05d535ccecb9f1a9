"""Rows become exactly the tokens that serving sees, and only the answers are trained."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers_for_tests as made
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerFast

from corral.engine.data.chat import NoChatTemplate, RefusedRow, RenderedSequence, Renderer
from corral.engine.model import bytes_tokenizer
from corral.recipes.rows.formats import ChatRow, CompletionRow, Row, RowLocation, TextRow, TokensRow

HERE = RowLocation("data.jsonl", 7)
Messages = list[dict[str, Any]]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str, **more: object) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


TWO_TURNS: Messages = [
    {"role": "system", "content": "You are helpful."},
    user("What is 2+2?"),
    answer("It is four."),
    user("And 3+3?"),
    answer("Six, of course."),
]


@pytest.fixture(scope="module")
def byte_pairs() -> PreTrainedTokenizerFast:
    return made.byte_pairs()


def render_chat(
    tokenizer: PreTrainedTokenizerFast,
    messages: Messages,
    tools: Messages | None = None,
    thinking: bool = False,
) -> RenderedSequence:
    """A conversation that is one sequence."""
    samples = Renderer(tokenizer, thinking=thinking).conversation(messages, tools)
    if len(samples) > 1:
        raise RefusedRow("the chat template rewrites earlier messages when later ones come")
    return samples[0]


def trained_texts(tokenizer: PreTrainedTokenizerFast, sample: RenderedSequence) -> list[str]:
    """The runs of trained tokens, as text."""
    runs: list[list[int]] = []
    before = 0.0
    for token, weight in zip(sample.tokens, sample.mask, strict=True):
        if weight and not before:
            runs.append([])
        if weight:
            runs[-1].append(token)
        before = weight
    return [str(tokenizer.decode(run)) for run in runs]


def check_served(
    tokenizer: PreTrainedTokenizerFast,
    messages: Messages,
    samples: Sequence[RenderedSequence],
    tools: list[Any] | None = None,
    *,
    thinking: bool = False,
) -> None:
    """Each trained message is trained once, right after the tokens that a server would send for it."""
    wanted = [i for i, m in enumerate(messages) if m["role"] == "assistant" and m.get("weight", 1)]
    starts = [
        (sample, at)
        for sample in samples
        for at in range(1, len(sample.mask))
        if sample.mask[at] and not sample.mask[at - 1]
    ]
    assert len(starts) == len(wanted)
    for (sample, at), index in zip(starts, wanted, strict=True):
        served = tokenizer.apply_chat_template(
            [{k: v for k, v in m.items() if k != "weight"} for m in messages[:index]],
            tools=tools,
            add_generation_prompt=True,
            enable_thinking=thinking,
            return_dict=False,
        )
        assert sample.tokens[:at] == served


# Conversations


@pytest.mark.parametrize("template", [made.CHATML, made.LLAMA3], ids=["chatml", "llama3"])
def test_only_the_answers_and_their_end_of_turn_are_trained(template: str) -> None:
    """MT-D36: the loss over prompt tokens is zero."""
    end = "<|eot_id|>" if template == made.LLAMA3 else "<|im_end|>"
    tokenizer = made.byte_pairs(template, end=end)
    sample = render_chat(tokenizer, TWO_TURNS)
    assert trained_texts(tokenizer, sample) == [f"It is four.{end}", f"Six, of course.{end}"]
    check_served(tokenizer, TWO_TURNS, [sample])


def test_the_mask_is_the_one_that_generation_marks_give() -> None:
    """Transformers' own assistant mask, which TRL trains on (assistant_only_loss), is the oracle."""
    for tokenizer in (made.byte_pairs(made.LLAMA3, end="<|eot_id|>"), bytes_tokenizer.build(512)):
        theirs: Any = tokenizer.apply_chat_template(
            TWO_TURNS, return_assistant_tokens_mask=True, return_dict=True, tokenize=True
        )
        ours = render_chat(tokenizer, TWO_TURNS)
        size = len(ours.tokens)
        assert ours.tokens == theirs["input_ids"][:size]
        assert ours.mask == [float(value) for value in theirs["assistant_masks"][:size]]
        assert not any(theirs["assistant_masks"][size:])


def test_message_weights_reach_their_tokens_and_a_message_of_weight_0_is_not_trained(
    byte_pairs: PreTrainedTokenizerFast,
) -> None:
    """EN-C31, EN-D21: weights per message and per sample."""
    messages = [user("a"), answer("one", weight=0), user("b"), answer("two", weight=0.25)]
    sample = render_chat(byte_pairs, messages)
    assert trained_texts(byte_pairs, sample) == ["two<|im_end|>"]
    assert {weight for weight in sample.mask if weight} == {0.25}
    [twice] = Renderer(byte_pairs).row(ChatRow(HERE, tuple(messages), weight=2.0))
    assert {weight for weight in twice.mask if weight} == {0.5}


def test_what_follows_the_last_answer_costs_no_tokens(byte_pairs: PreTrainedTokenizerFast) -> None:
    assert render_chat(byte_pairs, [*TWO_TURNS, user("Thanks!")]) == render_chat(byte_pairs, TWO_TURNS)


@pytest.mark.parametrize("thinking", [False, True])
def test_a_template_that_rewrites_old_turns_gives_a_sample_for_each(thinking: bool) -> None:
    """EN-D05: exact prefix, or a new sample."""
    tokenizer = made.byte_pairs(made.QWEN3)
    samples = Renderer(tokenizer, thinking=thinking).conversation(TWO_TURNS)
    assert len(samples) == 2
    check_served(tokenizer, TWO_TURNS, samples, thinking=thinking)
    thought = "<think>\n\n</think>\n\n" if thinking else ""
    assert [trained_texts(tokenizer, sample) for sample in samples] == [
        [f"{thought}It is four.<|im_end|>"],
        [f"{thought}Six, of course.<|im_end|>"],
    ]
    with pytest.raises(RefusedRow, match="rewrites earlier messages"):
        render_chat(tokenizer, TWO_TURNS, thinking=thinking)


def test_thoughts_are_trained_where_the_template_writes_them() -> None:
    tokenizer = made.byte_pairs(made.QWEN3)
    messages = [user("2+2?"), answer("four", reasoning_content="two and two")]
    sample = render_chat(tokenizer, messages, thinking=True)
    assert trained_texts(tokenizer, sample) == ["<think>\ntwo and two\n</think>\n\nfour<|im_end|>"]


def test_thoughts_in_a_conversation_without_thinking_are_refused() -> None:
    tokenizer = made.byte_pairs(made.QWEN3)
    with pytest.raises(RefusedRow, match=r"messages\[1\].*trained on what it never sees"):
        render_chat(tokenizer, [user("2+2?"), answer("four", reasoning_content="two and two")])


def test_a_template_that_asks_otherwise_than_it_writes_is_refused() -> None:
    """EN-D05: never a silent wrong mask."""
    with pytest.raises(RefusedRow, match=r"messages\[2\]: .* with '<think>\\n' but writes 'It is"):
        render_chat(made.byte_pairs(made.ALWAYS_THINKS), TWO_TURNS)


def test_a_template_that_raises_is_a_refusal_with_its_words() -> None:
    with pytest.raises(RefusedRow, match="roles must alternate"):
        render_chat(made.byte_pairs(made.STRICT), [user("a"), user("b"), answer("c")])


def test_a_template_without_an_end_of_turn_is_ended() -> None:
    tokenizer = made.byte_pairs(made.NO_END)
    sample = render_chat(tokenizer, [user("hi"), answer("hello")])
    assert sample.tokens[-1] == tokenizer.eos_token_id
    assert sample.mask[-1] == 1.0


def test_a_template_and_a_tokenizer_that_do_not_fit_together_are_trained_as_served() -> None:
    tokenizer = TOKENIZERS["old"]
    samples = Renderer(tokenizer).conversation(TWO_TURNS)
    assert len(samples) == 2
    check_served(tokenizer, TWO_TURNS, samples)
    assert trained_texts(tokenizer, samples[1]) == ["Six, of course.<|eot_id|>"]


def test_a_seam_inside_a_token_keeps_the_served_prompt() -> None:
    # "assistant:" is followed by " hello\n"; with a space after the colon the seam would be inside " hello".
    tokenizer = made.byte_pairs(made.NO_END.replace("'assistant:'", "'assistant: '"))
    messages = [user("hi"), answer("four")]
    sample = render_chat(tokenizer, messages)
    check_served(tokenizer, messages, [sample])
    assert trained_texts(tokenizer, sample) == ["four\n<|im_end|>"]


def test_marks_that_end_the_whole_conversation_are_not_trained() -> None:
    # As Phi-3's: after the end of the turn, a line break and an end of text that stands only at the very end.
    tokenizer = made.byte_pairs(
        """{%- for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}{% endfor -%}
        {%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ '<|endoftext|>' }}{% endif %}""",
        end="<|endoftext|>",
    )
    sample = render_chat(tokenizer, TWO_TURNS)
    assert trained_texts(tokenizer, sample) == ["It is four.<|end|>", "Six, of course.<|end|>"]
    names = tokenizer.convert_ids_to_tokens(sorted(Renderer(tokenizer).stops))
    assert names == ["<|endoftext|>", "<|end|>"]


def test_marks_that_stand_together_at_the_end_of_a_turn_are_all_trained() -> None:
    tokenizer = made.byte_pairs(made.CHATML.replace("<|im_end|>", "<|end|><|im_end|>"))
    sample = render_chat(tokenizer, [user("a"), answer("b")])
    assert trained_texts(tokenizer, sample) == ["b<|end|><|im_end|>"]


def test_a_template_that_drops_the_answer_is_refused() -> None:
    # As those of vision models, which take content in parts.
    template = made.CHATML.replace("m.content +", "'' +")
    with pytest.raises(RefusedRow, match=r"messages\[2\]: the chat template leaves its content out"):
        render_chat(made.byte_pairs(template), TWO_TURNS)


def test_a_model_without_a_template_says_what_to_do() -> None:
    with pytest.raises(NoChatTemplate, match="has no chat template") as caught:
        render_chat(made.byte_pairs(None), TWO_TURNS)
    assert "instruct model" in caught.value.hint


def test_the_date_in_a_template_does_not_change_from_day_to_day() -> None:
    tokenizer = made.byte_pairs(made.DATED)
    assert "Today: 26 Jul 2024" in str(tokenizer.decode(Renderer(tokenizer).prompt([user("hi")])))


def test_tools_and_calls_reach_the_template() -> None:
    tokenizer = bytes_tokenizer.build(512)
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    messages = [user("1+2?"), answer("", tool_calls=[call]), {"role": "tool", "content": "3"}, answer("3")]
    tools = [{"type": "function", "function": {"name": "add"}}]
    sample = render_chat(tokenizer, messages, tools)
    assert trained_texts(tokenizer, sample) == [
        '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call><|im_end|>',
        "3<|im_end|>",
    ]
    check_served(tokenizer, messages, [sample], tools)
    assert '"name": "add"' in str(tokenizer.decode(Renderer(tokenizer).prompt(messages[:1], tools)))


def test_a_system_message_is_put_before_conversations_that_have_none(
    byte_pairs: PreTrainedTokenizerFast,
) -> None:
    renderer = Renderer(byte_pairs, system="Be brief.")
    with_it = [{"role": "system", "content": "Be brief."}, user("a"), answer("b")]
    assert renderer.conversation(with_it[1:]) == renderer.conversation(with_it)
    own = [{"role": "system", "content": "Be long."}, user("a"), answer("b")]
    assert renderer.conversation(own) == Renderer(byte_pairs).conversation(own)
    row = ChatRow(HERE, (user("a"), answer("b"), user("c"), answer("d")), prompt=3)
    assert trained_texts(byte_pairs, renderer.row(row)[0]) == ["d<|im_end|>"]


def test_the_loss_may_be_on_everything(byte_pairs: PreTrainedTokenizerFast) -> None:
    """MT-D36: the user may choose otherwise; a message of weight 0 stays out."""
    [sample] = Renderer(byte_pairs, loss_on="all").conversation(TWO_TURNS)
    assert sample.mask == [0.0] + [1.0] * (len(sample.tokens) - 1)
    [sample] = Renderer(byte_pairs, loss_on="all").conversation(
        [user("a"), answer("no", weight=0), answer("b")]
    )
    left_out = [t for t, weight in zip(sample.tokens[1:], sample.mask[1:], strict=True) if not weight]
    assert byte_pairs.decode(left_out) == "no<|im_end|>"


def test_the_loss_on_everything_trains_nothing_twice_where_old_turns_are_rewritten() -> None:
    tokenizer = made.byte_pairs(made.QWEN3)
    first, second = Renderer(tokenizer, loss_on="all").conversation(TWO_TURNS)
    assert all(first.mask[1:])
    again = next(i for i, weight in enumerate(second.mask) if weight)
    assert second.tokens[:again] == first.tokens[:again]
    assert second.tokens[again] != first.tokens[again]


texts = st.text(st.sampled_from("ab c\n<|>im_endé中1"), min_size=1, max_size=12)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(texts, texts), min_size=1, max_size=4), st.sampled_from(["chatml", "llama3", "qwen3"])
)
def test_any_conversation_is_trained_as_served(turns: list[tuple[str, str]], kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    messages = [message for a, b in turns for message in (user(a), answer(b))]
    check_served(tokenizer, messages, Renderer(tokenizer).conversation(messages))


TOKENIZERS = {
    "chatml": made.byte_pairs(),
    "llama3": made.byte_pairs(made.LLAMA3, end="<|eot_id|>"),
    "qwen3": made.byte_pairs(made.QWEN3),
    # Two line breaks before a word are one token alone and two before the word.
    "old": made.byte_pairs(made.LLAMA3, end="<|eot_id|>", words=made.GPT2_WORDS),
}


def test_templates_of_real_models_are_trained_as_served_or_refused(
    byte_pairs: PreTrainedTokenizerFast,
) -> None:
    """EN-D05, for every template that TRL carries: a check runs, and no mask is wrong."""
    folder = Path(pytest.importorskip("trl").__file__).parent / "chat_templates"
    conversation = TWO_TURNS[1:]
    served = {}
    for file in sorted(folder.glob("*.jinja")):
        byte_pairs.chat_template = re.sub(r"strftime_now\([^)]*\)", "'26 Jul 2024'", file.read_text())
        for thinking in (False, True):
            try:
                samples = Renderer(byte_pairs, thinking=thinking).conversation(conversation)
            except RefusedRow as refusal:
                served[file.stem, thinking] = str(refusal)
                continue
            check_served(byte_pairs, conversation, samples, thinking=thinking)
            served[file.stem, thinking] = f"{len(samples)}"
    byte_pairs.chat_template = made.CHATML
    assert served["qwen2_5", False] == "1"
    assert served["llama3_2", False] == "1"
    assert served["qwen3", False] == "2"
    trainable = {name for name, outcome in served.items() if len(outcome) == 1}
    assert len(trainable) > 0.7 * len(served), served


# Plain text


def test_a_completion_is_trained_with_its_end_and_the_prompt_is_not() -> None:
    """MT-D36."""
    tokenizer = made.pieces()
    [sample] = Renderer(tokenizer).row(CompletionRow(HERE, "What is two plus two?", " It is four"))
    assert sample.tokens[0] == tokenizer.bos_token_id
    assert sample.tokens[-1] == tokenizer.eos_token_id
    assert trained_texts(tokenizer, sample) == ["It is four</s>"]
    served = tokenizer("What is two plus two?")["input_ids"]
    assert sample.tokens[: len(served)] == served
    assert not any(sample.mask[: len(served)])
    assert all(sample.mask[len(served) :])


def test_a_completion_that_begins_inside_a_token_continues_the_served_prompt(
    byte_pairs: PreTrainedTokenizerFast,
) -> None:
    for prompt, completion in [("the ques", "tion"), ("Answer: ", "four"), ("a\n", "\nb")]:
        [sample] = Renderer(byte_pairs).row(CompletionRow(HERE, prompt, completion))
        served = byte_pairs(prompt)["input_ids"]
        assert sample.tokens[: len(served)] == served
        assert trained_texts(byte_pairs, sample) == [completion + "<|im_end|>"]
        assert byte_pairs.decode(sample.tokens) == prompt + completion + "<|im_end|>"


def test_a_seam_that_cannot_be_kept_is_refused() -> None:
    # Alone, a word gets a space before it: "ques" and "tion" would read "ques tion".
    tokenizer = made.pieces()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    with pytest.raises(RefusedRow, match="meet inside a token"):
        Renderer(tokenizer).row(CompletionRow(HERE, "the ques", "tion"))


def test_an_empty_prompt_trains_all_but_the_first_token(byte_pairs: PreTrainedTokenizerFast) -> None:
    [sample] = Renderer(byte_pairs).row(CompletionRow(HERE, "", "It is four"))
    assert sample.mask == [0.0] + [1.0] * (len(sample.tokens) - 1)


def test_text_is_trained_whole_and_ended_once(byte_pairs: PreTrainedTokenizerFast) -> None:
    [sample] = Renderer(byte_pairs).row(TextRow(HERE, "It is four", weight=0.5))
    assert sample.mask == [0.0] + [0.5] * (len(sample.tokens) - 1)
    assert byte_pairs.decode(sample.tokens) == "It is four<|im_end|>"
    assert Renderer(byte_pairs).row(TextRow(HERE, "It is four<|im_end|>", weight=0.5)) == [sample]


def test_a_completion_may_be_trained_with_its_prompt(byte_pairs: PreTrainedTokenizerFast) -> None:
    [sample] = Renderer(byte_pairs, loss_on="all").row(CompletionRow(HERE, "a", " b"))
    assert sample.mask == [0.0] + [1.0] * (len(sample.tokens) - 1)


def test_given_tokens_keep_their_weights(byte_pairs: PreTrainedTokenizerFast) -> None:
    """EN-D21: weights per token and per sample."""
    [sample] = Renderer(byte_pairs).row(TokensRow(HERE, (5, 6, 7), (9.0, 0.5, 1.0), weight=2.0))
    assert sample == RenderedSequence([5, 6, 7], [0.0, 1.0, 2.0])
    with pytest.raises(RefusedRow, match=r"`tokens\[1\]` is 99999; the vocabulary has"):
        Renderer(byte_pairs).row(TokensRow(HERE, (5, 99999), (1.0, 1.0)))


def test_text_of_one_token_without_an_end_has_nothing_to_predict() -> None:
    tokenizer = made.byte_pairs()
    tokenizer.eos_token = None
    with pytest.raises(RefusedRow, match="no token of it is trained"):
        Renderer(tokenizer).row(TextRow(HERE, "a"))


def test_rows_rendered_together_are_the_rows_rendered_alone(byte_pairs: PreTrainedTokenizerFast) -> None:
    renderer = Renderer(byte_pairs)
    rows: list[Row] = [
        ChatRow(HERE, tuple(TWO_TURNS)),
        ChatRow(HERE, (answer("no one asked"),)),
        TextRow(HERE, "text"),
        CompletionRow(HERE, "a", "b"),
        TokensRow(HERE, (1, 2), (1.0, 1.0)),
    ]
    together = list(renderer.rows(rows))
    assert isinstance(together[1], RefusedRow)
    assert [together[i] for i in (0, 2, 3, 4)] == [renderer.row(rows[i]) for i in (0, 2, 3, 4)]

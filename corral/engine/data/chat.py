"""Makes tokens of rows, exactly those that serving makes, and proves which of them are trained.

A conversation is written by the model's chat template. What a template does to earlier messages when later
ones come is its own affair (some drop the thinking of old turns), so nothing is assumed: for each trained
message the tokens of the prompt that asks for it must be the beginning of the tokens of the conversation up
to and with it. If they are not, the row is refused. If this holds for each message but not for all of them in
one sequence, the conversation becomes several samples, each of which is what the model would have seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from corral.engine.errors import DataError
from corral.recipes.rows.formats import (
    ChatRow,
    CompletionRow,
    Row,
    RowLocation,
    TextRow,
    TokensRow,
    with_system,
)
from corral.recipes.rows.messages import Message, RowError, message_weight

# Some templates write today's date. A run that is resumed tomorrow must see the same tokens.
_TODAY = datetime(2024, 7, 26)
_NOW = re.compile(r"strftime_now\(\s*(['\"])(.*?)\1\s*\)")


class RefusedRow(RowError):
    """Why a row cannot be made into tokens whose mask is certain."""


class NoChatTemplate(DataError):
    """The tokenizer has no chat template."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the tokenizer of {name or 'this model'} has no chat template to write conversations with",
            "Take an instruct model, or give rows of `prompt` and `completion`, or `text`.",
        )


@dataclass(frozen=True, slots=True)
class RenderedSequence:
    """Tokens, and for each what its prediction counts for. The first is never predicted."""

    tokens: list[int]
    mask: list[float]


@dataclass(frozen=True, slots=True)
class _Turn:
    """A trained message: the text that asks for it, the text up to and with it, its place, and itself."""

    asked: str
    answered: str
    at: int
    message: Message


class Renderer:
    """How rows become tokens for one tokenizer. Build it once: it looks the tokenizer over.

    `loss_on` is `assistant`, or `all` to train on prompts as well. `system` is put before conversations that
    have no system message.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        thinking: bool = False,
        system: str | None = None,
        loss_on: Literal["assistant", "all"] = "assistant",
    ) -> None:
        self._tokenizer = tokenizer
        self._thinking = thinking
        self._system = system
        self._loss_on = loss_on

    def rows(self, rows: Iterable[Row]) -> Iterator[list[RenderedSequence] | RefusedRow]:
        """The samples of each row, or why it has none. All texts go through the tokenizer together."""
        work = [(row, *self._texts(row)) for row in rows]
        tokens = iter(self._encode([text for _, texts, _ in work for text in texts]))
        for row, texts, plan in work:
            encoded = [next(tokens) for _ in texts]
            try:
                yield self._samples(row, plan, encoded)
            except RefusedRow as refusal:
                yield refusal

    def row(self, row: Row) -> list[RenderedSequence]:
        """The samples of one row. RefusedRow if it has none."""
        [outcome] = self.rows([row])
        if isinstance(outcome, RefusedRow):
            raise outcome
        return outcome

    def prompt(self, messages: Sequence[Message], tools: Sequence[Message] | None = None) -> list[int]:
        """The tokens that ask for the next assistant message."""
        return self._encode([self._write(messages, tools, ask=True)])[0]

    def plain(self, text: str) -> list[int]:
        """The tokens that a text begins with when it is trained as a prompt or as plain text."""
        return [*self._begin, *self._encode([text])[0]]

    def conversation(
        self, messages: Sequence[Message], tools: Sequence[Message] | None = None
    ) -> list[RenderedSequence]:
        """The samples of a conversation that comes from no file."""
        offered = None if tools is None else tuple(tools)
        return self.row(ChatRow(RowLocation("conversation", 1), tuple(messages), offered))

    @cached_property
    def stops(self) -> frozenset[int]:
        """The tokens that end an assistant's turn: the tokenizer's end mark and what the template writes."""
        ends = set() if self._tokenizer.eos_token_id is None else {int(self._tokenizer.eos_token_id)}
        if self._tokenizer.chat_template:
            probe = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})
            # A template that cannot be trained with can still be sampled with.
            with suppress(RefusedRow):
                ends.update(sample.tokens[-1] for sample in self.conversation(probe))
        return frozenset(ends)

    def _texts(self, row: Row) -> tuple[list[str], list[_Turn] | RefusedRow]:
        match row:
            case ChatRow():
                try:
                    turns = self._turns(with_system(row, self._system))
                except RefusedRow as refusal:
                    return [], refusal
                return [text for turn in turns for text in (turn.asked, turn.answered)], turns
            case CompletionRow():
                return [row.prompt, row.completion, row.prompt + row.completion], []
            case TextRow():
                return [row.text], []
            case TokensRow():
                return [], []
            case _:
                raise TypeError(f"{type(row).__name__} is not trained as it is")

    def _samples(
        self, row: Row, plan: list[_Turn] | RefusedRow, encoded: list[list[int]]
    ) -> list[RenderedSequence]:
        if isinstance(plan, RefusedRow):
            raise plan
        match row:
            case ChatRow():
                samples = self._chat(plan, encoded)
            case CompletionRow():
                samples = [self._completion(*encoded)]
            case TextRow():
                tokens = self._ended([*self._begin, *encoded[0]])
                samples = [RenderedSequence(tokens, [1.0] * len(tokens))]
            case TokensRow():
                samples = [self._given(row)]
            case _:
                raise TypeError(f"{type(row).__name__} is not trained as it is")
        return [self._weighed(sample, row.weight) for sample in samples]

    def _weighed(self, sample: RenderedSequence, weight: float) -> RenderedSequence:
        mask = [value * weight for value in sample.mask]
        mask[0] = 0.0
        if not any(mask):
            raise RefusedRow("no token of it is trained")
        return RenderedSequence(sample.tokens, mask)

    # Conversations

    def _turns(self, row: ChatRow) -> list[_Turn]:
        trained = row.trained
        if not trained:
            raise RefusedRow("there is no assistant message to train on")
        # Where everything else is trained too, a message of weight 0 must be found to be left out.
        apart = [
            at
            for at in range(row.prompt, trained[-1])
            if self._loss_on == "all" and row.messages[at]["role"] == "assistant"
        ]
        return [
            _Turn(
                self._write(row.messages[:at], row.tools, ask=True),
                self._write(row.messages[: at + 1], row.tools, ask=False),
                at,
                row.messages[at],
            )
            for at in sorted({*trained, *apart})
        ]

    def _write(self, messages: Sequence[Message], tools: Sequence[Message] | None, *, ask: bool) -> str:
        plain: list[dict[str, Any]] = [{**message} for message in messages]
        for message in plain:
            message.pop("weight", None)
        offered: list[Any] | None = [dict(tool) for tool in tools] if tools else None
        try:
            text = self._tokenizer.apply_chat_template(
                plain,
                tools=offered,
                chat_template=self._template(offered),
                add_generation_prompt=ask,
                tokenize=False,
                enable_thinking=self._thinking,
            )
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise RefusedRow(f"the chat template refuses the conversation: {error}") from error
        return str(text)

    def _template(self, tools: list[Any] | None) -> str:
        if not self._tokenizer.chat_template:
            raise NoChatTemplate(self._tokenizer.name_or_path)
        template: str = self._tokenizer.get_chat_template(tools=tools)
        if "strftime_now" not in template:
            return template
        return _NOW.sub(lambda call: repr(_TODAY.strftime(call[2])), template)

    def _chat(self, turns: Sequence[_Turn], encoded: Sequence[list[int]]) -> list[RenderedSequence]:
        between = 1.0 if self._loss_on == "all" else 0.0
        samples: list[RenderedSequence] = []
        for turn, asked, answered in zip(turns, encoded[::2], encoded[1::2], strict=True):
            if answered[: len(asked)] != asked:
                answered = self._joined(turn, asked, answered)
            if not _holds(turn):
                raise RefusedRow(f"messages[{turn.at}]: the chat template leaves its content out")
            end = self._end_of_turn(answered, len(asked))
            mask: list[float] = []
            if samples:
                last = samples[-1]
                same = _common(last.tokens, asked)
                # One sequence while the template leaves what was trained as it is; else a new sample, in
                # which nothing is trained a second time.
                mask = samples.pop().mask if same == len(last.tokens) else [0.0] * same
            mask += [between] * (len(asked) - len(mask)) + [message_weight(turn.message)] * (end - len(asked))
            samples.append(RenderedSequence(answered[:end], mask))
        return [self._stopped(sample) for sample in samples if any(sample.mask)]

    def _joined(self, turn: _Turn, asked: list[int], answered: list[int]) -> list[int]:
        """Where only the seam lies inside a token: the tokens that are served, and then the answer's own."""
        if turn.answered.startswith(turn.asked):
            tokens = [*asked, *self._encode([turn.answered[len(turn.asked) :]])[0]]
            if self.text(tokens) == self.text(answered):
                return tokens
        raise RefusedRow(_why(turn))

    def _end_of_turn(self, tokens: list[int], begin: int) -> int:
        """Where the answer ends: with the marks that end a turn.

        What a template writes behind them, line breaks or a mark for the end of the whole conversation, is
        never generated, so it is not trained.
        """
        end = at = len(tokens)
        while at > begin:
            if tokens[at - 1] in self._specials:
                end = at
                while at > begin and tokens[at - 1] in self._specials:
                    at -= 1
            elif self.text(tokens[at - 1 : at]).isspace():
                at -= 1
            else:
                break
        return end

    def _stopped(self, sample: RenderedSequence) -> RenderedSequence:
        """A template that ends no turn would teach the model never to stop."""
        if sample.tokens[-1] in self._specials:
            return sample
        tokens = self._ended(sample.tokens)
        return RenderedSequence(tokens, sample.mask + sample.mask[-1:] * (len(tokens) - len(sample.tokens)))

    # Plain text

    def _completion(self, prompt: list[int], completion: list[int], whole: list[int]) -> RenderedSequence:
        if whole[: len(prompt)] != prompt:
            # The seam lies inside a token. The model is served the prompt's own tokens and goes on from them.
            whole, joined = [*prompt, *completion], whole
            if self.text(whole) != self.text(joined):
                raise RefusedRow("prompt and completion meet inside a token and cannot be written apart")
        tokens = self._ended([*self._begin, *whole])
        untrained = len(self._begin) + len(prompt)
        if self._loss_on == "all":
            untrained = 0
        return RenderedSequence(tokens, [0.0] * untrained + [1.0] * (len(tokens) - untrained))

    def _given(self, row: TokensRow) -> RenderedSequence:
        size = len(self._tokenizer)
        for at, token in enumerate(row.tokens):
            if token >= size:
                raise RefusedRow(f"`tokens[{at}]` is {token}; the vocabulary has {size}")
        return RenderedSequence(list(row.tokens), list(row.weights))

    # The tokenizer

    def _encode(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        # As apply_chat_template and servers do: a template writes the special tokens itself.
        found = self._tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        return [list(tokens) for tokens in found]

    def text(self, tokens: Sequence[int]) -> str:
        """The text of tokens, special ones included."""
        text = self._tokenizer.decode(
            list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text if isinstance(text, str) else "".join(text)

    def _ended(self, tokens: list[int]) -> list[int]:
        end = self._tokenizer.eos_token_id
        if end is None or (tokens and tokens[-1] == end):
            return tokens
        return [*tokens, int(end)]

    @cached_property
    def _specials(self) -> frozenset[int]:
        return frozenset(at for at, token in self._tokenizer.added_tokens_decoder.items() if token.special)

    @cached_property
    def _begin(self) -> list[int]:
        """What the tokenizer puts before a text, such as a begin mark."""
        bare = self._tokenizer("a", add_special_tokens=False)["input_ids"]
        dressed = self._tokenizer("a")["input_ids"]
        at = next((i for i in range(len(dressed)) if dressed[i : i + len(bare)] == bare), 0)
        return list(dressed[:at])


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    if other[: len(one)] == one:
        return len(one)
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(other))


def _holds(turn: _Turn) -> bool:
    """Whether what is said is in what is trained. Templates for images take no plain text, and drop it."""
    said = str(turn.message.get("content", "")).split("</think>")[-1].strip()
    return said in turn.answered[len(turn.asked) :]


def _why(turn: _Turn) -> str:
    asked, answered = turn.asked, turn.answered
    if answered.startswith(asked):
        return (
            f"messages[{turn.at}]: the prompt that asks for it ends inside a token of the answer, and "
            "the two cannot be written apart"
        )
    at = next((i for i, (a, b) in enumerate(zip(asked, answered, strict=False)) if a != b), len(answered))
    return (
        f"messages[{turn.at}]: the chat template asks for it with {asked[at : at + 40]!r} but writes "
        f"{answered[at : at + 40]!r} there, so the model would be trained on what it never sees"
    )

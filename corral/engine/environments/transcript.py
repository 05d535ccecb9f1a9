"""The tokens of a conversation, as they were sampled: an answer of the model is never tokenised again.

After an answer the chat template writes the whole conversation with the new messages. Where that text begins
with the tokens so far, or at least with their text, the rest is appended to them. Where it does not (a
template that drops old thinking or trims spaces), a served model would see other tokens, so a new sample
begins with those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase

from corral.engine.data.chat import Renderer
from corral.engine.data.sequences import Completion
from corral.engine.environments import tools as tool_texts
from corral.engine.environments.protocol import EnvironmentDescription, Message, with_system
from corral.recipes.train_tables import Train

_OPEN, _CLOSE = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class SampledSequence:
    """A token sequence that was sampled in one or several turns. `mask` is 1 at sampled tokens, `logprobs`
    holds the sampler's logprob there; both are as long as `tokens`. The first `prompt` tokens were given.
    `reason` is why its last turn ended: `stop`, or `length` if a limit cut it."""

    tokens: list[int]
    mask: list[float]
    logprobs: list[float]
    reason: str
    prompt: int


class PromptWriter:
    """Makes tokens of conversations, and text of tokens, for one tokenizer and one set of tools."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        thinking: bool = False,
        system: str | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._renderer = Renderer(tokenizer, thinking=thinking)
        self._thinking, self._system = thinking, system
        self._tools = [dict(tool) for tool in tools]
        self.stops = tuple(sorted(self._renderer.stops))

    @classmethod
    def of_run(
        cls, tokenizer: PreTrainedTokenizerBase, about: EnvironmentDescription, train: Train
    ) -> PromptWriter:
        return cls(tokenizer, tools=about.tools, thinking=train.thinking, system=train.system)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The tokens that ask for the next answer. RefusedRow if the template cannot write that."""
        messages = with_system(messages, self._system)
        if not self._tools:
            return self._renderer.prompt(messages)
        tokens = self._renderer.prompt(messages, self._tools)
        if tokens == self._renderer.prompt(messages):
            # The template has no place for tools.
            return self._renderer.prompt(_with_instructions(messages, tool_texts.instructions(self._tools)))
        return tokens

    def said(self, tokens: Sequence[int]) -> str:
        """An answer without the mark that ends it."""
        return self._renderer.text(tokens[:-1] if tokens and tokens[-1] in self.stops else tokens)

    def continued(self, seen: list[int], messages: Sequence[Message]) -> list[int] | None:
        """The prompt for the next answer, which begins with the tokens seen; None if it would not."""
        wanted = self.prompt(messages)
        if wanted[: len(seen)] == seen:
            return wanted
        whole, old = self._renderer.text(wanted), self._renderer.text(seen)
        if not whole.startswith(old):
            return None
        glue = self._tokenizer(whole[len(old) :], add_special_tokens=False)["input_ids"]
        return [*seen, *glue]

    def answer(self, raw: str, prompt: Sequence[int]) -> tuple[Message, Message]:
        """An answer as the template is to write it, and as the environment sees it: thinking apart."""
        if not self._thinking:
            return {"role": "assistant", "content": raw}, {"role": "assistant", "content": raw}
        opened = self._renderer.text(prompt[-8:]).rstrip().endswith(_OPEN)
        whole = f"{_OPEN}\n{raw}" if opened else raw
        before, closed, after = whole.partition(_CLOSE)
        if not closed and _OPEN not in whole:
            before, after = "", whole
        thinking = before.partition(_OPEN)[2].strip()
        shown = {"role": "assistant", "content": after.strip(), "reasoning_content": thinking, "raw": raw}
        return {"role": "assistant", "content": whole}, shown


@dataclass(slots=True)
class Transcript:
    """One attempt's tokens and messages while it goes on."""

    writer: PromptWriter
    messages: list[Message] = field(default_factory=list)
    opening: int = 0
    tokens: list[int] = field(default_factory=list)
    breaks: int = 0
    _written: list[Message] = field(default_factory=list)
    _mask: list[float] = field(default_factory=list)
    _logprobs: list[float] = field(default_factory=list)
    _prompt: int = 0
    _reason: str = ""
    _ended: list[SampledSequence] = field(default_factory=list)

    def begin(self, messages: Sequence[Message], tokens: list[int]) -> None:
        """The conversation up to the first answer, and its tokens."""
        self.messages, self._written = list(messages), list(messages)
        self.opening = len(messages)
        self._fresh(tokens)

    def add(self, completion: Completion) -> None:
        """Append an answer, token by token as it was sampled."""
        shown_to_template, shown = self.writer.answer(self.writer.said(completion.tokens), self.tokens)
        self.tokens = [*self.tokens, *completion.tokens]
        self._mask += [1.0] * len(completion.tokens)
        self._logprobs += completion.logprobs
        self._reason = completion.reason
        self._written.append(shown_to_template)
        self.messages.append(shown)

    def reply(self, messages: Sequence[Message]) -> None:
        """Append what the environment says, and what the template puts around it."""
        self.messages += messages
        self._written += messages
        tokens = self.writer.continued(self.tokens, self._written)
        if tokens is None:
            self.breaks += 1
            self._ended.append(self._sample())
            self._fresh(self.writer.prompt(self._written))
            return
        new = len(tokens) - len(self.tokens)
        self.tokens = tokens
        self._mask += [0.0] * new
        self._logprobs += [0.0] * new

    def note(self, messages: Sequence[Message]) -> None:
        """Append last words of the environment, which no answer follows: they need no tokens."""
        self.messages += messages

    def cut(self) -> None:
        """There was no room for another turn."""
        self._reason = "length"

    @property
    def truncated(self) -> bool:
        return self._reason == "length"

    def samples(self) -> list[SampledSequence]:
        """All of it. What was given after the last answer is left out: nothing is trained there."""
        return [*self._ended, self._sample()] if any(self._mask) else list(self._ended)

    def _sample(self) -> SampledSequence:
        end = len(self._mask) - next((i for i, value in enumerate(reversed(self._mask)) if value), 0)
        return SampledSequence(
            self.tokens[:end], self._mask[:end], self._logprobs[:end], self._reason, self._prompt
        )

    def _fresh(self, tokens: list[int]) -> None:
        self.tokens, self._prompt = tokens, len(tokens)
        self._mask, self._logprobs = [0.0] * len(tokens), [0.0] * len(tokens)


def _with_instructions(messages: Sequence[Message], text: str) -> list[Message]:
    if messages[0]["role"] == "system":
        return [{**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]

"""Answers as OpenAI's clients read them, whole or in pieces."""

from __future__ import annotations

import queue
import secrets
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

from corral.engine.serving.generation import TokenPiece, TokenStream
from corral.engine.serving.model import ServedModel, TokenizedRequest
from corral.engine.serving.requests import GenerationRequest
from corral.engine.serving.text import AnswerText

# Between two looks at whether the client is still there.
_LOOK_S = 0.5


class ClientGone(Exception):
    """Nobody reads the answer any more."""


@dataclass
class _Choice:
    """One sequence of the answer, as far as it has come."""

    index: int
    stream: TokenStream
    text: AnswerText
    said: str = ""
    # Of those that were drawn, the mark of the end among them.
    tokens: int = 0
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    reason: str | None = None


@dataclass(frozen=True)
class _Piece:
    choice: _Choice
    text: str
    logprobs: list[dict[str, Any]]


class AnswerInProgress:
    """One answer under way. `is_wanted` tells whether the client is still there; when it is not, or on any
    error, what is being generated is given up."""

    def __init__(
        self,
        model: ServedModel,
        asked: GenerationRequest,
        question: TokenizedRequest,
        is_wanted: Callable[[], bool],
    ) -> None:
        self._model, self._asked, self._question = model, asked, question
        self._is_wanted, self._looked = is_wanted, time.monotonic()
        kind = "chatcmpl" if asked.is_chat else "cmpl"
        self._base = {
            "id": f"{kind}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model.name,
        }
        streams = model.answer(question)
        self._choices = [
            _Choice(number, stream, model.text(question)) for number, stream in enumerate(streams)
        ]

    def whole(self) -> dict[str, Any]:
        for _ in self._pieces():
            pass
        kind = "chat.completion" if self._asked.is_chat else "text_completion"
        choices = [self._whole_choice(choice) for choice in self._choices]
        return {**self._base, "object": kind, "choices": choices, "usage": self._usage()}

    def chunks(self) -> Generator[dict[str, Any]]:
        kind = "chat.completion.chunk" if self._asked.is_chat else "text_completion"
        base = {**self._base, "object": kind}
        if self._asked.usage_in_stream:
            base["usage"] = None
        if self._asked.is_chat:
            for choice in self._choices:
                opening = {"role": "assistant", "content": ""}
                yield {**base, "choices": [self._chunk_choice(choice.index, opening)]}
        for piece in self._pieces():
            choice = piece.choice
            if piece.text or piece.logprobs:
                said = {"content": piece.text} if self._asked.is_chat else piece.text
                told = self._chunk_choice(choice.index, said, self._told(piece.logprobs))
                yield {**base, "choices": [told]}
            if choice.reason is not None:
                nothing: Any = {} if self._asked.is_chat else ""
                yield {**base, "choices": [self._chunk_choice(choice.index, nothing, None, choice.reason)]}
        if self._asked.usage_in_stream:
            yield {**base, "choices": [], "usage": self._usage()}

    # -- what comes -----------------------------------------------------------------------------------

    def _pieces(self) -> Iterator[_Piece]:
        """What each sequence says next, as it comes; the last piece of each has a reason."""
        try:
            while left := [choice for choice in self._choices if choice.reason is None]:
                yield from self._round(left)
        finally:
            for choice in self._choices:
                if choice.reason is None:
                    choice.stream.cancel()

    def _round(self, left: list[_Choice]) -> Iterator[_Piece]:
        # All of one request are drawn side by side: waiting for the first waits for the others too.
        for number, choice in enumerate(left):
            piece = self._await(choice.stream) if number == 0 else self._there(choice.stream)
            if piece is not None:
                yield self._take(choice, piece)

    def _await(self, stream: TokenStream) -> TokenPiece | None:
        now = time.monotonic()
        if now - self._looked >= _LOOK_S:
            self._looked = now
            if not self._is_wanted():
                raise ClientGone
        try:
            return stream.next(_LOOK_S)
        except queue.Empty:
            return None

    def _there(self, stream: TokenStream) -> TokenPiece | None:
        try:
            return stream.next(0)
        except queue.Empty:
            return None

    def _take(self, choice: _Choice, piece: TokenPiece) -> _Piece:
        choice.tokens += len(piece.tokens)
        tokens = self._model.without_end(piece.tokens) if piece.reason == "stop" else piece.tokens
        text = choice.text.push(tokens)
        if piece.reason is not None:
            text += choice.text.end()
            choice.reason = piece.reason
        told: list[dict[str, Any]] = []
        if self._asked.logprobs:
            told = [self._logprob(*one) for one in zip(tokens, piece.logprobs, strict=False)]
            choice.logprobs += told
        choice.said += text
        return _Piece(choice, text, told)

    # -- how it is told -------------------------------------------------------------------------------

    def _whole_choice(self, choice: _Choice) -> dict[str, Any]:
        told = self._told(choice.logprobs) if self._asked.logprobs else None
        ending = {"index": choice.index, "logprobs": told, "finish_reason": choice.reason}
        if not self._asked.is_chat:
            return {**ending, "text": choice.said}
        return {**ending, "message": {"role": "assistant", "content": choice.said, "refusal": None}}

    def _chunk_choice(
        self, index: int, said: Any, logprobs: dict[str, Any] | None = None, reason: str | None = None
    ) -> dict[str, Any]:
        key = "delta" if self._asked.is_chat else "text"
        return {"index": index, key: said, "logprobs": logprobs, "finish_reason": reason}

    def _logprob(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._model.tokenizer.decode([token])
        return {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}

    def _told(self, logprobs: list[dict[str, Any]]) -> dict[str, Any] | None:
        if not self._asked.logprobs:
            return None
        if self._asked.is_chat:
            return {"content": logprobs, "refusal": None}
        return {
            "tokens": [one["token"] for one in logprobs],
            "token_logprobs": [one["logprob"] for one in logprobs],
            "top_logprobs": None,
            "text_offset": None,
        }

    def _usage(self) -> dict[str, int]:
        prompts = self._question.prompts
        # The choices of one prompt share it.
        asked = sum(len(prompt) for prompt in prompts) // self._asked.n
        said = sum(choice.tokens for choice in self._choices)
        return {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}

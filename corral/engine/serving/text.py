"""Text of an answer while its tokens come: what is certain is told at once, the rest is held back."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

# What a decoder writes for bytes that are no whole character.
_BROKEN = "\N{REPLACEMENT CHARACTER}"


class AnswerText:
    """Give it the tokens in order with `push`, and `end` when no more come. A text of `stop` ends the answer:
    it and what follows are not told, and `stopped` says so."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._tokens: list[int] = []
        # Tokens before `_from` are not looked at again; those up to `_read` have given their text.
        self._from = self._read = 0
        self._held = ""
        self.stopped = False

    def push(self, tokens: Sequence[int]) -> str:
        """What is certain now and was not before."""
        if self.stopped:
            return ""
        self._tokens += tokens
        before = self._decode(self._from, self._read)
        whole = self._decode(self._from, len(self._tokens))
        if not whole.endswith(_BROKEN) and len(whole) > len(before):
            # A token is decoded beside the one before it, since some tokenizers join them with a space.
            self._held += whole[len(before) :]
            self._from, self._read = self._read, len(self._tokens)
        return self._told(final=False)

    def end(self) -> str:
        """What was held back."""
        if self.stopped:
            return ""
        before = self._decode(self._from, self._read)
        self._held += self._decode(self._from, len(self._tokens))[len(before) :]
        self._from = self._read = len(self._tokens)
        return self._told(final=True)

    def _decode(self, first: int, last: int) -> str:
        text: str = self._tokenizer.decode(self._tokens[first:last])
        return text

    def _told(self, *, final: bool) -> str:
        places = [at for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if places:
            self.stopped = True
            told, self._held = self._held[: min(places)], ""
            return told
        keep = 0 if final else self._perhaps_a_stop()
        at = len(self._held) - keep
        told, self._held = self._held[:at], self._held[at:]
        return told

    def _perhaps_a_stop(self) -> int:
        """How many characters at the end may become one of the stops."""
        return max(
            (
                size
                for stop in self._stop
                for size in range(1, min(len(stop), len(self._held) + 1))
                if self._held.endswith(stop[:size])
            ),
            default=0,
        )

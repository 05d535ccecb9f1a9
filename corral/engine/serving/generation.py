"""One thread has the model; requests of many callers come to it and are continued together."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from corral.engine.data.sequences import SamplingParams, SamplingRequest
from corral.engine.sampling.sampler import Sampler


class TokenPiece(NamedTuple):
    """Some tokens of a sequence with their logprobs; `reason` is there with the last ones."""

    tokens: list[int]
    logprobs: list[float]
    reason: str | None = None


class GenerationFailed(Exception):
    """The model could not go on; says why."""


@dataclass(eq=False)
class TokenStream:
    """The tokens of one sequence, as they are drawn. `cancel` when nobody wants them any more."""

    request: SamplingRequest
    _loop: GenerationLoop
    _pieces: queue.SimpleQueue[TokenPiece | GenerationFailed] = field(default_factory=queue.SimpleQueue)

    def next(self, timeout_s: float | None = None) -> TokenPiece:
        """Raises queue.Empty after `timeout_s`, and GenerationFailed."""
        found = self._pieces.get(timeout=timeout_s)
        if isinstance(found, GenerationFailed):
            raise found
        return found

    def put(self, piece: TokenPiece | GenerationFailed) -> None:
        self._pieces.put(piece)

    def cancel(self) -> None:
        self._loop.cancel(self)


class GenerationLoop:
    """Runs until `close`. `failure` is what ended it, if anything did: no request is answered after that."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._keys = itertools.count()
        self._inbox: queue.SimpleQueue[tuple[str, TokenStream] | None] = queue.SimpleQueue()
        self._streams: dict[int, TokenStream] = {}
        self._told: dict[int, int] = {}
        self._lock = threading.Lock()
        self._failure: GenerationFailed | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="generation", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> GenerationFailed | None:
        return self._failure

    @property
    def pending(self) -> int:
        return len(self._streams)

    def start(self, tokens: list[int], params: SamplingParams) -> TokenStream:
        stream = TokenStream(SamplingRequest(next(self._keys), tokens, params), self)
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._closed:
                raise GenerationFailed("the server is stopping")
            self._inbox.put(("start", stream))
        return stream

    def cancel(self, stream: TokenStream) -> None:
        self._inbox.put(("cancel", stream))

    def close(self) -> None:
        """What is under way is given up."""
        with self._lock:
            self._closed = True
        self._inbox.put(None)
        self._thread.join()

    # -- in the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        problem = GenerationFailed("the server is stopping")
        try:
            while self._heed():
                if self._sampler.pending:
                    self._advance()
        # Whatever it is, those who wait are told, and the next look at the server's health.
        except Exception as error:
            problem = GenerationFailed(f"the model failed: {type(error).__name__}: {error}")
            self._failure = problem
            raise
        finally:
            with self._lock:
                self._closed = True
                waiting = [*self._streams.values(), *self._not_heeded()]
            for stream in waiting:
                stream.put(problem)

    def _heed(self) -> bool:
        """Take what has come; wait for it where there is nothing else to do. False: it is time to end."""
        while True:
            try:
                said = self._inbox.get(block=not self._sampler.pending)
            except queue.Empty:
                return True
            if said is None:
                return False
            what, stream = said
            key = stream.request.key
            if what == "start":
                self._streams[key], self._told[key] = stream, 0
                self._sampler.submit(stream.request)
            elif key in self._streams:
                self._sampler.abort(key)
                self._forget(key)

    def _advance(self) -> None:
        done = self._sampler.step()
        for key, tokens, logprobs in self._sampler.under_way():
            told = self._told[key]
            if len(tokens) > told:
                self._streams[key].put(TokenPiece(tokens[told:], logprobs[told:]))
                self._told[key] = len(tokens)
        for one in done:
            told = self._told[one.key]
            self._streams[one.key].put(TokenPiece(one.tokens[told:], one.logprobs[told:], one.reason))
            self._forget(one.key)

    def _forget(self, key: int) -> None:
        del self._streams[key], self._told[key]

    def _not_heeded(self) -> Iterator[TokenStream]:
        while True:
            try:
                said = self._inbox.get_nowait()
            except queue.Empty:
                return
            if said is not None and said[0] == "start":
                yield said[1]

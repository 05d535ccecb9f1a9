"""What a user can correct: each error says what is wrong, and in `hint` what to do next."""

from __future__ import annotations


class EngineError(Exception):
    """The base of everything that the engine raises on purpose."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ModelProblem(EngineError):
    """A model or an adapter cannot be used."""


class DataError(EngineError):
    """The training data cannot be used."""

"""What may be wrong with a model or an adapter."""

from __future__ import annotations


class ModelProblem(Exception):
    """A model or an adapter that cannot be used: why, and in `hint` what to do next."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

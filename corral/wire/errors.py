"""The one shape of every error."""

from __future__ import annotations

from corral.wire.base import Answer


class ErrorField(Answer):
    path: str
    message: str


class ErrorBody(Answer):
    """The one shape of every error."""

    code: str
    message: str
    hint: str = ""
    fields: list[ErrorField] = []

"""What the server answered, as the type that was asked for."""

from __future__ import annotations

from typing import Any, TypeVar

import httpx
from pydantic import TypeAdapter, ValidationError

from corral.client.http.errors import not_an_answer

M = TypeVar("M")


def parsed(response: httpx.Response, answer: type[M]) -> M:
    try:
        # An answer without a body is None.
        return reader_of(answer).validate_json(response.content or b"null")
    except ValidationError as error:
        raise not_an_answer(response, error) from error


_readers: dict[type, TypeAdapter[Any]] = {}


def reader_of(answer: type[M]) -> TypeAdapter[M]:
    """Made once: that costs more than most answers."""
    found = _readers.get(answer)
    if found is None:
        found = _readers[answer] = TypeAdapter(answer)
    return found

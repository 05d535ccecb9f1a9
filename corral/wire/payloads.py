"""Arguments and results of calls."""

from __future__ import annotations

import base64
from typing import Annotated, Any

from pydantic import Field, model_validator

from corral.domain.calls import INLINE_BYTES, Payload
from corral.domain.errors import InvalidInput
from corral.domain.ids import Digest
from corral.wire.base import DigestText, Exact

Format = Annotated[str, Field(pattern=r"^[a-z0-9+.-]+$", max_length=32)]


class PayloadBody(Exact):
    """Bytes that only caller and function understand: base64 in `body`, or a blob of the project."""

    format: Format
    body: str | None = Field(None, max_length=INLINE_BYTES * 4 // 3 + 8)
    blob: DigestText | None = None
    size: int = Field(0, ge=0, lt=2**50)

    @model_validator(mode="after")
    def _one_of_both(self) -> PayloadBody:
        if (self.body is None) == (self.blob is None):
            raise ValueError("needs exactly one of body and blob")
        return self

    def payload(self, place: str = "payload") -> Payload:
        """InvalidInput, which names the place, if the body is not base64."""
        if self.body is None:
            assert self.blob is not None
            return Payload(self.format, None, Digest(self.blob), self.size)
        try:
            data = base64.b64decode(self.body, validate=True)
        except ValueError as error:
            raise InvalidInput(f"{place}: body is not base64: {error}") from None
        return Payload(self.format, data, None, len(data))


def payload_table(payload: Payload) -> dict[str, Any]:
    """The fields of a `PayloadBody`."""
    body = None if payload.body is None else base64.b64encode(payload.body).decode("ascii")
    return {"format": payload.format, "body": body, "blob": payload.blob, "size": payload.size}

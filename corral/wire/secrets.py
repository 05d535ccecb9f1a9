"""Secrets of projects and of leases."""

from __future__ import annotations

from pydantic import Field

from corral.wire.base import Answer, AnswerPage, Strict


class SecretValue(Strict):
    value: str = Field(min_length=1, max_length=65_536)


class SecretView(Answer):
    name: str
    updated_at: float
    redacted: bool


class SecretPage(AnswerPage[SecretView]): ...


class SecretsAnswer(Answer):
    values: dict[str, str]

"""The form in which a model is asked: the one that it was trained in."""

from __future__ import annotations

from enum import StrEnum

from corral.recipes.rows.formats import CompletionRow, Row, TextRow


class PromptForm(StrEnum):
    """A conversation written by the chat template, or plain text to go on from."""

    CHAT = "chat"
    TEXT = "text"


def form_of(row: Row) -> PromptForm:
    """The form of rows like this one. Tokens do not say what they were made of: they count as chat."""
    return PromptForm.TEXT if isinstance(row, CompletionRow | TextRow) else PromptForm.CHAT

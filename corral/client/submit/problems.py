"""What is wrong with a run file, all of it at once: one part at fault does not hide the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from corral.domain.errors import PARAMS_HINT, SPEC_HINT, FieldError, InvalidInput
from corral.errors import WHOLE

T = TypeVar("T")


class ProblemList:
    """Collects what each part was refused for; `check` tells it."""

    def __init__(self) -> None:
        self._errors: list[InvalidInput] = []

    def add(self, error: InvalidInput) -> None:
        self._errors.append(error)

    def collect(self, step: Callable[[], T]) -> T | None:
        """What the step gives; None if it was refused. Other errors are not about the file, and go on."""
        try:
            return step()
        except InvalidInput as error:
            self._errors.append(error)
            return None

    def check(self, what: str) -> None:
        """The one refusal as it was; several as one, with all their fields."""
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            fields = [
                one for error in self._errors for one in error.fields or (FieldError(WHOLE, error.message),)
            ]
            lines = "; ".join(map(str, fields[:20]))
            hints = dict.fromkeys(error.hint for error in self._errors if error.hint)
            if SPEC_HINT in hints:
                # It says the same of all fields.
                hints.pop(PARAMS_HINT, None)
            raise InvalidInput(f"{what} is not valid: {lines}", hint=" ".join(hints), fields=fields)

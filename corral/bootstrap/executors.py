"""The executors that this installation can have, by kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from corral.domain.errors import CorralError, FieldError, InvalidInput
from corral.domain.placements.placements import ExecutorKind, ExecutorRecord
from corral.ports.executor import Executor

# Options of every kind, which the order of a launch is made from.
_COMMON = {
    "url": "where its workers find this server",
    "command": "what each worker is started with, as a list of words",
    "image": "the container image of its workers",
}


class ExecutorMissing(CorralError):
    code = "executor_missing"


class InstalledExecutors:
    """Loads what a kind needs when it is first asked for: most installations have none of them."""

    def checked(self, kind: ExecutorKind, options: Mapping[str, object]) -> dict[str, object]:
        known, _ = _loaded(kind)
        names = {field.name: field for field in fields(known)}
        wrong = [
            FieldError(f"options.{name}", f"is no option of {kind}") for name in options if name not in names
        ]
        wrong = [one for one in wrong if one.path.removeprefix("options.") not in _COMMON]
        if not options.get("url"):
            wrong.append(FieldError("options.url", "is missing: where its workers find this server"))
        missing = [
            name
            for name, field in names.items()
            if field.default is MISSING and field.default_factory is MISSING and name not in options
        ]
        wrong += [FieldError(f"options.{name}", "is missing") for name in missing]
        if wrong:
            raise InvalidInput(
                "; ".join(f"{one.path} {one.message}" for one in wrong),
                hint=f"Options of {kind}: {', '.join([*names, *_COMMON])}.",
                fields=wrong,
            )
        own = {name: value for name, value in options.items() if name in names}
        try:
            known(**own)
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"the options of {kind} are wrong: {error}") from None
        return dict(options)

    def open(self, record: ExecutorRecord) -> Executor:
        known, make = _loaded(record.kind)
        names = {field.name for field in fields(known)}
        options = json.loads(record.options)
        return make(known(**{name: value for name, value in options.items() if name in names}))


def _loaded(kind: ExecutorKind) -> tuple[Any, Callable[[Any], Executor]]:
    """The options of a kind, and what makes an executor of them."""
    raise ExecutorMissing(f"executors of kind {kind} are not part of this Corral")

"""The root of every error that Corral raises on purpose. Standard library only: instances load it too.

CorralError
├── InvalidInput, NotFound, Ambiguous, Conflict, ...    what a server refuses: corral.domain.errors
├── StoreUnavailable                                    worth another try
│   └── DiskFull, RateLimited, ProjectFull
├── ServerUnreachable
│   └── UntrustedServer                                 corral.client.http.errors
├── BucketError                                         corral.files.bucket_errors
│   └── BucketRefused                                   another try does not help
├── RankError                                           among the ranks of a run: corral.rank
│   └── NotInARun, RankTimeout                          the latter a TimeoutError as well
├── StoreError                                          where replicas meet: corral.diloco
└── FunctionError                                       around a call: corral.functions.errors
    ├── CallTimeout, NotFinished                        TimeoutErrors as well
    ├── CallCancelled, CallExpired, EndpointGone
    ├── InstanceLost, CannotStart
    ├── ResultTooLarge, ResultLost, PickledResult
    ├── CannotEncode                                    a TypeError as well
    ├── CallWhileImporting, CodeTooLarge
    ├── RemoteError, ExitCalled
    └── VolumeConflict
"""

from __future__ import annotations

import copyreg
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# The place of what is wrong with all of it together: no word for people.
WHOLE = "(whole)"


@dataclass(frozen=True)
class FieldError:
    """One thing wrong with one place of the input; `path` as the user would write it (`resources.gpus`)."""

    path: str
    message: str

    def __str__(self) -> str:
        return self.message if self.path == WHOLE else f"`{self.path}` {self.message}"


class CorralError(Exception):
    """Base of everything raised on purpose. `hint` says what to do next, `fields` what is wrong where."""

    # Stable on the wire; clients switch on it.
    code: str = "error"
    hint: str = ""
    fields: tuple[FieldError, ...] = ()

    def __init__(self, message: str, *, hint: str = "", fields: Sequence[FieldError] = ()) -> None:
        super().__init__(message)
        if hint:
            self.hint = hint
        if fields:
            self.fields = tuple(fields)
        if self.hint:
            # Shown below the message by a traceback; whoever prints the message prints the hint himself.
            self.add_note(f"hint: {self.hint}")

    def __reduce__(self) -> tuple[Any, ...]:
        # Not through __init__, whose arguments may be other than `args`. Notes are for a traceback here.
        state = {"args": self.args, **{name: of for name, of in vars(self).items() if name != "__notes__"}}
        return copyreg.__newobj__, (type(self),), state  # type: ignore[attr-defined]

    @property
    def message(self) -> str:
        return str(self.args[0])


class FunctionError(CorralError):
    """Everything that can go wrong around a call and is not the function's own exception."""

    code = "function_error"


class VolumeConflict(FunctionError):
    """Somebody else committed changes of the same files since; nothing was changed. `fields` names them."""

    code = "volume_conflict"
    hint = "Keep a copy of yours under another name, reload the volume, and commit again."


# Stored retry rules, records of exceptions and pickles know these classes by their first modules.
CorralError.__module__ = FieldError.__module__ = "corral.domain.errors"
FunctionError.__module__ = VolumeConflict.__module__ = "corral.functions.errors"

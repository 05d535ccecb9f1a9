"""What a caller may have to catch, and exceptions that travel."""

from __future__ import annotations

import builtins
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from corral.errors import FunctionError, VolumeConflict
from corral.functions import serialize as codec
from corral.functions.program import attribute, loaded_module

# Much more than is kept. It is cut to that once the secrets are taken out: part of one would not be found.
_LONGEST_TEXT = 300_000


class RemoteError(FunctionError):
    """The function raised something that is not known here; `record` has its type, message and traceback."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        module, name = record.get("module", ""), record.get("type", "Exception")
        dotted = f"{module}.{name}" if module and module != "builtins" else name
        super().__init__(f"{dotted}: {record.get('message', '')}")
        self.record = dict(record)


class CallTimeout(FunctionError, TimeoutError):
    """The function ran longer than its timeout and was killed."""


class NotFinished(FunctionError, TimeoutError):
    """The result was not there within the time that the caller was ready to wait; the call goes on."""

    def __init__(self, call_id: str, state: str, waiting: str | None = None) -> None:
        why = f" and waits for {waiting}" if waiting else ""
        super().__init__(f"call {call_id} is {state}{why}; ask again later: corral.Call.from_id({call_id!r})")
        self.call_id = call_id


class CallCancelled(FunctionError):
    """Somebody cancelled the call."""


class CallExpired(FunctionError):
    """Nobody took the call within its time to live, or its result is not kept any more."""


class InstanceLost(FunctionError):
    """The process that ran it died, more often than a call may lose one."""

    hint = "What an instance said before it died is in its run: `corral logs RUN`."


class CannotStart(FunctionError):
    """No instance of the endpoint can be started; the message has the reason."""


class EndpointGone(FunctionError):
    """The endpoint was removed."""


class ExitCalled(FunctionError):
    """The function called sys.exit; `code` is what it gave."""

    # Of the process here, and not of the error.
    code: Any

    def __init__(self, message: str, code: Any = None) -> None:
        super().__init__(message)
        self.code = code


class ResultTooLarge(FunctionError):
    """The result is larger than the server takes."""


class PickledResult(FunctionError):
    """The result is no plain data, and was not unpickled, since that may run code of whoever made it."""

    def __init__(self, name: str, call_id: str, types: Sequence[str] = ()) -> None:
        held = f" It holds: {', '.join(types)}." if types else ""
        super().__init__(
            f"the result of {name} (call {call_id}) is no plain data, and was not unpickled here.{held}",
            hint="Return plain values or objects of your own classes. Or trust the hosts with it: "
            f"corral.App(..., allow_pickle=True), corral.function(..., allow_pickle=True), or for this call "
            f"corral.Call.from_id({call_id!r}, allow_pickle=True).result().",
        )
        self.call_id = call_id


class ResultLost(FunctionError):
    """The function ended well, but what it gave could not be kept, or is missing or damaged now."""


def problem_of(code: str | None, message: str) -> FunctionError:
    """What the server refused, as an exception of a program."""
    return (VolumeConflict if code == "volume_conflict" else FunctionError)(message)


class RemoteTraceback(Exception):
    """Stands where the traceback of the other machine belongs."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text.rstrip()}"


_PLAIN = (CallTimeout, InstanceLost, CannotStart, ResultTooLarge, ResultLost)
_OWN: dict[str, type[FunctionError]] = {"Expired": CallExpired, **{kind.__name__: kind for kind in _PLAIN}}


def describe(error: BaseException, *, hide: int = 1) -> dict[str, Any]:
    """A record of an exception, made of plain data. `hide` leaves out so many of our own frames."""
    kind = type(error)
    frames = error.__traceback__
    for _ in range(hide):
        frames = frames.tb_next if frames is not None and frames.tb_next is not None else frames
    text = "".join(traceback.format_exception(kind, error, frames))
    code = error.code if isinstance(error, SystemExit) else None
    names = [base.__name__ for base in kind.__mro__ if base is not object]
    dotted = [f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__ if base is not object]
    return {
        "type": kind.__qualname__,
        "module": kind.__module__,
        "message": str(error)[:_LONGEST_TEXT],
        "bases": names + dotted,
        "traceback": text[-_LONGEST_TEXT:],
        "args": _plain(error.args),
        "state": _plain({k: v for k, v in vars(error).items() if not k.startswith("__")}),
        "exit_code": code if isinstance(code, int) else None,
    }


def _plain(value: Any) -> str | None:
    try:
        data = codec.encode_plain(value, named=True)
    except (codec.NotPlain, ValueError):
        return None
    return codec.as_text(data) if len(data) < 8192 else None


def rebuild(record: Mapping[str, Any]) -> BaseException:
    """The exception of the other side, as its own type where that is known here already.

    Nothing is imported or unpickled for it: a type counts as known if its module is loaded.
    """
    name, message = str(record.get("type", "")), str(record.get("message", ""))
    made: BaseException
    if name in _OWN and not record.get("module"):
        made = _OWN[name](message)
    elif name == "SystemExit":
        code = record.get("exit_code")
        made = ExitCalled(f"the function called sys.exit({'' if code is None else code})", code)
    else:
        made = _known_type(record) or RemoteError(record)
    if text := record.get("traceback"):
        made.__cause__ = RemoteTraceback(str(text))
    return made


def _known_type(record: Mapping[str, Any]) -> BaseException | None:
    home = str(record.get("module"))
    found = attribute(builtins if home == "builtins" else loaded_module(home), str(record.get("type", "")))
    if not (isinstance(found, type) and issubclass(found, Exception)) or record.get("args") is None:
        return None
    try:
        args = codec.decode_plain(codec.from_text(str(record["args"])))
        state = codec.decode_plain(codec.from_text(str(record["state"]))) if record.get("state") else {}
        # Not through __init__, which may want something else than what it kept in args.
        made: BaseException = found.__new__(found, *args)
        made.args = tuple(args)
        made.__dict__.update(state)
    except Exception:  # noqa: BLE001 - then it stays a record
        return None
    return made

"""Values beyond plain data that can be read without running code of whoever wrote them.

Objects of the program's own classes travel as the name of their class and their attributes. The reader makes
one of a class that it has loaded already, sets the attributes, and calls nothing of the class. Beside them
there are some values of the standard library and of numpy. All the rest needs a pickle.
"""

from __future__ import annotations

import builtins
import collections
import copyreg
import datetime
import enum
import pathlib
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from corral.functions.program import MAIN, attribute, is_own, loaded_module

Part = Callable[[Any], Any]
_FACTORIES = {kind.__name__: kind for kind in (int, float, str, bool, list, dict, set, tuple)}
_PATHS = {
    kind.__name__: kind
    for kind in (pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath, pathlib.PureWindowsPath)
}
_ARRAYS = "biufcSUMm"
# A class that has one of these of its own says how its objects are made.
_MAKERS = ("__new__", "__reduce__", "__reduce_ex__", "__getnewargs__", "__getnewargs_ex__")


_forms: weakref.WeakKeyDictionary[type[Any], str | None] = weakref.WeakKeyDictionary()

_stand_ins_allowed: ContextVar[bool] = ContextVar("stand_ins", default=False)


class NotNamed(Exception):
    """The value needs a pickle; or there is no such class here."""


class StandIn:
    """In place of an object of a class that is not loaded here: its name and what it held, to be shown."""

    def __init__(self, name: str, form: str, parts: Any) -> None:
        self.name = name
        self.form = form
        self.parts = parts.get("__dict__", parts) if form == "model" else parts

    def __repr__(self) -> str:
        match self.form:
            case "enum":
                return f"{self.name}.{self.parts}" if isinstance(self.parts, str) else self._of(self.parts)
            case "tuple_of":
                return self._of(self.parts)
            case "error":
                return self._of(self.parts[0])
        return f"{self.name}({', '.join(f'{key}={part!r}' for key, part in self.parts.items())})"

    def _of(self, parts: list[Any]) -> str:
        return f"{self.name}({', '.join(map(repr, parts))})"


@contextmanager
def stand_ins() -> Iterator[None]:
    """Within it, values of classes that are not loaded here can be read as well."""
    token = _stand_ins_allowed.set(True)
    try:
        yield
    finally:
        _stand_ins_allowed.reset(token)


def write_named(value: Any, write: Part) -> dict[str, Any]:
    """The value as a JSON object; `write` does the same for its parts. NotNamed names its type."""
    kind = type(value)
    if kind in _WRITERS:
        name, parts = _WRITERS[kind]
        return {"!": name, "v": write(parts(value))}
    if kind.__name__ in _PATHS and isinstance(value, pathlib.PurePath):
        return {"!": "path", "v": str(value), "kind": kind.__name__}
    array = _array(value)
    if array is not None:
        return {"!": "array", "v": write(array.tobytes()), "dtype": array.dtype.str} | {
            "shape": list(array.shape) if isinstance(value, type(array)) else None
        }
    form = form_of(kind)
    if form is None:
        raise NotNamed(f"{kind.__module__}.{kind.__qualname__} is not plain")
    return {"!": form, "v": write(_parts(form, value)), "class": [kind.__module__, kind.__qualname__]}


def read_named(value: dict[str, Any], read: Part) -> Any:
    """The value again. NotNamed says what is missing; KeyError, TypeError and ValueError are damage."""
    kind = value["!"]
    if kind in _READERS:
        return _READERS[kind](read(value["v"]))
    if kind == "path":
        return _path(value)
    if kind == "array":
        return _read_array(value, read)
    if kind in ("enum", "object", "tuple_of", "model", "error"):
        try:
            found = _class(*value["class"], form=kind)
        except NotNamed:
            if not _stand_ins_allowed.get():
                raise
            return StandIn(".".join(value["class"]), kind, read(value["v"]))
        return _made(kind, found, read(value["v"]))
    raise NotNamed(f"there is no plain {kind!r}; is the other side newer?")


def form_of(kind: type[Any]) -> str | None:
    """How objects of the class travel; None if they need a pickle, since code of theirs is to run."""
    if kind not in _forms:
        _forms[kind] = _found_form(kind)
    return _forms[kind]


def _found_form(kind: type[Any]) -> str | None:
    if "<locals>" in kind.__qualname__ or hasattr(kind, "__del__"):
        return None
    if issubclass(kind, BaseException):
        return "error" if _is_ours(kind) or kind.__module__ == "builtins" else None
    if not _is_ours(kind):
        return None
    if issubclass(kind, enum.Enum):
        return "enum"
    if issubclass(kind, tuple):
        return "tuple_of" if hasattr(kind, "_fields") and tuple in kind.__bases__ else None
    own = [name for name in _MAKERS if getattr(kind, name, None) is not getattr(object, name, None)]
    if own:
        return None
    if _is_model(kind):
        return "model"
    return "object" if _has_plain_state(kind) else None


def _is_ours(kind: type) -> bool:
    """A class of the program, or one that came here by value from the program that calls."""
    module = loaded_module(kind.__module__)
    return kind.__module__ == MAIN or module is None or is_own(module)


def _is_model(kind: type) -> bool:
    """A model of pydantic's that leaves its state to pydantic."""
    states = [getattr(kind, name, None) for name in ("__getstate__", "__setstate__")]
    return hasattr(kind, "__pydantic_fields__") and all(
        str(getattr(one, "__module__", "")).startswith("pydantic.") for one in states
    )


def _has_plain_state(kind: type) -> bool:
    """What dataclasses and attrs write for classes with slots sets attributes and does nothing else."""
    by_attrs = hasattr(kind, "__attrs_attrs__")
    own = [getattr(kind, name, None) for name in ("__getstate__", "__setstate__")]
    known = (None, getattr(object, "__getstate__", None))
    return by_attrs or all(one in known or getattr(one, "__module__", "") == "dataclasses" for one in own)


def _parts(form: str, value: Any) -> Any:
    match form:
        case "enum":
            return value.name if value.name in type(value).__members__ else [value.value]
        case "tuple_of":
            return list(value)
        case "model":
            return value.__getstate__()
        case "error":
            return [list(value.args), dict(vars(value))]
    slots = {name: getattr(value, name) for name in _slots(type(value)) if hasattr(value, name)}
    return {**getattr(value, "__dict__", {}), **slots}


def _made(form: str, kind: Any, parts: Any) -> Any:
    match form:
        case "enum":
            # A flag of several is known by its number only.
            if isinstance(parts, str):
                return kind[parts]
            if not issubclass(kind, enum.Flag):
                raise ValueError(f"{kind.__qualname__} has no {parts[0]!r}")
            return kind(parts[0])
        case "tuple_of":
            return tuple.__new__(kind, parts)
        case "error":
            made = kind.__new__(kind, *parts[0])
            made.args = tuple(parts[0])
            made.__dict__.update(parts[1])
            return made
    made = object.__new__(kind)
    if form == "model":
        kind.__setstate__(made, parts)
        return made
    slots = _slots(kind)
    for name, part in parts.items():
        if name in slots:
            object.__setattr__(made, name, part)
        else:
            made.__dict__[name] = part
    return made


def _slots(kind: type) -> list[str]:
    return copyreg._slotnames(kind)  # type: ignore[attr-defined, no-any-return]


def _class(module: str, qualname: str, *, form: str) -> Any:
    """The class as it is loaded here; nothing is imported for it."""
    home = builtins if module == "builtins" else loaded_module(module)
    found = attribute(home, qualname)
    if not isinstance(found, type):
        raise NotNamed(
            f"it holds a {module}.{qualname}, which is not loaded here; import it where the result is read"
        )
    if form_of(found) != form:
        raise NotNamed(f"it holds a {module}.{qualname}, which is no such class here")
    return found


def _path(value: dict[str, Any]) -> Any:
    kind = _PATHS[value["kind"]]
    here = isinstance(pathlib.Path(), kind) or not issubclass(kind, pathlib.Path)
    return kind(value["v"]) if here else pathlib.PurePath(value["v"])


def _array(value: Any) -> Any:
    """As an array of numpy's, what is one or a number of it."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not (type(value) is numpy.ndarray or isinstance(value, numpy.generic)):
        return None
    array = numpy.asarray(value)
    return array if array.dtype.kind in _ARRAYS else None


def _read_array(value: dict[str, Any], read: Part) -> Any:
    try:
        import numpy  # noqa: PLC0415 - only where an array comes
    except ImportError:
        raise NotNamed("the value holds an array, and numpy is not installed here") from None
    dtype = numpy.dtype(value["dtype"])
    if dtype.kind not in _ARRAYS:
        raise NotNamed(f"an array of {dtype} is not plain")
    found = numpy.frombuffer(read(value["v"]), dtype=dtype)
    return found[0] if value["shape"] is None else found.reshape(value["shape"]).copy()


def _zone(value: datetime.datetime) -> list[Any]:
    key = getattr(value.tzinfo, "key", None)
    if type(value.tzinfo).__module__ != "zoneinfo" or key is None:
        raise NotNamed("a time with a zone of its own is not plain")
    return [value.replace(tzinfo=None).isoformat(), value.fold, key]


def _zoned(parts: list[Any]) -> datetime.datetime:
    from zoneinfo import ZoneInfo  # noqa: PLC0415 - only where such a time comes

    text, fold, zone = parts
    return datetime.datetime.fromisoformat(text).replace(fold=fold, tzinfo=ZoneInfo(zone))


def _clock_time(value: datetime.time) -> list[Any]:
    if value.tzinfo is not None:
        raise NotNamed("a time of day with a zone is not plain")
    return [value.isoformat(), value.fold]


def _factory(value: collections.defaultdict[Any, Any]) -> list[Any]:
    factory = value.default_factory
    name = None if factory is None else getattr(factory, "__name__", "")
    if name is not None and _FACTORIES.get(name) is not factory:
        raise NotNamed("a defaultdict with a factory of its own is not plain")
    return [name, dict(value)]


_WRITERS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    datetime.datetime: ("moment", _zone),
    datetime.time: ("time", _clock_time),
    collections.OrderedDict: ("ordered", dict),
    collections.Counter: ("counter", dict),
    collections.defaultdict: ("defaults", _factory),
    collections.deque: ("deque", lambda v: [list(v), v.maxlen]),
}
_READERS: dict[str, Callable[[Any], Any]] = {
    "moment": _zoned,
    "time": lambda v: datetime.time.fromisoformat(v[0]).replace(fold=v[1]),
    "ordered": collections.OrderedDict,
    "counter": collections.Counter,
    "defaults": lambda v: collections.defaultdict(None if v[0] is None else _FACTORIES[v[0]], v[1]),
    "deque": lambda v: collections.deque(*v),
}

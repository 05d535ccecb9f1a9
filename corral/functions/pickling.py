"""Pickles of values that are no plain data."""

from __future__ import annotations

import importlib
import io
import sys
import threading
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from corral.errors import FunctionError
from corral.functions.program import MAIN, attribute, is_local, main_name

_registering = threading.Lock()
_LOOKED_AT = 1 << 16
# Modules that pickles name for their own workings.
_MACHINERY = ("builtins", "copyreg", "cloudpickle", "_codecs")


class CannotEncode(FunctionError, TypeError):
    """An argument or a result cannot travel; the message names the part and its type."""


def pickled(value: Any, what: str) -> bytes:
    """What belongs to the main module travels by value. CannotEncode names the part that cannot travel."""
    try:
        data: bytes = load_cloudpickle().dumps(value, protocol=5)
    except Exception as error:
        raise CannotEncode(f"{what} cannot be pickled: {culprit(value) or error}") from error
    return data


def pickled_by_name(value: Any, what: str) -> bytes:
    """What belongs to the main module travels by its name, for an instance that imports that module."""
    if main_name() is None:
        return pickled(value, what)
    file = io.BytesIO()
    try:
        _pickler()(file, protocol=5).dump(value)
    except Exception as error:
        raise CannotEncode(f"{what} cannot be pickled: {culprit(value) or error}") from error
    return file.getvalue()


def _pickler() -> Any:
    """Made here, since cloudpickle is loaded only where a value needs it."""
    main, name = sys.modules[MAIN], main_name()

    class ProgramPickler(load_cloudpickle().Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if obj is main:
                return importlib.import_module, (name,)
            if isinstance(obj, type | types.FunctionType) and obj.__module__ == MAIN:
                outer, _, own = obj.__qualname__.rpartition(".")
                if attribute(main, obj.__qualname__) is obj:
                    return getattr, (attribute(main, outer) if outer else main, own)
            return super().reducer_override(obj)

    return ProgramPickler


def pickled_whole(value: Any, what: str) -> bytes:
    """What belongs to the user's modules travels by value: for an instance that has none of them."""
    with local_modules_by_value():
        return pickled(value, what)


@contextmanager
def local_modules_by_value() -> Iterator[None]:
    """Within it, what belongs to modules of the user travels by value too: nothing of them is shipped."""
    cloudpickle = load_cloudpickle()
    with _registering:
        local = [module for module in list(sys.modules.values()) if is_local(module)]
        # The main module travels by value in any case.
        mine = {module.__name__: module for module in local if module.__name__ != MAIN}
        for module in mine.values():
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in mine.values():
                cloudpickle.unregister_pickle_by_value(module)


def load_cloudpickle() -> Any:
    try:
        import cloudpickle  # noqa: PLC0415 - only where a value needs it
    except ImportError:
        raise CannotEncode("it needs the package cloudpickle, which is not installed here") from None
    return cloudpickle


def types_in(data: bytes | memoryview) -> list[str]:
    """The first types that a pickle names; it is looked at, and nothing of it is run."""
    import pickletools  # noqa: PLC0415 - only where a result is refused

    found: dict[str, None] = {}
    texts: list[str] = []
    try:
        for operation, argument, _ in pickletools.genops(bytes(data[:_LOOKED_AT])):
            if operation.name == "STACK_GLOBAL" and texts[-2].partition(".")[0] not in _MACHINERY:
                found[".".join(texts[-2:])] = None
            elif isinstance(argument, str):
                texts.append(argument)
    except (ValueError, IndexError):
        # It was cut off, or is no pickle; what was found by then is enough.
        pass
    return list(found)[:3]


def culprit(value: Any) -> str:
    """Which part cannot be pickled, one level down: `["lock"] is a _thread.lock`."""
    parts: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        parts = [(f"[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        parts = [(f"[{index}]", item) for index, item in enumerate(value)]
    elif hasattr(value, "__dict__"):
        parts = [(f".{name}", item) for name, item in vars(value).items()]
    return culprit_among(parts)


def culprit_among(parts: Iterable[tuple[str, Any]]) -> str:
    """The same, of parts that have names already."""
    for place, part in parts:
        try:
            load_cloudpickle().dumps(part, protocol=5)
        except Exception as error:  # noqa: BLE001 - whatever it says, this is the part
            deeper = culprit(part)
            named = f"{type(part).__module__}.{type(part).__qualname__}"
            return place + (deeper if deeper.startswith(("[", ".")) else f" is a {named} ({error})")
    return ""

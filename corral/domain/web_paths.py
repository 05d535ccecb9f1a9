"""Paths of web functions and their parameters: `/items/{id}`, and `/files/{name:path}` for all the rest."""

from __future__ import annotations

import re
from functools import lru_cache

_PARAMETER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(:path)?\}")
_NEVER = "?#%{}"


@lru_cache(maxsize=1024)
def parameters(template: str) -> tuple[str, ...]:
    """The names in it, in their order. ValueError says why no request can ever match it."""
    if not template.startswith("/"):
        raise ValueError(f"a path begins with /, not {template!r}")
    segments = template.split("/")[1:]
    found: list[str] = []
    for place, segment in enumerate(segments, start=1):
        parameter = _PARAMETER.fullmatch(segment)
        if parameter is None:
            _check_literal(segment, template)
            continue
        if parameter[2] and place < len(segments):
            raise ValueError(f"{template!r}: {segment} takes all the rest, and must be the last")
        if parameter[1] in found:
            raise ValueError(f"{template!r} has {parameter[1]} twice")
        found.append(parameter[1])
    return tuple(found)


def _check_literal(segment: str, template: str) -> None:
    wrong = next((one for one in segment if one in _NEVER or one.isspace()), None)
    if wrong in ("{", "}"):
        raise ValueError(
            f"{template!r}: {segment!r} is no parameter; write {{name}} for a whole part between slashes, or "
            f"{{name:path}} for all the rest; its type is the hint of the function's parameter"
        )
    if wrong is not None:
        raise ValueError(f"{template!r} has {wrong!r}, which the path of a request never has")


def match(template: str, path: str) -> dict[str, str] | None:
    """The path's parameters; None if it is another path."""
    try:
        parameters(template)
    except ValueError:
        # Deployed before such a path was refused.
        return {} if template == path else None
    wanted, given = template.split("/"), path.split("/")
    found: dict[str, str] = {}
    for place, segment in enumerate(wanted):
        parameter = _PARAMETER.fullmatch(segment)
        value = "/".join(given[place:]) if parameter and parameter[2] else "".join(given[place : place + 1])
        if place >= len(given) or not (value if parameter else value == segment):
            return None
        if parameter:
            found[parameter[1]] = value
            if parameter[2]:
                return found
    return found if len(given) == len(wanted) else None

"""Checks the messages of a conversation as they come out of JSON, and makes them what templates expect."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

Message = Mapping[str, object]
"""`role`, `content` and whatever else the chat template reads; `weight` on an assistant's message."""

ROLES = ("system", "developer", "user", "assistant", "tool")
# What other tools call them.
_ALSO = {
    **dict.fromkeys(("human", "prompter", "customer"), "user"),
    **dict.fromkeys(("gpt", "bot", "model", "ai", "chatgpt", "bing", "bard", "agent"), "assistant"),
    **dict.fromkeys(("function", "observation", "ipython"), "tool"),
}
# What turns ShareGPT's messages into ours.
SHAREGPT = "`from` to `role` (human becomes user, gpt becomes assistant) and `value` to `content`"


class RowError(ValueError):
    """Why one row cannot be used."""


def message_weight(message: Message) -> float:
    """What a message's tokens count for: only an assistant's are trained."""
    if message["role"] != "assistant":
        return 0.0
    weight = message.get("weight", 1.0)
    return float(weight) if isinstance(weight, int | float) else 1.0


def tools_of(row: Mapping[str, object]) -> tuple[Message, ...] | None:
    """The tools of a row, which may be written as JSON text; None where it has none."""
    value = row.get("tools")
    if isinstance(value, str):
        value = decoded(value, "tools")
    if value is None or value == []:
        return None
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise RowError(f"`tools` must be a list of objects, not {kind(value)}")
    return tuple(value)


def messages_of(row: Mapping[str, object], key: str) -> tuple[Message, ...]:
    """The messages under `key`. Content is text, the arguments of calls are objects, weights are numbers."""
    value = row.get(key)
    if not isinstance(value, list):
        wanted = "a text or a list of messages" if key != "messages" else "a list of messages"
        raise RowError(f"`{key}` must be {wanted}, not {kind(value)}")
    if not value:
        raise RowError(f"`{key}` is empty")
    return tuple(_message(message, f"{key}[{i}]") for i, message in enumerate(value))


def _message(value: object, path: str) -> Message:
    if not isinstance(value, dict):
        raise RowError(f"`{path}` must be an object with role and content, not {kind(value)}")
    message: dict[str, object] = {key: item for key, item in value.items() if item is not None}
    role = message.get("role")
    if role is None and "from" in message:
        raise RowError(f"`{path}` is a message of ShareGPT's form: rename in each {SHAREGPT}")
    if role not in ROLES:
        said = repr(role) if isinstance(role, str) else kind(role)
        meant = _ALSO.get(role.lower()) if isinstance(role, str) else None
        more = f"; write {meant!r}" if meant else ""
        raise RowError(f"`{path}.role` must be one of {', '.join(ROLES)}, not {said}{more}")
    message["content"] = _content(message.get("content"), f"{path}.content")
    if "tool_calls" in message:
        message["tool_calls"] = _calls(message["tool_calls"], f"{path}.tool_calls")
    # A tool may print nothing; an assistant may only call one.
    if not message["content"] and role != "tool" and not (role == "assistant" and message.get("tool_calls")):
        raise RowError(f"`{path}.content` is empty")
    if "weight" in message:
        message["weight"] = number(message["weight"], f"{path}.weight")
        if message["weight"] and role != "assistant":
            raise RowError(f"`{path}.weight` must be 0 or left out: only assistant messages are trained")
    return message


def _content(value: object, path: str) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return "".join(_part(part, f"{path}[{i}]") for i, part in enumerate(value))
    return checked_text(value, path)


def _part(part: object, path: str) -> str:
    if isinstance(part, str):
        return checked_text(part, path)
    if not isinstance(part, dict) or part.get("type", "text") != "text":
        found = repr(part.get("type")) if isinstance(part, dict) else kind(part)
        raise RowError(f"`{path}` must be text, not {found}")
    return checked_text(part.get("text"), f"{path}.text")


def _calls(value: object, path: str) -> list[Message]:
    if not isinstance(value, list) or not all(isinstance(call, dict) for call in value):
        raise RowError(f"`{path}` must be a list of objects, not {kind(value)}")
    return [_call(call, f"{path}[{i}]") for i, call in enumerate(value)]


def _call(call: Message, path: str) -> Message:
    function = call.get("function", call)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RowError(f"`{path}` must name a function")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        # As servers do before they apply a template; many templates would quote text a second time.
        arguments = decoded(arguments, f"{path}.arguments") if arguments.strip() else {}
    if not isinstance(arguments, dict):
        raise RowError(f"`{path}.arguments` must be an object, not {kind(arguments)}")
    written = {**function, "arguments": arguments}
    return {**call, "function": written} if "function" in call else written


def decoded(text: str, path: str) -> object:
    """The JSON value that `text` is."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RowError(f"`{path}` is not JSON: {error}") from None


def checked_text(value: object, path: str) -> str:
    """`value` if it is text that a tokenizer can read."""
    if not isinstance(value, str):
        raise RowError(f"`{path}` must be text, not {kind(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RowError(f"`{path}` holds half of a surrogate pair, which is no character") from None
    return value


def number(value: object, path: str) -> float:
    """`value` as a weight: a finite number from 0 on."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RowError(f"`{path}` must be a number, not {kind(value)}")
    try:
        weight = float(value)
    except OverflowError:
        weight = math.inf
    if not math.isfinite(weight) or weight < 0:
        raise RowError(f"`{path}` must be a finite number from 0 on, not {weight}")
    return weight


def kind(value: object) -> str:
    """What a JSON value is, in words."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case dict():
            return "an object"
        case _:
            return f"a {type(value).__name__}"

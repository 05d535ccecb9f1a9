"""What may be asked, in OpenAI's words; what is not done is refused by its name."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_CHOICES = 64
MOST_STOPS = 4
_MOST_SEED = 1 << 63
_ROLES = frozenset({"system", "developer", "user", "assistant"})
# Values that mean what happens anyway.
_HARMLESS: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "prediction": (),
    "presence_penalty": (0,),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "web_search_options": (),
}


class RequestProblem(Exception):
    """What is wrong with a request, as OpenAI's clients are told of it."""

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400
    ) -> None:
        super().__init__(message)
        self.message, self.param, self.code, self.status = message, param, code, status

    @property
    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {
            "error": {"message": self.message, "type": kind, "param": self.param, "code": self.code},
        }


@dataclass(frozen=True)
class GenerationRequest:
    """What is asked, checked. Either `messages` or `prompts`: texts, or lists of tokens.

    `max_tokens` is None where the rest of the context may be used.
    """

    model: str
    messages: tuple[dict[str, str], ...] | None
    prompts: tuple[str | tuple[int, ...], ...]
    max_tokens: int | None
    temperature: float
    top_p: float
    seed: int
    stop: tuple[str, ...]
    n: int
    logprobs: bool
    stream: bool
    usage_in_stream: bool

    @property
    def is_chat(self) -> bool:
        return self.messages is not None


def chat_request(body: Any, *, temperature: float) -> GenerationRequest:
    """`temperature` is the one of a request that names none."""
    table = _table(body)
    if "messages" not in table:
        raise RequestProblem("messages is missing", param="messages")
    limit = "max_completion_tokens" if table.get("max_completion_tokens") is not None else "max_tokens"
    return GenerationRequest(
        messages=tuple(_messages(table["messages"])),
        prompts=(),
        max_tokens=_whole(table, limit, 1, 1 << 30),
        logprobs=_flag(table, "logprobs"),
        **_common(table, temperature),
    )


def completion_request(body: Any, *, temperature: float) -> GenerationRequest:
    """`temperature` is the one of a request that names none."""
    table = _table(body)
    if "prompt" not in table:
        raise RequestProblem("prompt is missing", param="prompt")
    # OpenAI's own default for completions.
    limit = _whole(table, "max_tokens", 1, 1 << 30) or 16
    several = _whole(table, "logprobs", 0, 0) if not isinstance(table.get("logprobs"), bool) else None
    return GenerationRequest(
        messages=None,
        prompts=tuple(_prompts(table["prompt"])),
        max_tokens=limit,
        logprobs=several is not None,
        **_common(table, temperature),
    )


def _table(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise RequestProblem("the body must be a JSON object")
    for name, harmless in _HARMLESS.items():
        value = body.get(name)
        if value is not None and value not in harmless:
            raise RequestProblem(
                f"{name} is not supported by this server; leave it out",
                param=name,
                code="unsupported_parameter",
            )
    return body


def _common(table: Mapping[str, Any], temperature: float) -> dict[str, Any]:
    model = table.get("model")
    if not isinstance(model, str) or not model:
        raise RequestProblem("model must name the model", param="model")
    options = table.get("stream_options") or {}
    if not isinstance(options, dict):
        raise RequestProblem("stream_options must be an object", param="stream_options")
    seed = _whole(table, "seed", -_MOST_SEED, _MOST_SEED - 1)
    heat = _number(table, "temperature", 0.0, 2.0)
    share = _number(table, "top_p", 0.0, 1.0)
    if share == 0.0:
        raise RequestProblem(
            "top_p must be above 0; temperature = 0 takes the likeliest token", param="top_p"
        )
    return {
        "model": model,
        "temperature": temperature if heat is None else heat,
        "top_p": 1.0 if share is None else share,
        "seed": secrets.randbits(48) if seed is None else seed % (1 << 62),
        "stop": tuple(_stops(table.get("stop"))),
        "n": _whole(table, "n", 1, MOST_CHOICES) or 1,
        "stream": _flag(table, "stream"),
        "usage_in_stream": _flag(options, "include_usage"),
    }


def _messages(said: Any) -> list[dict[str, str]]:
    if not isinstance(said, list) or not said:
        raise RequestProblem("messages must be a list with at least one message", param="messages")
    return [_message(one, f"messages[{number}]") for number, one in enumerate(said)]


def _message(said: Any, where: str) -> dict[str, str]:
    if not isinstance(said, dict):
        raise RequestProblem(f"{where} must be an object with role and content", param=where)
    role = said.get("role")
    if role not in _ROLES:
        raise RequestProblem(
            f"{where}.role is {str(role)[:40]!r}; it can be {', '.join(sorted(_ROLES))}",
            param=f"{where}.role",
        )
    if said.get("tool_calls") or said.get("function_call"):
        raise RequestProblem(f"{where} calls tools, which this server does not do", param=where)
    return {"role": "system" if role == "developer" else str(role), "content": _content(said, where)}


def _content(said: Mapping[str, Any], where: str) -> str:
    content = said.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestProblem(f"{where}.content must be text", param=f"{where}.content")
    parts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else part
            raise RequestProblem(
                f"{where}.content has a part of type {str(kind)[:40]!r}; this model reads text alone",
                param=f"{where}.content",
            )
        parts.append(part["text"])
    return "".join(parts)


def _prompts(said: Any) -> list[str | tuple[int, ...]]:
    if isinstance(said, str):
        return [said]
    if isinstance(said, list) and said:
        if _are_tokens(said):
            return [tuple(said)]
        if len(said) <= MOST_CHOICES and all(isinstance(one, str) or _are_tokens(one) for one in said):
            return [one if isinstance(one, str) else tuple(one) for one in said]
    raise RequestProblem(
        f"prompt must be a text or a list of tokens, or up to {MOST_CHOICES} of them", param="prompt"
    )


def _are_tokens(said: Any) -> bool:
    return (
        isinstance(said, list)
        and bool(said)
        and all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in said)
    )


def _stops(said: Any) -> Sequence[str]:
    if said is None:
        return ()
    stops = [said] if isinstance(said, str) else said
    if (
        not isinstance(stops, list)
        or len(stops) > MOST_STOPS
        or not all(isinstance(one, str) and one for one in stops)
    ):
        raise RequestProblem(f"stop must be a text, or up to {MOST_STOPS} of them", param="stop")
    return stops


def _flag(table: Mapping[str, Any], name: str) -> bool:
    value = table.get(name)
    if value is not None and not isinstance(value, bool):
        raise RequestProblem(f"{name} must be true or false", param=name)
    return bool(value)


def _whole(table: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    value = table.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestProblem(
            f"{name} is {str(value)[:40]}; it must be a whole number from {low} to {high}", param=name
        )
    return value


def _number(table: Mapping[str, Any], name: str, low: float, high: float) -> float | None:
    value = table.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RequestProblem(f"{name} must be a number from {low:g} to {high:g}", param=name)
    if not low <= value <= high:
        raise RequestProblem(f"{name} is {value:g}; it must be from {low:g} to {high:g}", param=name)
    return float(value)

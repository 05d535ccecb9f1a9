"""What a row of training data may be, and the check that makes one of a JSON object.

Nothing here knows of files. A row that cannot be used is refused with the path of the value that is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from corral.recipes.rows.messages import (
    SHAREGPT,
    Message,
    RowError,
    checked_text,
    decoded,
    kind,
    message_weight,
    messages_of,
    number,
    tools_of,
)


class RowFormat(StrEnum):
    """The kind of a row; the value is its name in messages to users."""

    CHAT = "chat (messages)"
    COMPLETION = "prompt and completion"
    TEXT = "text"
    TOKENS = "tokens"
    PAIR = "preference pair (chosen and rejected)"
    TASK = "prompt for RL"


# What each recipe trains on.
ACCEPTED: Mapping[str, frozenset[RowFormat]] = {
    "sft": frozenset({RowFormat.CHAT, RowFormat.COMPLETION, RowFormat.TEXT, RowFormat.TOKENS}),
    "grpo": frozenset({RowFormat.TASK}),
    "dpo": frozenset({RowFormat.PAIR}),
}
_WANTED = {
    "sft": "`messages`, `prompt` and `completion`, `text`, or `tokens`",
    "grpo": "`prompt`, `messages` or `question`",
    "dpo": "`chosen` and `rejected`",
}


@dataclass(frozen=True, slots=True)
class RowLocation:
    """A row's place, from 1: a line of a JSONL file, or an element of a JSON array or Parquet file."""

    source: str
    line: int
    is_line: bool = True

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.is_line else f"{self.source} row {self.line}"


@dataclass(frozen=True, slots=True)
class ChatRow:
    """A conversation. An assistant's message is trained with its `weight`, 1 where it has none, unless it is
    among the first `prompt` messages."""

    where: RowLocation
    messages: tuple[Message, ...]
    tools: tuple[Message, ...] | None = None
    weight: float = 1.0
    prompt: int = 0

    @property
    def trained(self) -> list[int]:
        """Which messages are trained."""
        return [i for i in range(self.prompt, len(self.messages)) if message_weight(self.messages[i])]


@dataclass(frozen=True, slots=True)
class CompletionRow:
    """Plain text and its continuation. No chat template is applied."""

    where: RowLocation
    prompt: str
    completion: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class TextRow:
    """Plain text, all of it trained."""

    where: RowLocation
    text: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class TokensRow:
    """Tokens and for each the weight of predicting it; the first is never predicted."""

    where: RowLocation
    tokens: tuple[int, ...]
    weights: tuple[float, ...]
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class PairRow:
    """Two answers to one prompt, the better first. Only the answers are trained."""

    where: RowLocation
    chosen: ChatRow | CompletionRow
    rejected: ChatRow | CompletionRow
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A prompt to answer. `answer`, `info` and every other field are for the environment's reward."""

    where: RowLocation
    prompt: str | tuple[Message, ...]
    answer: object
    info: Mapping[str, object]
    fields: Mapping[str, object]
    tools: tuple[Message, ...] | None = None


Row = ChatRow | CompletionRow | TextRow | TokensRow | PairRow | TaskRow


def parse(value: object, where: RowLocation, recipe: str) -> tuple[RowFormat, Row]:
    """Make a row of a JSON value; RowError says why it is not one."""
    if not isinstance(value, dict):
        raise RowError(f"a row must be an object, not {kind(value)}")
    # Parquet writes a missing value as null.
    given = {key: item for key, item in value.items() if item is not None}
    found = detect(given, recipe)
    match found:
        case RowFormat.CHAT:
            row: Row = _chat(given, where)
        case RowFormat.COMPLETION:
            row = _completion(given, where)
        case RowFormat.TEXT:
            row = TextRow(where, _text(given, "text"), _weight(given))
        case RowFormat.TOKENS:
            row = _tokens(given, where)
        case RowFormat.PAIR:
            row = _pair(given, where)
        case RowFormat.TASK:
            row = _task(given, where)
    return found, row


def detect(row: Mapping[str, object], recipe: str) -> RowFormat:
    """Which format a row has, by its keys. RowError if it has none, or none that the recipe takes."""
    found = _shape(row, recipe)
    if found is None:
        keys = ", ".join(f"`{key}`" for key in sorted(row)[:8]) or "nothing"
        raise RowError(f"a row for {recipe} needs {_WANTED[recipe]}; this one holds {keys}{_foreign(row)}")
    if found not in ACCEPTED[recipe]:
        raise RowError(f"a row for {recipe} needs {_WANTED[recipe]}; this one is a {found}")
    return found


def _foreign(row: Mapping[str, object]) -> str:
    """How rows of a known other form are written here."""
    talk = row.get("conversations")
    if talk is not None:
        inside = "from" in talk[0] if isinstance(talk, list) and talk and isinstance(talk[0], dict) else False
        also = f", and in each of them {SHAREGPT}" if inside else ""
        return f"; it is ShareGPT's form: rename `conversations` to `messages`{also}"
    if row.keys() >= {"instruction", "output"}:
        return (
            "; it is Alpaca's form: write `instruction`, followed by `input`, as `prompt`,"
            " and `output` as `completion`"
        )
    return ""


def _shape(row: Mapping[str, object], recipe: str) -> RowFormat | None:
    if row.keys() >= {"chosen", "rejected"} or row.keys() >= {"preferred_output", "non_preferred_output"}:
        return RowFormat.PAIR
    if recipe == "grpo":
        return RowFormat.TASK if row.keys() & {"prompt", "messages", "question"} else None
    if "messages" in row:
        return RowFormat.CHAT
    if row.keys() >= {"prompt", "completion"}:
        return RowFormat.COMPLETION
    return RowFormat.TEXT if "text" in row else RowFormat.TOKENS if "tokens" in row else None


def _chat(row: Mapping[str, object], where: RowLocation) -> ChatRow:
    return _to_train(ChatRow(where, messages_of(row, "messages"), tools_of(row), _weight(row)))


def _to_train(row: ChatRow) -> ChatRow:
    if not row.trained:
        has = any(message["role"] == "assistant" for message in row.messages)
        raise RowError(
            "every assistant message has weight 0" if has else "there is no assistant message to train on"
        )
    return row


def _completion(row: Mapping[str, object], where: RowLocation) -> ChatRow | CompletionRow:
    prompt, completion, weight = row["prompt"], row["completion"], _weight(row)
    if isinstance(prompt, str):
        if isinstance(completion, list):
            raise RowError("`prompt` is text but `completion` is a list of messages; give both alike")
        return CompletionRow(where, _text(row, "prompt", may_be_empty=True), _text(row, "completion"), weight)
    history = messages_of(row, "prompt")
    if isinstance(completion, str):
        answer: tuple[Message, ...] = ({"role": "assistant", "content": _text(row, "completion")},)
    else:
        answer = messages_of(row, "completion")
    return _to_train(ChatRow(where, (*history, *answer), tools_of(row), weight, len(history)))


def _tokens(row: Mapping[str, object], where: RowLocation) -> TokensRow:
    tokens, weights = row["tokens"], row.get("weights")
    if not isinstance(tokens, list) or len(tokens) < 2:
        raise RowError("`tokens` must be a list of at least two token ids")
    if not all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in tokens):
        raise RowError("`tokens` must hold whole numbers from 0 on")
    if weights is None:
        weights = [1.0] * len(tokens)
    if not isinstance(weights, list) or len(weights) != len(tokens):
        size = f"{len(weights)} weights" if isinstance(weights, list) else kind(weights)
        raise RowError(f"`weights` must be a list of {len(tokens)} numbers, one per token, not {size}")
    checked = [number(weight, f"weights[{i}]") for i, weight in enumerate(weights)]
    if not any(checked[1:]):
        raise RowError("`weights` are all 0 after the first token, which is never predicted")
    return TokensRow(where, tuple(tokens), tuple(checked), _weight(row))


def _pair(row: Mapping[str, object], where: RowLocation) -> PairRow:
    source = row.get("input")
    if isinstance(source, Mapping):  # OpenAI's names
        prompt, better, worse = source.get("messages"), row["preferred_output"], row["non_preferred_output"]
        given: Mapping[str, object] = {"prompt": prompt, "chosen": better, "rejected": worse}
        offered = tools_of(source)
    else:
        given, offered = row, tools_of(row)
    weight = _weight(row)
    if isinstance(given.get("chosen"), str):
        prompt_text = _text(given, "prompt", may_be_empty=True)
        sides = [CompletionRow(where, prompt_text, _text(given, side)) for side in ("chosen", "rejected")]
        return PairRow(where, sides[0], sides[1], weight)
    prompt = messages_of(given, "prompt") if given.get("prompt") is not None else ()
    chosen, rejected = messages_of(given, "chosen"), messages_of(given, "rejected")
    if not prompt:
        differ = (i for i, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b)
        same = next(differ, None)
        if same is None:
            raise RowError("of `chosen` and `rejected` one is the beginning of the other")
        prompt, chosen, rejected = chosen[:same], chosen[same:], rejected[same:]
    answers = [
        _to_train(ChatRow(where, (*prompt, *side), offered, prompt=len(prompt)))
        for side in (chosen, rejected)
    ]
    return PairRow(where, answers[0], answers[1], weight)


def _task(row: Mapping[str, object], where: RowLocation) -> TaskRow:
    key = next(key for key in ("prompt", "messages", "question") if key in row)
    prompt = _text(row, key) if isinstance(row[key], str) else messages_of(row, key)
    if not isinstance(prompt, str) and prompt[-1]["role"] == "assistant":
        raise RowError(f"`{key}` ends with an assistant message, so nothing is left to answer")
    info = row.get("info", {})
    if isinstance(info, str):
        info = decoded(info, "info")
    if not isinstance(info, Mapping):
        raise RowError(f"`info` must be an object, not {kind(info)}")
    fields = {name: item for name, item in row.items() if name not in (key, "answer", "info", "tools")}
    return TaskRow(where, prompt, row.get("answer"), info, fields, tools_of(row))


def _text(row: Mapping[str, object], key: str, *, may_be_empty: bool = False) -> str:
    text = checked_text(row.get(key), key)
    if not text and not may_be_empty:
        raise RowError(f"`{key}` is empty")
    return text


def _weight(row: Mapping[str, object]) -> float:
    weight = number(row.get("weight", 1.0), "weight")
    if weight == 0:
        raise RowError("`weight` is 0, so the row trains nothing; leave it out")
    return weight


def with_system(row: ChatRow, system: str | None) -> ChatRow:
    """The row with a system message before it, unless it has one."""
    if system is None or row.messages[0]["role"] in ("system", "developer"):
        return row
    first = {"role": "system", "content": system}
    return replace(row, messages=(first, *row.messages), prompt=row.prompt + 1 if row.prompt else 0)

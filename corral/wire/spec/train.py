"""The `[train]` table on the wire: the recipes check it, and their findings become ours, at their places."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    WithJsonSchema,
    model_serializer,
    model_validator,
)
from pydantic import JsonValue as Json
from pydantic_core import InitErrorDetails, PydanticCustomError

from corral.recipes import train as recipes
from corral.recipes.models import ModelFacts
from corral.recipes.schema import SettingProblem, fields_of, setting_named
from corral.recipes.train_tables import Train
from corral.wire.base import Exact
from corral.wire.faults import Form

T = TypeVar("T")
Task = Literal["train", "eval", "sample"]
Which = Literal["last", "best"]

# What the table may name as files; each is shipped as the input of the same name.
SHIPPED = ("data", "eval_data", "environment", "adapter")
INPUTS = ("model", *SHIPPED)
_SETTINGS = tuple(name for name, _, _ in fields_of(Train))

TrainTable = Annotated[
    dict[str, Json], WithJsonSchema({"type": "object", "description": "As `corral schema` describes it."})
]
TrainFileTable = Annotated[
    dict[str, Json],
    WithJsonSchema({key: part for key, part in recipes.json_schema().items() if key != "$schema"}),
]
ModelRef = Annotated[
    str, Field(min_length=1, max_length=1024), Form(r"^\S(.*\S)?$", "a model: it begins or ends with a space")
]


class EvalRequest(Exact):
    """What to evaluate a run's result on; what is left out is as it was in the run."""

    which: Which = Field("last", description="The adapter of the last step, or of the best checkpoint.")
    rows: int | None = Field(None, ge=1, le=1 << 20, description="Rows or tasks at most.")


class Message(Exact):
    role: Literal["system", "user", "assistant"]
    content: str = Field(max_length=1 << 20)


class SampleRequest(Exact):
    """What to ask the model that a run made."""

    which: Which = Field("last", description="The adapter of the last step, or of the best checkpoint.")
    messages: list[Message] = Field(
        [], max_length=1024, description="In the form of the rows that the run was trained on."
    )
    prompt: str | None = Field(
        None,
        min_length=1,
        max_length=1 << 20,
        description="In place of messages: a text to go on from, without a chat template.",
    )
    n: int = Field(1, ge=1, le=256, description="How many answers.")
    max_tokens: int | None = Field(None, ge=1, le=1 << 20, description="Of one answer.")
    temperature: float | None = Field(None, ge=0, le=2)
    seed: int | None = Field(None, ge=0, lt=2**63)

    @model_validator(mode="after")
    def _asks_one_thing(self) -> SampleRequest:
        if bool(self.messages) == (self.prompt is not None):
            raise ValueError("needs `messages` or `prompt`, and not both")
        return self

    @model_serializer(mode="wrap")
    def _without_absent_prompt(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Workers of before prompts refuse a key that they do not know."""
        found: dict[str, Any] = dump(self)
        return {key: value for key, value in found.items() if key != "prompt" or value is not None}


def under_train(key: str) -> str:
    """Where a key at the top of a run file belongs that is a setting of `[train]`; empty if it is none."""
    name = setting_named(Train, key) or next(iter(difflib.get_close_matches(key, _SETTINGS, 1, 0.85)), None)
    if name is None:
        return ""
    return "; it belongs under [train]" + ("" if name == key else f", where it is `{name}`")


def parsed(model: str, table: Mapping[str, Any], facts: ModelFacts | None = None) -> Train:
    """What the table says; `facts` where the catalogue has none. ValidationError names every fault."""
    try:
        return recipes.parse(model, table, facts)
    except recipes.TrainError as error:
        raise refused(error.problems) from None


def refused(problems: Sequence[SettingProblem], *under: int | str) -> ValidationError:
    """Places are told below `train`; pydantic puts in front where the table itself is, or `under` does."""
    return ValidationError.from_exception_data("train", [_line(problem, under) for problem in problems])


def _line(problem: SettingProblem, under: tuple[int | str, ...]) -> InitErrorDetails:
    below = problem.path.removeprefix("train").removeprefix(".")
    message = f"{problem.message}; {problem.hint}" if problem.hint else problem.message
    # Braces would be taken for the names of values to fill in.
    kind = PydanticCustomError("train", "{said}", {"said": message})
    return InitErrorDetails(type=kind, loc=(*under, below) if below else under, input=None)


def each(items: Sequence[T], check: Callable[[T], T]) -> list[T]:
    """Every item checked; faults are told with the item's number and the table's name in front."""
    made: list[T] = []
    lines: list[InitErrorDetails] = []
    for index, item in enumerate(items):
        try:
            made.append(check(item))
        except ValidationError as error:
            lines += [_line(problem, (index, error.title)) for problem in problems_of(error)]
    if lines:
        raise ValidationError.from_exception_data("runs", lines)
    return made


def problems_of(error: ValidationError) -> list[SettingProblem]:
    """What `refused` was given."""
    found = error.errors(include_url=False, include_input=False)
    return [SettingProblem(".".join(["train", *map(str, item["loc"])]), item["msg"]) for item in found]

"""The `[diloco]` table on the wire: whether it fits the run, and the recipes' findings at their places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import JsonValue as Json
from pydantic import ValidationError, WithJsonSchema
from pydantic_core import InitErrorDetails, PydanticCustomError

from corral.recipes import diloco as recipes
from corral.recipes.diloco import RankRange
from corral.recipes.train import TrainError
from corral.wire.spec.tables import Replicas

DilocoTable = Annotated[
    dict[str, Json], WithJsonSchema({"type": "object", "description": "As `corral schema` describes it."})
]
DilocoFileTable = Annotated[dict[str, Json], WithJsonSchema(recipes.json_schema())]


def replicas_fit(value: dict[str, Any] | None, data: Mapping[str, Any]) -> dict[str, Any] | None:
    """ValueError unless the table is there just where several replicas train. `data` are the fields before
    it that are not wrong themselves."""
    replicas = data.get("replicas")
    if value is None:
        if data.get("train") is not None and replicas is not None and replicas.max > 1:
            raise ValueError(
                f"is required: the {replicas.max} replicas of a [train] meet by its rules; write [diloco] "
                "with inner_steps and store, or leave `replicas` out"
            )
        return None
    if "train" in data and data["train"] is None:
        raise ValueError("has no [train] beside it; a loop of your own uses corral.diloco.OuterLoop")
    if replicas is not None and replicas.max == 1:
        raise ValueError(
            "needs several replicas: replicas = 2, or { min = 2, max = 8 }, above the first table"
        )
    return value


def settled_diloco(value: Mapping[str, Any], replicas: Replicas) -> dict[str, Any]:
    """The table as in effect; ValidationError names every fault of it."""
    try:
        return recipes.to_table(recipes.parse(value, RankRange(replicas.min, replicas.max)))
    except TrainError as error:
        lines = []
        for problem in error.problems:
            said = f"{problem.message}; {problem.hint}" if problem.hint else problem.message
            below = problem.path.removeprefix("diloco").removeprefix(".")
            # Braces would be taken for the names of values to fill in.
            kind = PydanticCustomError("train", "{said}", {"said": said})
            lines.append(InitErrorDetails(type=kind, loc=(below,) if below else (), input=None))
        raise ValidationError.from_exception_data("diloco", lines) from None

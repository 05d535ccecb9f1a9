"""What users may submit: the runs of instances are made by the server alone, from what was deployed."""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from corral.wire.spec.run_file import INSTANCE, PackedSpec, RunSpec

S = TypeVar("S", RunSpec, PackedSpec)


def without_instances(specs: list[S]) -> list[S]:
    """The same; ValidationError names the first that is of an instance."""
    for index, spec in enumerate(specs):
        if spec.kind == "service" or spec.service is not None:
            key = "kind" if spec.kind == "service" else "service"
            line = InitErrorDetails(
                type=PydanticCustomError("instance", INSTANCE), loc=(index, key), input=None
            )
            raise ValidationError.from_exception_data("runs", [line])
    return specs

"""The executors that this installation can have, by kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, NamedTuple, assert_never

from pydantic import TypeAdapter, ValidationError

from corral.domain.errors import FieldError, InvalidInput
from corral.domain.placements.placements import ExecutorKind, ExecutorRecord
from corral.domain.placements.prices import PRICES, price_faults
from corral.ports.executor import Executor
from corral.wire.faults import in_words

# Options of every kind: the order of a launch is made from them, or the price of what it brings up.
_COMMON = ("url", "command", "image", *PRICES)


class _Kind(NamedTuple):
    # A dataclass: its fields are the options.
    options: type[Any]
    make: Callable[[Any], Executor]


class InstalledExecutors:
    """Loads what a kind needs when it is first asked for: most installations have none of them."""

    def checked(self, kind: ExecutorKind, options: Mapping[str, object]) -> dict[str, object]:
        wrong = (
            [] if options.get("url") else [FieldError("url", "is missing: where workers find this server")]
        )
        command = options.get("command", [])
        if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
            wrong.append(FieldError("command", "is not a list of words"))
        wrong += price_faults(options)
        _, faults = _read(kind, options)
        if wrong := [*wrong, *faults]:
            raise InvalidInput(
                f"the options of {kind} are wrong: "
                + "; ".join(f"{fault.path} {fault.message}" for fault in wrong),
                hint=f"There are {', '.join(_names(kind))}; docs/howto/{kind}.md says what each is for.",
                fields=wrong,
            )
        return dict(options)

    def open(self, record: ExecutorRecord) -> Executor:
        options, faults = _read(record.kind, json.loads(record.options))
        if faults:
            # They were right when it was added: it is this Corral that knows others.
            raise InvalidInput(f"executor {record.name}: {faults[0].path} {faults[0].message}")
        return _loaded(record.kind).make(options)


def _read(kind: ExecutorKind, given: Mapping[str, object]) -> tuple[Any, list[FieldError]]:
    known = _loaded(kind).options
    own = {field.name for field in fields(known)}
    wrong = [
        FieldError(name, "is not an option") for name in given if name not in own and name not in _COMMON
    ]
    try:
        read = TypeAdapter(known).validate_python({key: value for key, value in given.items() if key in own})
    except ValidationError as error:
        for item in error.errors(include_url=False, include_input=False):
            wrong.append(FieldError(".".join(map(str, item["loc"])) or "options", in_words(item)))
        read = None
    return read, wrong


def _names(kind: ExecutorKind) -> list[str]:
    return sorted({*_COMMON, *(field.name for field in fields(_loaded(kind).options))})


def _loaded(kind: ExecutorKind) -> _Kind:
    """Here and not above: a server without executors does without their packages."""
    if kind is ExecutorKind.SLURM:
        from corral.adapters.executors.slurm import SlurmExecutor, SlurmOptions  # noqa: PLC0415

        return _Kind(SlurmOptions, SlurmExecutor)
    if kind is ExecutorKind.KUBERNETES:
        from corral.adapters.executors.kubernetes.executor import KubernetesExecutor  # noqa: PLC0415
        from corral.adapters.executors.kubernetes.options import KubernetesOptions  # noqa: PLC0415

        return _Kind(KubernetesOptions, KubernetesExecutor)
    if kind is ExecutorKind.RAY:
        from corral.adapters.executors.ray.executor import RayExecutor  # noqa: PLC0415
        from corral.adapters.executors.ray.models import RayCluster  # noqa: PLC0415

        return _Kind(RayCluster, RayExecutor)
    if kind is ExecutorKind.MODAL:
        from corral.adapters.executors.modal.executor import ModalExecutor  # noqa: PLC0415
        from corral.adapters.executors.modal.options import ModalOptions  # noqa: PLC0415

        return _Kind(ModalOptions, ModalExecutor)
    if kind is ExecutorKind.SAGEMAKER:
        from corral.adapters.executors.sagemaker.executor import SageMakerExecutor  # noqa: PLC0415
        from corral.adapters.executors.sagemaker.options import SageMakerOptions  # noqa: PLC0415

        return _Kind(SageMakerOptions, SageMakerExecutor)
    assert_never(kind)

"""Drafts: what `corral fn serve` serves, under names of their own beside what is deployed."""

from __future__ import annotations

from corral.domain.endpoints import DRAFT, prefixed
from corral.wire.endpoints import DeployRequest, FunctionTable


def draft_of(request: DeployRequest) -> DeployRequest:
    """The same as a draft. It has no schedule: that of the deployed one goes on."""
    name = prefixed(DRAFT, request.name)
    service = request.spec.service
    assert service is not None, "what deploys a function is a service"
    entry = {**service.entry, "app": f"{DRAFT}{service.entry['app']}"}
    spec = request.spec.model_copy(
        update={"name": name, "service": service.model_copy(update={"entry": entry})}
    )
    functions = {key: _unscheduled(table) for key, table in request.functions.items()}
    return request.model_copy(update={"name": name, "spec": spec, "functions": functions})


def _unscheduled(table: FunctionTable) -> FunctionTable:
    return table.model_copy(update={"schedule": None, "schedule_args": None})

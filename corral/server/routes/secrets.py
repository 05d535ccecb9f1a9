"""Routes: secrets of projects."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from corral.core import secrets as core
from corral.domain.secrets.secrets import Secret
from corral.server.auth import Project, User
from corral.server.services import Svc
from corral.wire.secrets import SecretPage, SecretValue, SecretView
from corral.wire.spec.tables import EnvName

router = APIRouter(prefix="/v1", tags=["admin"])
SecretName = Annotated[EnvName, Path()]


@router.get("/projects/{project}/secrets")
async def list_secrets(project: Project, svc: Svc) -> SecretPage:
    """Names only; a value is never shown."""
    found = await svc.store.read(lambda tx: core.listed(tx, svc.cipher, project))
    return SecretPage(items=[_view(secret, redacted=hidden) for secret, hidden in found])


@router.put("/projects/{project}/secrets/{name}")
async def put_secret(
    project: Project, name: SecretName, body: SecretValue, caller: User, svc: Svc
) -> SecretView:
    """Set a secret of the project, or replace it."""
    by = caller.by(svc.clock)
    done = await svc.store.write(lambda tx: core.put(tx, svc.cipher, project, name, body.value, by=by))
    return _view(done, redacted=core.is_redacted(body.value))


@router.delete("/projects/{project}/secrets/{name}", status_code=204)
async def delete_secret(project: Project, name: SecretName, caller: User, svc: Svc) -> None:
    """Remove a secret of the project."""
    await svc.store.write(lambda tx: core.remove(tx, project, name, by=caller.by(svc.clock)))


def _view(secret: Secret, *, redacted: bool) -> SecretView:
    return SecretView(name=secret.name, updated_at=secret.updated_at, redacted=redacted)

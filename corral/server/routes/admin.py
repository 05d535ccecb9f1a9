"""Routes: tokens, secrets, health, metrics, fsck."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Path, Response
from fastapi.responses import PlainTextResponse, StreamingResponse
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.process_collector import ProcessCollector

from corral import __version__
from corral.core import secrets as core_secrets
from corral.core.audit import note
from corral.core.hosts.enroll import make_join_token
from corral.core.storage.fsck import Fsck
from corral.core.tokens import NewToken, make_host, make_token, revoke
from corral.core.topics import TOPIC_TOKEN
from corral.domain.errors import CorralError, InvalidInput, NotFound
from corral.domain.ids import TokenId, is_id
from corral.domain.secrets import Secret
from corral.domain.tokens import Scope
from corral.ports.store import Tx
from corral.server.authorization import Limit, Operator, Project, User
from corral.server.openapi import streamed
from corral.server.prometheus import Snapshot
from corral.server.services import Services, Svc
from corral.server.views import host_view, token_view
from corral.wire.health import FsckLine, Health
from corral.wire.secrets import SecretPage, SecretValue, SecretView
from corral.wire.tokens import JOIN_DEFAULT_S, CreatedToken, TokenPage, TokenRequest

router = APIRouter(prefix="/v1", tags=["admin"])
SecretName = Annotated[str, Path(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
LINES = streamed("application/x-ndjson", "Lines of JSON, each a FsckLine.")


@router.get("/health", responses={503: {"model": Health}})
async def health(svc: Svc, response: Response) -> Health:
    """Whether the server can read its database; needs no token."""
    try:
        await svc.store.read(lambda tx: tx.runs.lanes())
    except CorralError as error:
        response.status_code = 503
        return Health(ok=False, version=__version__, detail=error.message)
    return Health(ok=True, version=__version__, now=svc.clock.now())


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(_: Operator, svc: Svc) -> PlainTextResponse:
    """For Prometheus."""

    def unit(tx: Tx) -> dict[str, list[tuple[dict[str, str], float]]]:
        hosts = tx.hosts.page(None, 10_000)
        now = svc.clock.now()
        alive = sum(host_view(h, 0, now=now, policy=svc.policy).alive for h in hosts)
        return {
            "corral_runs": [({"state": state}, count) for state, count in tx.runs.counts()],
            "corral_leases_live": [({}, tx.leases.live_count())],
            "corral_hosts": [({"alive": "yes"}, alive), ({"alive": "no"}, len(hosts) - alive)],
        }

    gauges = await svc.store.read(unit)
    gauges["corral_claims_waiting"] = [({}, float(len(svc.long_polls)))]
    registry = CollectorRegistry()
    registry.register(Snapshot(svc.counters, gauges))
    ProcessCollector(registry=registry)
    return PlainTextResponse(generate_latest(registry), media_type="text/plain; version=0.0.4")


def _id_cursor(text: str, kind: str) -> str:
    if not is_id(text, kind):
        raise InvalidInput(f"not a cursor: {text[:60]!r}", hint="Use the `next` of an earlier page.")
    return text


@router.get("/tokens")
async def list_tokens(caller: Operator, svc: Svc, cursor: str | None = None, limit: Limit = 100) -> TokenPage:
    """Tokens without their text."""
    after = TokenId(_id_cursor(cursor, "t")) if cursor else None
    found = await svc.store.read(lambda tx: tx.access.tokens(after, limit))
    return TokenPage(items=[token_view(t) for t in found], next=found[-1].id if len(found) == limit else None)


@router.post("/tokens", status_code=201)
async def create_token(body: TokenRequest, caller: Operator, svc: Svc) -> CreatedToken:
    """The text is in this answer alone."""

    def unit(tx: Tx) -> CreatedToken:
        now = svc.clock.now()
        made = _make(tx, body, now)
        note(
            tx,
            "token.create",
            f"token:{made.token.id}",
            actor=caller.actor,
            origin=caller.origin,
            now=now,
            name=made.token.name,
            scope=body.scope,
            project=body.project,
            expires_at=made.token.expires_at,
        )
        return CreatedToken(**token_view(made.token).model_dump(), token=made.text, ca_pin=svc.trust.pin)

    return await svc.store.write(unit)


def _make(tx: Tx, body: TokenRequest, now: float) -> NewToken:
    expires_at = None if body.expires_in_s is None else now + body.expires_in_s
    if body.scope == "join":
        ends = expires_at or now + JOIN_DEFAULT_S
        return make_join_token(tx, body.name, body.labels, now=now, expires_at=ends)
    # The request was refused if another kind has none.
    name = body.name or ""
    if body.scope == "host":
        return make_host(tx, name, now=now, expires_at=expires_at)[1]
    return make_token(tx, Scope(body.scope), name, now=now, project=body.project, expires_at=expires_at)


@router.delete("/tokens/{token_id}", status_code=204)
async def revoke_token(token_id: str, caller: Operator, svc: Svc) -> Response:
    """Takes effect at the next call."""
    if not is_id(token_id, "t"):
        raise NotFound(f"there is no token {token_id[:80]!r}", hint="List them with `corral tokens ls`.")

    def unit(tx: Tx) -> None:
        now = svc.clock.now()
        revoke(tx, TokenId(token_id), now=now)
        note(tx, "token.revoke", f"token:{token_id}", actor=caller.actor, origin=caller.origin, now=now)
        tx.announce(TOPIC_TOKEN, token_id)

    await svc.store.write(unit)
    svc.token_cache.forget(token_id)
    return Response(status_code=204)


@router.get("/projects/{project}/secrets")
async def list_secrets(project: Project, svc: Svc) -> SecretPage:
    """Names only; a value is never shown."""
    found = await svc.store.read(lambda tx: core_secrets.listed(tx, svc.cipher, project))
    return SecretPage(
        items=[SecretView(name=s.name, updated_at=s.updated_at, redacted=hidden) for s, hidden in found]
    )


@router.put("/projects/{project}/secrets/{name}")
async def put_secret(
    project: Project, name: SecretName, body: SecretValue, caller: User, svc: Svc
) -> SecretView:
    """Set a secret of the project, or replace it."""

    def unit(tx: Tx) -> Secret:
        now = svc.clock.now()
        made = core_secrets.put(tx, svc.cipher, project, name, body.value, now=now)
        note(tx, "secret.set", f"secret:{project}/{name}", actor=caller.actor, origin=caller.origin, now=now)
        return made

    done = await svc.store.write(unit)
    hidden = core_secrets.is_redacted(body.value)
    return SecretView(name=done.name, updated_at=done.updated_at, redacted=hidden)


@router.delete("/projects/{project}/secrets/{name}", status_code=204)
async def delete_secret(project: Project, name: SecretName, caller: User, svc: Svc) -> Response:
    """Remove a secret of the project."""

    def unit(tx: Tx) -> None:
        if not tx.access.delete_secret(project, name):
            raise NotFound(f"project {project} has no secret {name}", hint="`corral secrets ls` lists them.")
        target, now = f"secret:{project}/{name}", svc.clock.now()
        note(tx, "secret.remove", target, actor=caller.actor, origin=caller.origin, now=now)

    await svc.store.write(unit)
    return Response(status_code=204)


@router.post("/fsck", response_class=StreamingResponse, responses=LINES)
async def fsck(caller: Operator, svc: Svc) -> StreamingResponse:
    """Re-hash and cross-check everything; lines of JSON, the last with `done`."""
    now = svc.clock.now()
    await svc.store.write(
        lambda tx: note(tx, "fsck.run", "store", actor=caller.actor, origin=caller.origin, now=now)
    )
    return StreamingResponse(_fsck_lines(svc), media_type="application/x-ndjson")


async def _fsck_lines(svc: Services) -> AsyncIterator[str]:
    problems = 0
    async for found in Fsck(svc.store, svc.blobs, svc.segments, svc.in_thread).check():
        problems += found.problem is not None
        line = FsckLine(check=found.check, checked=found.checked, problem=found.problem)
        yield line.model_dump_json() + "\n"
    yield FsckLine(check="all", checked=problems, done=True).model_dump_json() + "\n"

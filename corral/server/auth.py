"""Who calls: tokens that were found good, and dependencies that say who may call a route, and for what."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, NamedTuple

from fastapi import Depends, Query, Request

from corral.core.audit import Author
from corral.domain.errors import RUN_HINT, Ambiguous, Forbidden, InvalidInput, NotFound, Unauthenticated
from corral.domain.ids import ArtifactId, Digest, HostId, LeaseId, RunId, TokenId, is_id, is_name
from corral.domain.ids import digest as parse_digest
from corral.domain.leases import LeaseKey
from corral.domain.tokens import Scope, Token
from corral.ports.clock import Clock
from corral.store.transaction import Tx

USERS = (Scope.USER, Scope.OPERATOR)
READERS = (*USERS, Scope.READ)
OPERATORS = (Scope.OPERATOR,)
MONITORS = (Scope.OPERATOR, Scope.READ)
HOSTS = (Scope.HOST,)
WORKERS = (Scope.HOST, Scope.RUN)
# The methods with which nothing is changed.
READING = frozenset({"GET", "HEAD"})
CACHE_S = 10.0
MOST_TOKENS = 10_000


class Caller:
    """A user or operator, and which projects they see."""

    def __init__(self, token: Token, origin: str = "") -> None:
        self.token = token
        self.actor = f"{token.scope}:{token.name}"
        # The address that the call came from, for the audit.
        self.origin = origin

    def by(self, clock: Clock) -> Author:
        """The caller as the author of what is done now."""
        return Author(self.actor, self.origin, clock.now())

    def check_project(self, project: str) -> str:
        if self.token.project is not None and self.token.project != project:
            raise Forbidden(f"this token is for project {self.token.project}, not {project}")
        return project

    def check_one_project(self, projects: Iterable[str], *, of: str) -> None:
        """The runs of one submission or schedule belong to one project, which the caller sees."""
        if len({self.check_project(project) for project in projects}) > 1:
            raise InvalidInput(f"the runs of one {of} must be of one project")

    def narrowed(self, project: str | None) -> str | None:
        """The project that a list is about: the one asked for, or the token's own; None is all of them."""
        return self.token.project if project is None else self.check_project(project)

    def sees(self, project: str) -> bool:
        return self.token.project is None or self.token.project == project


class Claimant(NamedTuple):
    """Who asks for leases; `only` is the one run that it may be given, None for whatever fits its host."""

    host_id: HostId
    only: RunId | None


class TokenCache:
    """Tokens that were found good a moment ago, so that not every call reads the database for them."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._tokens: dict[TokenId, tuple[Token, float]] = {}
        self._forgotten = 0

    def forget(self, token_id: str) -> None:
        """It was used, shortened or revoked: by a call here, or so another server says."""
        self._forgotten += 1
        self._tokens.pop(TokenId(token_id), None)

    def forget_host(self, host_id: HostId) -> None:
        """Called before the call that ended them is answered, so that no later call finds them here."""
        self._forgotten += 1
        for token_id in [t.id for t, _ in self._tokens.values() if t.host_id == host_id]:
            del self._tokens[token_id]

    @property
    def mark(self) -> int:
        """To be taken before a token is read from the database."""
        return self._forgotten

    def remember(self, token: Token, mark: int, now: float) -> None:
        # One that was revoked while it was read must not be remembered as good.
        if mark == self._forgotten:
            if len(self._tokens) >= MOST_TOKENS:
                self._tokens.clear()
            self._tokens[token.id] = (token, now)

    def get(self, token_id: TokenId) -> Token | None:
        known = self._tokens.get(token_id)
        return known[0] if known is not None and self.is_good(known[0]) else None

    def is_good(self, token: Token) -> bool:
        """Whether it is one that was read a moment ago, and has neither changed nor ended since."""
        known = self._tokens.get(token.id)
        now = self._now()
        return known is not None and known[0] is token and abs(now - known[1]) < CACHE_S and token.holds(now)


def require(token: Token | None, *scopes: Scope) -> Token:
    if token is None:
        raise Unauthenticated("the request has no token")
    if token.scope not in scopes:
        raise Forbidden(f"this call needs a token of scope {' or '.join(scopes)}; yours has {token.scope}")
    return token


def user_of(token: Token | None, origin: str = "") -> Caller:
    return Caller(require(token, *USERS), origin)


def origin_of(request: Request) -> str:
    return request.client.host if request.client else ""


def host_of(token: Token | None) -> HostId:
    """The host that a worker speaks for."""
    return _bound(require(token, *WORKERS))


def claimant_of(token: Token | None) -> Claimant:
    return Claimant(host_of(token), None if token is None else token.run_id)


def _bound(token: Token) -> HostId:
    if token.host_id is None:
        raise Forbidden(f"this {token.scope} token is bound to no host")
    return token.host_id


async def user(request: Request) -> Caller:
    """A token that may only read passes wherever the call is a GET: those change nothing."""
    scopes = READERS if request.method in READING else USERS
    return Caller(require(request.state.token, *scopes), origin_of(request))


async def operator(request: Request) -> Caller:
    return Caller(require(request.state.token, *OPERATORS), origin_of(request))


async def monitor(request: Request) -> Caller:
    """Whoever may see numbers about all projects."""
    caller = Caller(require(request.state.token, *MONITORS), origin_of(request))
    if caller.token.project is not None:
        raise Forbidden(
            f"this token is for project {caller.token.project}, and the call is about all of them",
            hint="Make one without a project: `corral tokens create NAME --scope read`.",
        )
    return caller


async def anyone(request: Request) -> Token:
    return require(request.state.token, *READERS, *WORKERS)


async def worker(request: Request) -> HostId:
    return host_of(request.state.token)


async def claimant(request: Request) -> Claimant:
    return claimant_of(request.state.token)


async def enrolled(request: Request) -> HostId:
    """A host that has a credential to keep, which the worker of one run has not."""
    return _bound(require(request.state.token, *HOSTS))


async def joining(request: Request) -> Caller:
    return Caller(require(request.state.token, Scope.JOIN), origin_of(request))


async def web_caller(request: Request) -> Token | None:
    """Whoever may call some web function; which one, and whether without a token, the endpoint decides."""
    token: Token | None = request.state.token
    return None if token is None else require(token, *USERS, Scope.ENDPOINT)


async def project_path(project: str, caller: User) -> str:
    if not is_name(project):
        raise NotFound(f"there is no project {project[:80]!r}")
    return caller.check_project(project)


async def lease_path(lease_id: str) -> LeaseId:
    if not is_id(lease_id, "l"):
        raise NotFound(f"not a lease id: {lease_id[:80]!r}")
    return LeaseId(lease_id)


async def lease_key(
    lease_id: Annotated[LeaseId, Depends(lease_path)], epoch: Epoch, host_id: OwnHost
) -> LeaseKey:
    return LeaseKey(lease_id, epoch, host_id)


async def digest_path(sha256: str) -> Digest:
    return parse_digest(sha256)


async def artifact_path(artifact_id: str) -> ArtifactId:
    if not is_id(artifact_id, "a"):
        raise NotFound(f"not an artifact id: {artifact_id[:80]!r}")
    return ArtifactId(artifact_id)


User = Annotated[Caller, Depends(user)]
Operator = Annotated[Caller, Depends(operator)]
Monitor = Annotated[Caller, Depends(monitor)]
Anyone = Annotated[Token, Depends(anyone)]
OwnHost = Annotated[HostId, Depends(worker)]
Claiming = Annotated[Claimant, Depends(claimant)]
EnrolledHost = Annotated[HostId, Depends(enrolled)]
WebCaller = Annotated[Token | None, Depends(web_caller)]
Joining = Annotated[Caller, Depends(joining)]
Project = Annotated[str, Depends(project_path)]
OwnLease = Annotated[LeaseKey, Depends(lease_key)]
DigestPath = Annotated[Digest, Depends(digest_path)]
ArtifactPath = Annotated[ArtifactId, Depends(artifact_path)]
Epoch = Annotated[int, Query(ge=0, lt=2**62)]


def find_run(tx: Tx, text: str, caller: Caller) -> RunId:
    """A run by its id or by a prefix that only one of the caller's runs has."""
    if is_id(text, "r"):
        run = tx.runs.get(RunId(text))
        if run is not None and caller.sees(run.project):
            return run.id
    elif 3 <= len(text) < 14 and text.startswith("r-") and text.isascii() and text[2:].isalnum():
        found = tx.runs.by_prefix(text, caller.token.project, 3)
        if len(found) == 1:
            return found[0]
        if found:
            raise Ambiguous(f"more than one run begins with {text}: {', '.join(found)}")
    raise NotFound(f"there is no run {text[:80]!r}", hint=RUN_HINT)

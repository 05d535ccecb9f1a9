"""How this machine becomes a host of a server: trust it, ask it, and keep what it answers."""

from __future__ import annotations

import json
import secrets
import ssl
import time
from dataclasses import dataclass
from pathlib import Path

from corral.client.corral import Corral
from corral.client.hosts.identity import CA, HostIdentity, machine_name, read_identity, write_identity
from corral.client.hosts.key import make_key
from corral.client.http.discovery import is_plain_http, tls_for
from corral.client.http.trust import fetch_ca
from corral.domain.errors import Conflict, InvalidInput, Unauthenticated
from corral.domain.ids import TokenId
from corral.domain.tokens import parse_token, split_pin
from corral.files.atomic import write_private
from corral.wire.base import validated
from corral.wire.hosts import EnrollRequest

_ASKED = "enrolment.json"


@dataclass(frozen=True)
class JoinToken:
    token_id: TokenId
    text: str
    pin: str | None


@dataclass(frozen=True)
class HostPreferences:
    """What the host wants to be; None leaves it to the token, the machine's name, or its hardware."""

    name: str | None = None
    slots: int | None = None
    labels: tuple[str, ...] = ()


def parse_join_token(text: str) -> JoinToken:
    shown, pin = split_pin(text.strip())
    parsed = parse_token(shown)
    if parsed is None:
        raise InvalidInput(
            "that is not a join token",
            hint="Copy all of what `corral tokens join` printed, the dot included.",
        )
    return JoinToken(parsed[0], shown, pin)


def check_free(home: Path, token: JoinToken) -> None:
    """Raise Conflict if this home is a host's or a server's already."""
    found = read_identity(home / "worker")
    if found is None or _asked(home / "worker" / _ASKED, token.token_id) is not None:
        return
    if found.url is None:
        raise Conflict(
            f"{home} is the home of a server, whose worker has its identity from there",
            hint="Give this host a home of its own: `--home FOLDER`.",
        )
    raise Conflict(
        f"{home} is enrolled already, as {found.name} at {found.url}",
        hint="`corral host start` starts its worker; `corral host leave` gives the identity up.",
    )


class JoinableServer:
    """One that may be joined with this token; nothing secret has been sent to it yet."""

    def __init__(self, url: str, token: JoinToken) -> None:
        self.url = url.rstrip("/")
        self._token = token
        self._ca: str | None = None

    @property
    def is_in_clear(self) -> bool:
        return is_plain_http(self.url)

    def verify(self) -> None:
        """Fetch its authority and check it against the pin, if the token has one."""
        if self._token.pin is not None:
            self._ca = fetch_ca(self.url, self._token.pin)

    @property
    def tls(self) -> ssl.SSLContext | None:
        return tls_for(self.url, self._ca)

    def join(self, home: Path, preferences: HostPreferences) -> HostIdentity:
        """Enrol, and keep the identity. After a lost answer or a kill, the same call goes on from there."""
        folder = home / "worker"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = make_key()
        given = {
            "request_id": _request_id(folder / _ASKED, self._token.token_id),
            "name": preferences.name,
            "hostname": machine_name(),
            "certificate_request": key.request_pem,
        }
        request = validated(EnrollRequest, given, what="the enrolment")
        with Corral(self.url, self._token.text, tls=self.tls) as corral:
            try:
                made = corral.own_host.enroll(request)
            except Unauthenticated as error:
                if error.hint == Unauthenticated.hint:
                    error.hint = "Copy the whole token; `corral tokens join` on the server makes another."
                raise
        now = time.time()
        identity = HostIdentity(
            host_id=made.host_id,
            name=made.name,
            token=made.token,
            url=self.url,
            labels=tuple(sorted({*preferences.labels, *made.labels})),
            slots=preferences.slots,
            issued_at=now,
            expires_at=now + made.expires_in_s,
        )
        if self._ca is None:
            (folder / CA).unlink(missing_ok=True)
        else:
            write_private(folder / CA, self._ca)
        write_identity(folder, identity, client_pem=key.with_certificate(made.certificate))
        (folder / _ASKED).unlink(missing_ok=True)
        return identity


def _request_id(path: Path, token_id: TokenId) -> str:
    """Written down before it is sent, so that a repetition after a kill is known for one."""
    if (before := _asked(path, token_id)) is not None:
        return before
    made = secrets.token_hex(16)
    write_private(path, json.dumps({"token_id": token_id, "request_id": made}) + "\n")
    return made


def _asked(path: Path, token_id: TokenId) -> str | None:
    """The request id of an enrolment with this token that has not come to its end."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return str(kept["request_id"]) if kept["token_id"] == token_id else None
    except (OSError, ValueError, KeyError, TypeError):
        # None, or of another time.
        return None

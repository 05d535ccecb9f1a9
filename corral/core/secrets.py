"""Named values per project: encrypted at rest, given to a live lease only, kept out of everything stored."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from corral.core.audit import Author, note
from corral.core.leases.fence import fence
from corral.core.policy import ServerPolicy
from corral.core.quotas import check_room
from corral.domain.errors import InvalidInput, NotFound, SecretExposed, found
from corral.domain.leases import LeaseKey
from corral.domain.redact import MIN_SECRET_BYTES, SecretValues, StreamScanner
from corral.domain.secrets import Secret
from corral.ports.secrets import Cipher
from corral.store.transaction import Tx


def put(tx: Tx, cipher: Cipher, project: str, name: str, value: str, *, by: Author) -> Secret:
    if "\0" in value:
        raise InvalidInput(f"the value of {name} holds a NUL byte, which no environment variable can")
    secret = Secret(project, name, cipher.encrypt(value, context=f"{project}/{name}"), by.now)
    before = tx.secrets.get(project, name)
    check_room(tx, project, len(secret.ciphertext) - (0 if before is None else len(before.ciphertext)))
    tx.secrets.put(secret)
    note(tx, "secret.set", f"secret:{project}/{name}", by)
    return secret


def remove(tx: Tx, project: str, name: str, *, by: Author) -> None:
    if not tx.secrets.delete(project, name):
        raise NotFound(f"project {project} has no secret {name}", hint="`corral secrets ls` lists them.")
    note(tx, "secret.remove", f"secret:{project}/{name}", by)


def is_redacted(value: str) -> bool:
    """Shorter values would blot out ordinary text, so they are not searched for in output."""
    return len(value.encode()) >= MIN_SECRET_BYTES


def listed(tx: Tx, cipher: Cipher, project: str) -> list[tuple[Secret, bool]]:
    """The project's secrets, and of each whether it is kept out of output."""
    return [(one, is_redacted(_value(cipher, one))) for one in tx.secrets.of_project(project)]


def of_project(tx: Tx, cipher: Cipher, project: str) -> SecretValues:
    """Every value of the project, to search for; used where something is about to be stored."""
    return SecretValues({one.name: _value(cipher, one) for one in tx.secrets.of_project(project)})


def _value(cipher: Cipher, secret: Secret) -> str:
    return cipher.decrypt(secret.ciphertext, context=f"{secret.project}/{secret.name}")


class SecretRedactor:
    """Takes every secret of a project out of what its workers report: also one that a run does not name, and
    has from elsewhere. What is searched for is made anew when a secret changes."""

    def __init__(self, cipher: Cipher) -> None:
        self._cipher = cipher
        self._known: dict[str, tuple[tuple[Secret, ...], SecretValues]] = {}

    def of(self, tx: Tx, project: str) -> SecretValues | None:
        """None if the project has no secrets."""
        stored = tuple(tx.secrets.of_project(project))
        if not stored:
            self._known.pop(project, None)
            return None
        known = self._known.get(project)
        if known is None or known[0] != stored:
            known = self._known[project] = (stored, of_project(tx, self._cipher, project))
        return known[1]


def hidden(value: Any, values: SecretValues) -> Any:
    """The same JSON without secrets, in keys and in texts."""
    if isinstance(value, str):
        return values.redact_text(str(value))
    if isinstance(value, dict):
        return {values.redact_text(key): hidden(inner, values) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [hidden(inner, values) for inner in value]
    return value


def refuse_exposed(tx: Tx, cipher: Cipher, project: str, text: str, *, what: str) -> None:
    """SecretExposed if the text holds a secret's value: it would be stored and shown in clear."""
    if not tx.secrets.of_project(project):
        return
    if (name := of_project(tx, cipher, project).find(text.encode())) is not None:
        raise SecretExposed(f"{what} contains the value of the secret {name}")


def refuse_file(secrets: SecretValues, path: str, chunks: Iterable[bytes]) -> None:
    """SecretExposed if the file's bytes hold a secret's value. Blocks."""
    scanner = StreamScanner(secrets)
    for chunk in chunks:
        if (name := scanner.feed(chunk)) is not None:
            raise SecretExposed(
                f"the file {path!r} contains the value of the secret {name}",
                hint="Keep it out with `.corralignore`, and name the secret in `secrets` instead.",
            )


def for_lease(tx: Tx, cipher: Cipher, key: LeaseKey, *, now: float, policy: ServerPolicy) -> dict[str, str]:
    """The values that the run names. Asked for just before the child starts; never spooled."""
    _, run = fence(tx, key, now=now, policy=policy)
    values: dict[str, str] = {}
    for name in json.loads(tx.runs.spec(run.id)).get("secrets", []):
        hint = f"Set it with `corral secrets set {name}`."
        missing = f"project {run.project} has no secret {name}"
        values[name] = _value(cipher, found(tx.secrets.get(run.project, name), missing, hint=hint))
    return values

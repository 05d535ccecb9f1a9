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
from corral.domain.secrets.redact import MIN_SECRET_BYTES, SecretValues, StreamScanner
from corral.domain.secrets.secrets import Secret
from corral.ports.secrets import Cipher
from corral.store.transaction import Tx

# Of all secrets of a project, encrypted: about 190 KiB of values.
MOST_BYTES = 256 << 10


def put(tx: Tx, cipher: Cipher, project: str, name: str, value: str, *, by: Author) -> Secret:
    if "\0" in value:
        raise InvalidInput(f"the value of {name} holds a NUL byte, which no environment variable can")
    secret = Secret(project, name, cipher.encrypt(value, context=f"{project}/{name}"), by.now)
    before = tx.secrets.get(project, name)
    adding = len(secret.ciphertext) - (0 if before is None else len(before.ciphertext))
    _check_most(tx, project, adding)
    check_room(tx, project, adding)
    tx.secrets.put(secret)
    note(tx, "secret.set", f"secret:{project}/{name}", by)
    return secret


def _check_most(tx: Tx, project: str, adding: int) -> None:
    """All of them are looked for in every line that the project's runs print."""
    if adding > 0 and tx.secrets.bytes_of(project) + adding > MOST_BYTES:
        raise InvalidInput(
            f"the secrets of project {project} would have more than {MOST_BYTES} bytes in all, encrypted",
            hint="Remove some with `corral secrets rm`; what is large and no secret belongs into a file.",
        )


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


def _value(cipher: Cipher, secret: Secret) -> str:
    return cipher.decrypt(secret.ciphertext, context=f"{secret.project}/{secret.name}")


class SecretRedactor:
    """Every value of a project, to search for where something is about to be stored: also one that a run does
    not name, and has from elsewhere. What is searched for is made anew only when a secret changes."""

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
            values = SecretValues({one.name: _value(self._cipher, one) for one in stored})
            known = self._known[project] = (stored, values)
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


def refuse_exposed(tx: Tx, redactor: SecretRedactor, project: str, text: str, *, what: str) -> None:
    """SecretExposed if the text holds a secret's value: it would be stored and shown in clear."""
    values = redactor.of(tx, project)
    if values is not None and (name := values.find(text.encode())) is not None:
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

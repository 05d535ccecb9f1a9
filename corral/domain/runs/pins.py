"""What a lock may say: exact versions with their hashes, nothing that makes a host read or run more."""

from __future__ import annotations

import re

from corral.domain.errors import InvalidInput

_PIN = re.compile(r"[a-z0-9][a-z0-9._-]*(\[[a-z0-9._, -]*\])?==[a-z0-9.!+_-]+", re.ASCII | re.IGNORECASE)
_HASH = re.compile(r"--hash=sha(256|384|512):[0-9a-f]{64,128}", re.ASCII)
# For which hosts: names, versions and operators. No `@`, `$`, `#`, `:` or `/`: no URL, variable or path.
_MARKER = re.compile(r"[a-z0-9_.'\"()<>=!~,+* -]*", re.ASCII | re.IGNORECASE)
_SHOWN_CHARS = 80


def check_pins(lock: str) -> None:
    """InvalidInput, with the line that is at fault."""
    # Comments go first, as they do before uv reads it: one must not carry the next line with it.
    lines = [line.rstrip() for line in lock.splitlines()]
    kept = [line for line in lines if line and not line.lstrip().startswith("#")]
    for line in "\n".join(kept).replace("\\\n", " ").splitlines():
        if not _is_pin(line):
            raise InvalidInput(
                f"the lock has the line {line.strip()[:_SHOWN_CHARS]!r}, not an exact version with its hash",
                hint="Hosts install `name==version --hash=sha256:...` from an index or a folder of wheels,"
                " and take no URL, path or option. Name published packages.",
            )


def _is_pin(line: str) -> bool:
    words = line.split()
    hashes = [word for word in words if word.startswith("--hash")]
    rest = " ".join(words[: len(words) - len(hashes)])
    pin, _, marker = rest.partition(";")
    return (
        line.isascii()
        and line.isprintable()
        and bool(hashes)
        and words[len(words) - len(hashes) :] == hashes
        and all(map(_HASH.fullmatch, hashes))
        and _PIN.fullmatch(pin.strip()) is not None
        and _MARKER.fullmatch(marker) is not None
        and " -" not in f" {marker}"
    )

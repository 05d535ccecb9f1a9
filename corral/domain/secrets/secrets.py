"""Named values of a project that are encrypted at rest, and names of variables that look like theirs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple


class Secret(NamedTuple):
    """Encrypted with a key that is not in the database."""

    project: str
    name: str
    ciphertext: str
    updated_at: float


# A name that holds one of these words is that of a secret, wherever the word stands.
_WORDS = frozenset(
    {"SECRET", "SECRETS", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS", "APIKEY", "PAT"}
)


# What makes a key a secret one; other keys sort, index and map.
_SECRET_KEYS = frozenset(
    {"API", "ACCESS", "PRIVATE", "SECRET", "SIGNING", "ENCRYPTION", "MASTER", "AUTH", "SSH"}
)


# Tokens that models read, which nobody has to hide.
_OF_MODELS = frozenset({"PAD", "EOS", "BOS", "UNK", "MASK", "SEP", "CLS", "STOP", "START", "END", "IMAGE"})


# What such a name ends in where its value only says where the secret is, or of which kind.
_ABOUT = frozenset(
    {"FILE", "PATH", "DIR", "FOLDER", "NAME", "ID", "URL", "URI", "TYPE", "TTL", "LENGTH", "ENV"}
)


# Switches: nobody's secret is one of these.
_NO_SECRETS = frozenset({"", "0", "1", "true", "false", "yes", "no", "on", "off", "none", "null"})


def secret_names(env: Mapping[str, str], public: Collection[str] = ()) -> list[str]:
    """Those whose names look like secrets', but for the ones that are said to be public."""
    return [name for name, value in env.items() if name not in public and looks_secret(name, value)]


def looks_secret(name: str, value: str) -> bool:
    words = name.upper().strip("_").split("_")
    if value.strip().lower() in _NO_SECRETS or words[-1] in _ABOUT:
        return False
    if _WORDS.intersection(words):
        return True
    before = words[-2] if len(words) > 1 else ""
    if words[-1] == "TOKEN":
        return before not in _OF_MODELS
    return words[-1] == "KEY" and before in _SECRET_KEYS


def refusal(name: str) -> str:
    """What is said of a name that looks so where plain variables are given."""
    return (
        f"looks like the name of a secret, and whoever sees the run reads it here: store it with"
        f" `corral secrets set {name}` and name it in `secrets`; if it is none, name it in `public_env`"
    )

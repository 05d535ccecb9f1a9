"""The only reader of the environment. Everything else is given its settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from corral.domain.errors import FieldError, InvalidInput
from corral.domain.webhooks.addresses import parse_networks
from corral.wire.faults import in_words


class Settings(BaseModel):
    """Every setting is an environment variable: `CORRAL_` and the field's name in capitals."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    home: Path = Path("~/.corral")
    url: str | None = None
    token: str | None = None
    ca: Path | None = None
    plain_http: Literal["refuse", "allow"] = "refuse"
    project: str = "default"
    patience_s: float = Field(
        600, ge=0, le=30 * 86400, description="How long a program waits for a server that is away."
    )

    placed_tokens: Path | None = Field(
        None, description="Of a worker that an executor brought up: the file or folder with its tokens."
    )
    placed_rank: int = Field(0, ge=0, le=100_000, description="Which of the tokens is its own.")
    placed_ca: str | None = Field(
        None, description="The certificate of the authority that it trusts, as PEM."
    )

    host: str = "127.0.0.1"
    port: int = Field(7373, ge=0, le=65535)
    database: str | None = Field(None, description="A postgresql:// URL; the default is SQLite in `home`.")
    storage_url: str | None = Field(
        None,
        pattern=r"^(s3|gs|az)://[^/?#]+(/[^/?#]+)*/?$",
        description="The bucket of stored files; the default is a folder in `home`.",
    )
    storage_endpoint: str | None = Field(
        None, pattern=r"^https?://[^/?#]+/?$", description="Of a store that speaks S3 and is not Amazon's."
    )

    tls: Literal["auto", "on", "off"] = "auto"
    tls_names: str = ""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    tls_clients: Literal["off", "require"] = "off"
    tls_leaf_s: float = Field(30 * 86400, gt=0, le=397 * 86400)
    host_token_s: float = Field(90 * 86400, gt=0, le=10 * 366 * 86400)
    rotation_overlap_s: float = Field(300, ge=0, le=86400)

    lease_s: float = Field(30, gt=0, le=3600)
    first_beat_s: float = Field(10, gt=0, le=3600)
    rate: float = Field(500, ge=0, le=1e6, description="Calls per second and token; 0 is without limit.")
    rate_burst: int = Field(5000, ge=1, le=10_000_000)
    wrong_token_rate: float = Field(10, ge=0, le=1e6)
    open_rate: float = Field(50, ge=0, le=1e6)
    head_s: float = Field(10, gt=0, le=3600)
    waiting_per_address: int = Field(1000, ge=1, le=1_000_000)
    body_idle_s: float = Field(30, gt=0, le=3600)
    body_rate: float = Field(1024, ge=0, le=1e9)
    public_body_s: float = Field(30, gt=0, le=3600)
    public_body_bytes: int = Field(4 << 20, ge=1024)
    public_bodies: int = Field(8, ge=1, le=100_000)
    max_body_bytes: int = Field(32 << 20, ge=1024)
    max_blob_bytes: int = Field(1 << 40, ge=1024)
    min_free_bytes: int = Field(64 << 20, ge=0, description="Uploads stop while the disk has less than this.")
    hand_over: Literal["on", "off"] = Field(
        "on", description="Large payloads of clients on this machine are moved, not sent."
    )
    log_quota_bytes: int = Field(256 << 20, ge=1024)
    log_retention_s: float = Field(30 * 86400, gt=0)
    upload_retention_s: float = Field(7 * 86400, gt=0)
    blob_grace_s: float = Field(3600, ge=0)
    user_pin_s: float = Field(86400, gt=0)

    webhook_allow: str = Field(
        "", description="Networks that webhooks may reach though they are not public, with commas between."
    )
    ageing_s: float | None = Field(None, gt=0, description="Seconds of waiting for one point of priority.")
    reserve_after_s: float = Field(60, ge=0)
    preemption: Literal["on", "off"] = "on"
    models: str = Field(
        "", description="Models that may be trained, by id or by how it begins, with commas between."
    )

    worker_name: str | None = None
    worker_slots: int | None = Field(None, ge=1, le=10_000)
    worker_labels: str = ""
    worker_address: str | None = Field(
        None,
        pattern=r"^[0-9A-Za-z.:%_-]+$",
        max_length=255,
    )
    gpu_check: Literal["on", "off"] = Field(
        "on", description="`off`: GPUs count though CUDA was not tried on them."
    )
    isolation: Literal["auto", "off", "require"] = Field(
        "auto",
        description="Whether runs are kept from this host's files, its tokens and each other's folders.",
    )
    hide: str = Field("", description="More folders that runs must not see, with colons between.")
    writable: str = Field(
        "", description="More folders that isolated runs may write to, with colons between."
    )

    @field_validator("webhook_allow")
    @classmethod
    def _are_networks(cls, value: str) -> str:
        parse_networks(value)
        return value

    @property
    def project_is_open(self) -> bool:
        """Whether the token may say which project is meant: nobody named one, and it may be bound to one."""
        return "project" not in self.model_fields_set and self.token is not None

    @property
    def server_file(self) -> Path:
        return self.home / "server.json"

    @property
    def database_file(self) -> Path:
        """Where SQLite keeps it, unless `database` names another."""
        return self.home / "corral.db"

    @property
    def installation_file(self) -> Path:
        return self.home / "installation.json"

    @property
    def storage_file(self) -> Path:
        """Which bucket the stored files of this home are in."""
        return self.home / "storage.json"

    @property
    def operator_token_file(self) -> Path:
        return self.home / "operator.token"

    @property
    def hidden_from_runs(self) -> list[Path]:
        """Where this machine keeps its tokens, its key and others' files; those of its user too."""
        # Through the sockets in the last, other programs of the same user would act for a run.
        named = (Path("~/.corral"), *_folders(self.hide), Path("/run/user"))
        if self.placed_tokens is not None:
            # Other workers of the same user have their homes beside its own.
            named = (*named, self.placed_tokens, self.home.parent)
        there = (folder.expanduser() for folder in named)
        return [self.home, *(folder for folder in there if folder.is_dir())]

    @property
    def writable_by_runs(self) -> list[Path]:
        return [folder.expanduser() for folder in _folders(self.writable)]

    @property
    def worker_home(self) -> Path:
        return self.home / "worker"


def _folders(text: str) -> list[Path]:
    return [Path(folder) for folder in text.split(":") if folder]


def read_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Raise InvalidInput that names each variable that is wrong."""
    environ = os.environ if environ is None else environ
    given = {
        name: environ[f"CORRAL_{name.upper()}"]
        for name in Settings.model_fields
        if environ.get(f"CORRAL_{name.upper()}")
    }
    try:
        settings = Settings.model_validate(given)
    except ValidationError as error:
        fields = [
            FieldError(f"CORRAL_{str(item['loc'][0]).upper()}", in_words(item))
            for item in error.errors(include_url=False, include_input=False)
        ]
        message = "; ".join(f"{f.path} {f.message}" for f in fields)
        raise InvalidInput(
            f"the environment has wrong settings: {message}", hint="Correct or unset them.", fields=fields
        ) from None
    return settings.model_copy(update={"home": settings.home.expanduser().absolute()})


def process_environment() -> dict[str, str]:
    """A copy of this process's environment, to hand on to children."""
    return dict(os.environ)

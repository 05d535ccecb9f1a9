"""A client of the server that functions find too, for scripts and notebooks."""

from __future__ import annotations

from corral.client.corral import Corral
from corral.settings import Settings, read_settings


def connect(settings: Settings | None = None) -> Corral:
    """By CORRAL_URL and CORRAL_TOKEN, or the server of this machine. Close it, or use it in `with`."""
    settings = settings or read_settings()
    return Corral.found(
        url=settings.url,
        token=settings.token,
        home=settings.home,
        ca=settings.ca,
        plain_http=settings.plain_http == "allow",
        patience_s=settings.patience_s,
    )

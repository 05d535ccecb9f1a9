"""A client for the server that the settings name."""

from __future__ import annotations

from corral.client.corral import Corral
from corral.domain.errors import CorralError, ServerUnreachable, Unauthenticated
from corral.settings import Settings, read_settings


def connect(settings: Settings | None = None) -> Corral:
    settings = settings or read_settings()
    try:
        return Corral.found(
            url=settings.url,
            token=settings.token,
            home=settings.home,
            ca=settings.ca,
            patience_s=settings.patience_s,
        )
    except Unauthenticated:
        # A token is of no use for a server that is not there, so that comes first.
        if settings.url is not None:
            _check_reachable(settings.url)
        raise


def _check_reachable(url: str) -> None:
    """Raise ServerUnreachable; any answer at all will do."""
    try:
        with Corral(url, None) as corral:
            corral.health()
    except ServerUnreachable:
        raise
    except CorralError:
        return

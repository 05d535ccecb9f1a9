"""A client for the server that the settings name."""

from __future__ import annotations

from corral.client.corral import Corral
from corral.client.http.discovery import ServerAddress, discover
from corral.domain.errors import CorralError, ServerUnreachable, Unauthenticated
from corral.functions.connect import connect as connect_by
from corral.settings import Settings, read_settings


def connect(settings: Settings | None = None) -> Corral:
    settings = settings or read_settings()
    try:
        return connect_by(settings)
    except Unauthenticated:
        # A token is of no use for a server that is not there, so that comes first.
        if settings.url is not None:
            _check_reachable(settings.url)
        raise


def find_server(settings: Settings) -> ServerAddress:
    return discover(
        url=settings.url,
        token=settings.token,
        home=settings.home,
        ca=settings.ca,
        plain_http=settings.plain_http == "allow",
    )


def own_project(settings: Settings) -> str:
    """The project of what names none: CORRAL_PROJECT, or the one that the token is bound to, or `default`."""
    if not settings.project_is_open:
        return settings.project
    try:
        with connect(settings) as corral:
            return corral.tokens.own_project() or settings.project
    except CorralError:
        # Commands that need no server go on; any other says next what is wrong with this one.
        return settings.project


def _check_reachable(url: str) -> None:
    """Raise ServerUnreachable; any answer at all will do."""
    try:
        with Corral(url, None) as corral:
            corral.health()
    except ServerUnreachable:
        raise
    except CorralError:
        return

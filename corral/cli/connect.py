"""A client for the server that the settings name."""

from __future__ import annotations

from corral.client.api import Corral
from corral.client.discovery import discover
from corral.settings import Settings, read_settings


def connect(settings: Settings | None = None) -> Corral:
    settings = settings or read_settings()
    address = discover(url=settings.url, token=settings.token, home=settings.home)
    return Corral(address.url, address.token)

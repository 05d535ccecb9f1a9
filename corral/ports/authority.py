"""Signing certificates."""

from __future__ import annotations

from typing import Protocol

from corral.domain.ids import HostId


class Authority(Protocol):
    """The installation's own certificate authority."""

    @property
    def ca_pem(self) -> str:
        """The certificate of the authority, for clients that are to trust it."""
        ...

    def sign_host(self, request_pem: str, host_id: HostId, *, now: float, lifetime_s: float) -> str:
        """A client certificate for the key in the request. It names the host, whatever the request asks for.

        Raise InvalidInput unless the text is a signed request with a sound key.
        """
        ...

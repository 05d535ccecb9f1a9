"""Who signs certificates."""

from __future__ import annotations

from typing import Protocol

from corral.domain.ids import HostId


class Authority(Protocol):
    """The installation's own certificate authority."""

    @property
    def ca_pem(self) -> str:
        """Its certificate, for those who are to trust it."""
        ...

    def sign_host(self, request_pem: str, host_id: HostId, *, now: float, lifetime_s: float) -> str:
        """A client certificate for the key in the request, in the name of the host whatever it asks for.

        Raise InvalidInput for what is not a signed request with a sound key.
        """
        ...

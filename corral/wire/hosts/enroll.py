"""How a host joins, and keeps its credential."""

from __future__ import annotations

from pydantic import Field

from corral.wire.base import Answer, Name, RequestId, Strict

_MAX_PEM = 16_384


class CaAnswer(Answer):
    """`ca` is to be checked against a pin that came another way before it is trusted."""

    ca: str | None = None


class RotateCredentialRequest(Strict):
    certificate_request: str | None = Field(
        None, max_length=_MAX_PEM, description="A PKCS #10 request, as PEM."
    )


class EnrollRequest(RotateCredentialRequest):
    """`name` is what the host insists on; `hostname` what it is called where neither it nor the token does.

    The same request id again, with the same token, gets the same host and a fresh credential.
    """

    request_id: RequestId
    name: Name | None = None
    hostname: Name


class HostCredential(Answer):
    """The only time that the token is shown. The certificate, if any, is for the key of the request."""

    token: str
    expires_in_s: float
    certificate: str | None = None


class EnrollAnswer(HostCredential):
    host_id: str
    name: str
    labels: list[str] = []

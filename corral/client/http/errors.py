"""Turns what came back over HTTP, or did not, into the errors that the server raised."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
from pydantic import ValidationError

from corral.domain.errors import CorralError, FieldError, InvalidInput, ServerUnreachable, StoreUnavailable
from corral.domain.protocol import PROTOCOL, SERVER_HEADER, newer_client_hint, parse_protocol
from corral.wire.errors import ErrorBody
from corral.wire.faults import in_words

_EXCERPT_CHARS = 200


def _kinds(parent: type[CorralError]) -> Iterator[type[CorralError]]:
    yield parent
    for child in parent.__subclasses__():
        # A class with arguments of its own cannot be built from a message alone.
        if child.__init__ is CorralError.__init__ and "code" in vars(child):
            yield from _kinds(child)


def rebuild(body: ErrorBody) -> CorralError:
    """The same class that the server raised; CorralError itself for a code that is not known here."""
    kinds = {kind.code: kind for kind in _kinds(CorralError)}
    kind = kinds.get(body.code, CorralError)
    fields = [FieldError(field.path, field.message) for field in body.fields]
    return kind(body.message, hint=body.hint, fields=fields)


def from_response(response: httpx.Response) -> CorralError:
    """The error in an answer whose body was read."""
    try:
        error = rebuild(ErrorBody.model_validate_json(response.content))
    except ValidationError:
        return _not_ours(response)
    server = parse_protocol(response.headers.get(SERVER_HEADER))
    if isinstance(error, InvalidInput) and server < PROTOCOL:
        hint = newer_client_hint(server, response.headers.get("corral-version", ""))
        error = type(error)(error.message, hint=hint, fields=error.fields)
    if isinstance(error, StoreUnavailable) and response.headers.get("retry-after", "").isdecimal():
        error.retry_after_s = float(response.headers["retry-after"][:6])
    return error


def _not_ours(response: httpx.Response) -> CorralError:
    text = " ".join(response.text[:_EXCERPT_CHARS].split())
    message = f"{response.request.url} answered {response.status_code}, but not as Corral does: {text!r}"
    hint = "Check that CORRAL_URL names a Corral server and that no proxy stands between."
    # A gateway in front of a server that is away; worth another try.
    if response.status_code in (502, 503, 504):
        return ServerUnreachable(message, hint=hint)
    return CorralError(message, hint=hint)


def not_an_answer(response: httpx.Response, error: ValidationError) -> CorralError:
    """The status was fine, the body was not what this version expects."""
    if response.headers.get("content-type", "").startswith("application/json"):
        found = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in found["loc"]) or "the body"
        return CorralError(
            f"{response.request.url} gave an answer that this version does not understand: "
            f"{place} {in_words(found)}",
            hint="Install the same version of corral here as on the server.",
        )
    return _not_ours(response)


class UntrustedServer(ServerUnreachable):
    """There is a server, but its certificate does not prove that it is the right one."""

    code = "untrusted_server"


def unreachable(url: str, error: Exception) -> ServerUnreachable:
    """Names the address, and why: refused, timed out, broken off, not trusted."""
    if isinstance(error, httpx.ConnectTimeout | httpx.PoolTimeout):
        why = "the connection timed out"
    elif isinstance(error, httpx.TimeoutException):
        why = "it did not answer in time"
    elif "CERTIFICATE_VERIFY_FAILED" in str(error):
        return _untrusted(url, str(error))
    elif "[SSL" in str(error):
        return ServerUnreachable(f"no TLS with {url}: {error}", hint=_tls_hint(str(error)))
    elif isinstance(error, httpx.ConnectError):
        why = f"cannot connect: {error}"
    else:
        why = f"the connection broke off: {error or type(error).__name__}"
        if isinstance(error, httpx.RemoteProtocolError) and url.startswith("http://"):
            hint = "If that server speaks TLS, write its address with https://."
            return ServerUnreachable(f"no answer from {url}: {why}", hint=hint)
    return ServerUnreachable(f"no answer from {url}: {why}")


def _untrusted(url: str, why: str) -> UntrustedServer:
    if "mismatch" in why:
        hint = "Use a name or address that it is for, or add this one to CORRAL_TLS_NAMES on the server."
        return UntrustedServer(f"the certificate of {url} is for other names: {_reason(why)}", hint=hint)
    if "expired" in why or "not yet valid" in why:
        hint = "Check the clock of this machine; the server renews its own certificate by itself."
        return UntrustedServer(f"the certificate of {url} does not hold now: {_reason(why)}", hint=hint)
    return UntrustedServer(
        f"the certificate of {url} comes from nobody that is trusted here: {_reason(why)}",
        hint="Set CORRAL_CA to the server's `tls/ca.pem`, or use a token as `corral tokens` prints it, "
        "with the pin behind the dot.",
    )


def _reason(why: str) -> str:
    """OpenSSL's own words, without where in its source they come from."""
    return why.partition("certificate verify failed: ")[2].partition(" (_ssl")[0] or why


def _tls_hint(why: str) -> str:
    if "WRONG_VERSION_NUMBER" in why or "RECORD_LAYER" in why:
        return "That server may speak plain HTTP: write its address with http://."
    if "ALERT" in why:
        return "The server refused this machine's client certificate; enrol the host again."
    return ServerUnreachable.hint

"""The answers of an API server that refuses: a Status with code, reason, message and causes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from support.kubernetes_server.objects import Json


@dataclass(frozen=True)
class FieldError:
    """What is wrong with one field, in the words of Kubernetes' field errors."""

    reason: str
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


def required(field: str, detail: str = "") -> FieldError:
    return FieldError("FieldValueRequired", field, f"Required value{detail and ': ' + detail}")


def invalid_value(field: str, value: Any, detail: str) -> FieldError:
    return FieldError("FieldValueInvalid", field, f"Invalid value: {json.dumps(value)}: {detail}")


def not_supported(field: str, value: Any, supported: Sequence[str]) -> FieldError:
    known = ", ".join(json.dumps(one) for one in supported)
    message = f"Unsupported value: {json.dumps(value)}: supported values: {known}"
    return FieldError("FieldValueNotSupported", field, message)


def forbidden_field(field: str, detail: str) -> FieldError:
    return FieldError("FieldValueForbidden", field, f"Forbidden: {detail}")


def duplicate(field: str, value: Any) -> FieldError:
    return FieldError("FieldValueDuplicate", field, f"Duplicate value: {json.dumps(value)}")


def too_long(field: str, limit: int) -> FieldError:
    return FieldError("FieldValueTooLong", field, f"Too long: may not be more than {limit} bytes")


def too_many(field: str, count: int, limit: int) -> FieldError:
    return FieldError("FieldValueTooMany", field, f"Too many: {count}: must have at most {limit} items")


def value_not_found(field: str, value: Any) -> FieldError:
    return FieldError("FieldValueNotFound", field, f"Not found: {json.dumps(value)}")


class ApiError(Exception):
    """A request that ends with a Status of failure."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: Json | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.retry_after_s = retry_after_s

    def status(self) -> Json:
        body: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        details = dict(self.details or {})
        if self.retry_after_s is not None:
            details["retryAfterSeconds"] = self.retry_after_s
        return body | ({"details": details} if details else {})


def _details(qualified: str, name: str) -> Json:
    plural, _, group = qualified.partition(".")
    details = {"name": name} if name else {}
    return details | ({"group": group} if group else {}) | {"kind": plural}


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def unauthorized() -> ApiError:
    return ApiError(401, "Unauthorized", "Unauthorized")


def forbidden(qualified: str, name: str, message: str) -> ApiError:
    """`qualified` is a resource with its group: `jobs.batch`, or `pods`."""
    named = f'{qualified} "{name}"' if name else qualified
    return ApiError(403, "Forbidden", f"{named} is forbidden: {message}", details=_details(qualified, name))


def not_found(qualified: str, name: str) -> ApiError:
    message = f'{qualified} "{name}" not found'
    return ApiError(404, "NotFound", message, details=_details(qualified, name))


def no_such_path() -> ApiError:
    return ApiError(404, "NotFound", "the server could not find the requested resource", details={})


def method_not_allowed() -> ApiError:
    message = "the server does not allow this method on the requested resource"
    return ApiError(405, "MethodNotAllowed", message, details={})


def already_exists(qualified: str, name: str) -> ApiError:
    message = f'{qualified} "{name}" already exists'
    return ApiError(409, "AlreadyExists", message, details=_details(qualified, name))


def conflict(qualified: str, name: str, detail: str) -> ApiError:
    message = f'Operation cannot be fulfilled on {qualified} "{name}": {detail}'
    return ApiError(409, "Conflict", message, details=_details(qualified, name))


def expired(message: str) -> ApiError:
    return ApiError(410, "Expired", message)


def unsupported_media_type(given: str, accepted: Sequence[str]) -> ApiError:
    message = (
        "the body of the request was in an unknown format - accepted media types include: "
        f"{', '.join(accepted)} (got {given or 'none'})"
    )
    return ApiError(415, "UnsupportedMediaType", message)


def invalid(kind: str, group: str, name: str, errors: Sequence[FieldError]) -> ApiError:
    words = [str(error) for error in errors]
    said = words[0] if len(words) == 1 else f"[{', '.join(words)}]"
    qualified = f"{kind}.{group}" if group else kind
    causes = [{"reason": e.reason, "message": e.message, "field": e.field} for e in errors]
    details: Json = {"name": name} if name else {}
    details |= {"group": group} if group else {}
    details |= {"kind": kind, "causes": causes}
    return ApiError(422, "Invalid", f'{qualified} "{name}" is invalid: {said}', details=details)


def too_many_requests(retry_after_s: int) -> ApiError:
    message = "the server has received too many requests and has asked us to try again later"
    return ApiError(429, "TooManyRequests", message, retry_after_s=retry_after_s)


def server_failure(code: int) -> ApiError:
    """A failure that a test asked for."""
    reason = {500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout"}.get(code, "InternalError")
    return ApiError(code, reason, f"a failure that the test asked for ({code})")

"""Calls to AWS over its own client, with errors in the words of the port."""

from __future__ import annotations

import importlib
import threading
from typing import Any

from corral.adapters.executors.sagemaker.options import SageMakerOptions
from corral.domain.errors import CorralError
from corral.ports.executor import ExecutorUnreachable

Json = dict[str, Any]
INSTALL = "pip install 'corral[sagemaker]'"
_TRIES = 3
_CONNECT_S = 5.0
_READ_S = 30.0
# AWS does not know us: other credentials might do.
_UNKNOWN_CALLER = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
_DENIED = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"})
# The client has tried these again by itself.
_PASSING = frozenset(
    {
        "InternalFailure",
        "InternalServiceError",
        "LimitExceededException",
        "RequestLimitExceeded",
        "ServiceUnavailable",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)


class AwsRefusal(CorralError):
    """AWS understood a request and said no."""

    code = "aws_refused"
    hint = "`corral executors check NAME` says what is missing."

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class AwsDenied(ExecutorUnreachable):
    """AWS does not accept our credentials, or does not allow this with them."""

    code = "aws_denied"

    def __init__(self, message: str, *, known: bool, hint: str) -> None:
        super().__init__(message, hint=hint)
        # Whether the caller is known and only not allowed.
        self.known = known


class AwsSdkMissing(ExecutorUnreachable):
    """The client of AWS is not installed where the server runs."""

    code = "aws_sdk_missing"
    hint = f"Install it where the server runs: {INSTALL}."


class AwsApi:
    """`call` may be used from any thread; clients are made when they are first needed."""

    def __init__(self, options: SageMakerOptions, *, session: Any = None) -> None:
        self._options = options
        self._session = session
        self._clients: dict[str, Any] = {}
        self._lock = threading.Lock()

    def call(self, service: str, operation: str, **request: object) -> Json:
        errors = _module("botocore.exceptions")
        try:
            answer: Json = getattr(self._client(service), operation)(**request)
        except errors.ClientError as error:
            raise _said_no(error.response.get("Error", {}), operation) from error
        except errors.ParamValidationError as error:
            raise AwsRefusal("ParamValidation", str(error)) from error
        except (errors.NoCredentialsError, errors.PartialCredentialsError, errors.ProfileNotFound) as error:
            raise AwsDenied(f"AWS gets no credentials: {error}", known=False, hint=_LOG_IN) from error
        except errors.NoRegionError as error:
            hint = "Set the option `region`, or AWS_DEFAULT_REGION where the server runs."
            raise AwsDenied(str(error), known=False, hint=hint) from error
        except (errors.BotoCoreError, OSError) as error:
            raise ExecutorUnreachable(f"AWS does not answer ({service} {operation}): {error}") from error
        return answer

    def pages(self, service: str, operation: str, field: str, **request: object) -> list[Json]:
        found: list[Json] = []
        while True:
            answer = self.call(service, operation, **request)
            found += answer.get(field) or []
            if not answer.get("NextToken"):
                return found
            request["NextToken"] = answer["NextToken"]

    def _client(self, service: str) -> Any:
        with self._lock:
            if self._session is None:
                about = {"region_name": self._options.region, "profile_name": self._options.profile}
                self._session = _module("boto3").Session(**about)
            if service not in self._clients:
                config = _module("botocore.config").Config(
                    connect_timeout=_CONNECT_S,
                    read_timeout=_READ_S,
                    retries={"mode": "standard", "total_max_attempts": _TRIES},
                )
                self._clients[service] = self._session.client(service, config=config)
            return self._clients[service]

    def close(self) -> None:
        with self._lock:
            made, self._clients = self._clients, {}
        for client in made.values():
            client.close()


_LOG_IN = (
    "Give the server credentials: an instance role, `aws configure --profile NAME` with the option `profile`,"
    " or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in its environment."
)


def _said_no(error: Json, operation: str) -> CorralError:
    name, message = str(error.get("Code", "")), str(error.get("Message", ""))
    if name in _UNKNOWN_CALLER:
        return AwsDenied(f"AWS does not take our credentials ({name}): {message}", known=False, hint=_LOG_IN)
    if name in _DENIED:
        hint = f"Allow {operation} to the server's user or role; docs/howto/sagemaker.md has the policy."
        return AwsDenied(f"AWS forbids this: {message}", known=True, hint=hint)
    if name in _PASSING or name.isdigit():
        return ExecutorUnreachable(f"AWS is not able to answer ({name}): {message}")
    return AwsRefusal(name, message)


def _module(name: str) -> Any:
    # Only whoever has this executor pays for the library.
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise AwsSdkMissing("the client of AWS, boto3, is not installed") from error

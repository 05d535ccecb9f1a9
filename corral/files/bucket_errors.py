"""What went wrong with a bucket, in words: what, where, and what to do next. Standard library only."""

from __future__ import annotations

import re

from corral.errors import CorralError

_CODE = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
_STATUS = re.compile(r"status code: (\d{3})")
_CREDENTIALS = frozenset(
    {"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired"}
)
_ANOTHER_REGION = frozenset(
    {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraint"}
)
_RIGHTS = "get, put, delete and list objects, and abort multipart uploads"
_SET_CREDENTIALS = (
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (AWS_SESSION_TOKEN too for a session), or give this "
    "machine a role."
)


class BucketError(CorralError):
    """The store did not do what was asked, though it was tried again."""

    code = "bucket_error"
    hint = "Try again; if it persists, look at the state of the store and of the network."


class BucketRefused(BucketError):
    """Trying again does not help: the bucket, its address or the credentials are wrong."""

    code = "bucket_refused"


def explain(error: Exception, doing: str, where: str) -> BucketError:
    """`doing` completes "cannot ..."."""
    if isinstance(error, BucketError):
        return error
    text = str(error)
    code, said = _first(_CODE, text), _first(_MESSAGE, text)
    status = _first(_STATUS, text)
    what = f"cannot {doing} in {where}"
    refused = _refused(text, code, status, where)
    if refused is not None:
        return BucketRefused(f"{what}: {refused[0]}", hint=refused[1])
    if code or status:
        return BucketError(
            f"{what}: the store answered {' '.join(part for part in (status, code, said) if part)}"
        )
    if "error sending request" in text:
        return BucketError(
            f"{what}: the store cannot be reached",
            hint="Check the endpoint and the network here.",
        )
    return BucketError(f"{what}: {text.splitlines()[0] if text else type(error).__name__}")


def _refused(text: str, code: str, status: str, where: str) -> tuple[str, str] | None:
    """What is wrong and what to do, where another try would fail as well."""
    if "169.254.169.254" in text or "169.254.170" in text:
        return "no credentials were found", _SET_CREDENTIALS
    if code == "NoSuchBucket":
        return "there is no such bucket", "Create it, or correct its name in the URL."
    if code in _CREDENTIALS or status == "401":
        return f"the store does not accept the credentials ({code or status})", _SET_CREDENTIALS
    if code in _ANOTHER_REGION or status == "301":
        return "the bucket is in another region", "Set AWS_REGION to the region of the bucket."
    if status == "403":
        return (
            f"the credentials do not allow it ({code or status})",
            f"Allow them to {_RIGHTS} below {where}.",
        )
    if "Account must be specified" in text:
        return "the storage account is not known", "Set AZURE_STORAGE_ACCOUNT_NAME, and its key or a role."
    if "Unable to recognise URL" in text:
        return (
            "this is no address of a store",
            "Name it as s3://bucket/prefix, gs://bucket/prefix or az://container/prefix.",
        )
    return None


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found.group(1) if found else ""

"""What the server and the parts around it raise on purpose; `corral.errors` has the root and the tree."""

from __future__ import annotations

from typing import TypeVar

from corral.errors import CorralError as CorralError
from corral.errors import FieldError as FieldError
from corral.errors import VolumeConflict as VolumeConflict

T = TypeVar("T")
# For whoever wrote what a run is, in a run file or in a request; it helps with nothing else.
PARAMS_HINT = "Nothing was queued. Correct the parameters that are named."
SPEC_HINT = "Correct the fields named above; `corral schema` prints what is allowed."
RUN_HINT = "Check the id with `corral ls`; what belongs to another project is not shown."


class InvalidInput(CorralError):
    """The request or the run file is wrong; `fields` says where."""

    code = "invalid_input"


class NotFound(CorralError):
    code = "not_found"
    hint = "Check the id or the name; what belongs to another project is not shown."


def found(record: T | None, message: str, *, hint: str = "") -> T:
    """The record; NotFound with this message if there is none."""
    if record is None:
        raise NotFound(message, hint=hint)
    return record


class Ambiguous(CorralError):
    """A prefix or a name fits more than one thing."""

    code = "ambiguous"
    hint = "Give more characters of the id."


class Conflict(CorralError):
    """The thing is in a state that does not allow this."""

    code = "conflict"


class NoObject(NotFound):
    """The lease is good, and its attempt has no object of that name."""

    code = "no_object"
    hint = "Wait for it with `wait_s`, or check its name."


class PreconditionFailed(CorralError):
    """The object is not as `If-Match` or `If-None-Match` says: somebody else was first."""

    code = "precondition_failed"
    hint = "Read it again, and decide anew."


class LeaseLost(CorralError):
    """The caller's epoch is no longer the newest, or its rank is not live: it must stop its child."""

    code = "lease_lost"
    hint = "Stop the child; another worker may hold this run now."


class AlreadyFinal(CorralError):
    """A different outcome was already accepted for this lease."""

    code = "already_final"
    hint = "The first outcome stands; see `corral show`."


class BlobMissing(CorralError):
    """A manifest names blobs that the store does not hold for this project."""

    code = "blob_missing"
    hint = "Upload the missing blobs, then commit the manifest again."


class DigestMismatch(CorralError):
    """The bytes are not those that were announced."""

    code = "digest_mismatch"
    hint = "The file changed or was damaged on the way; upload it again."


class OffsetMismatch(CorralError):
    """A resumed upload does not start where the partial ends."""

    code = "offset_mismatch"
    hint = "Ask for the offset and go on from there."


class SequenceGap(CorralError):
    """A batch of log or metric records arrived before the one that comes first."""

    code = "sequence_gap"
    hint = "Send the batches from the number that the message names."


class TooLarge(CorralError):
    code = "too_large"
    hint = "Send less at once, or raise the limit in the server's settings."


class RepeatedField(CorralError):
    """A field that says what the body is stands in the request's head more than once."""

    code = "repeated_field"
    hint = "Send the field once."


class Unauthenticated(CorralError):
    code = "unauthenticated"
    hint = "Set CORRAL_TOKEN, or run `corral up` on this machine, which writes one."


class Forbidden(CorralError):
    code = "forbidden"
    hint = "Use a token with the scope that the message names."


class SecretExposed(CorralError):
    """Something that would be stored in clear contains a secret's value."""

    code = "secret_exposed"
    hint = "Name the secret in `secrets` instead of writing its value; the child gets it as environment."


class StoreUnavailable(CorralError):
    """The database, disk or object store cannot take writes now; nothing was changed."""

    code = "store_unavailable"
    # When it is worth another try.
    retry_after_s: float = 1.0
    hint = "Try again shortly; nothing was changed. If it persists, check the server's disk and log."


class StoreDamaged(StoreUnavailable):
    """The database itself says that its pages or indexes are damaged; trying again does not help."""

    code = "store_damaged"
    retry_after_s = 30.0
    hint = (
        "See what is harmed with `corral fsck`, stop the server with `corral down`, "
        "and restore a backup with `corral restore`."
    )


class DiskFull(StoreUnavailable):
    code = "disk_full"
    hint = "Free space on the server's disk, then try again; nothing was changed."


class RateLimited(StoreUnavailable):
    """Too many calls with one token, or too many wrong tokens from one address; nothing was changed."""

    code = "rate_limited"
    hint = "Wait as long as Retry-After says, as the client does by itself; CORRAL_RATE sets the limit."


class ProjectFull(StoreUnavailable):
    """The project's files have as many bytes as its quota allows. A worker waits until there is room."""

    code = "project_full"


class QuotaExceeded(CorralError):
    """The project would have more than its quota allows."""

    code = "quota_exceeded"
    hint = "Wait until it has less, or let an operator raise it with `corral quotas set PROJECT`."


class AddressRefused(CorralError):
    """A webhook's address is one that the server does not send to."""

    code = "address_refused"
    hint = "Give a public https:// address, or let an operator list its network in CORRAL_WEBHOOK_ALLOW."


class ServerUnreachable(CorralError):
    code = "server_unreachable"
    hint = "Start it with `corral up --detach`, or set CORRAL_URL to where it runs."


class VersionMismatch(CorralError):
    code = "version_mismatch"
    hint = "Install the same major version of corral on both sides."


class IllegalTransition(CorralError):
    """A state and an event that the table does not join: a defect or a race, never a user's fault."""

    code = "illegal_transition"

"""Webhooks: what is asked for, what is told of them, and what they send."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic import JsonValue as Json

from corral.domain.webhooks.deliveries import ENDS, TYPES, is_pattern
from corral.wire.base import Answer, AnswerPage, Duration, Name, Strict


def _known(pattern: str) -> str:
    if not is_pattern(pattern):
        raise ValueError(f"is not a type of notice; there are {', '.join(TYPES)}, `run.*` and `call.*`")
    return pattern


Pattern = Annotated[str, AfterValidator(_known)]


class WebhookRequest(Strict):
    """`events` are types, or `run.*` and `call.*` for all of a kind; without a project, of all projects."""

    name: Name
    url: str = Field(max_length=2048)
    events: list[Pattern] = Field(default=list(ENDS), min_length=1, max_length=50)
    project: Name | None = None
    format: Literal["corral", "slack"] = "corral"
    # One is made when it is left out.
    secret: str | None = Field(None, max_length=200)


LONGEST_KEEP_S = 30 * 86_400.0


class RotateWebhookRequest(Strict):
    """A new secret; one is made when it is left out. For `keep_s` notices are signed with both."""

    secret: str | None = Field(None, max_length=200)
    keep_s: Duration = Field(86_400.0, ge=0, le=LONGEST_KEEP_S)


class WebhookView(Answer):
    """`url` without its path, which may be a secret; `waiting` is counted to 10,000. Until
    `old_secret_until` notices are signed with the secret of before as well."""

    id: str
    name: str
    project: str | None = None
    url: str
    format: str
    events: list[str]
    paused: bool
    waiting: int
    created_at: float
    created_by: str
    old_secret_until: float | None = None


class CreatedWebhook(WebhookView):
    """The only time that the secret is shown; null if it was given."""

    secret: str | None = None


class WebhookPage(AnswerPage[WebhookView]): ...


class ResumeRequest(Strict):
    """`skip` leaves out what happened meanwhile."""

    skip: bool = False


REPLAY_AT_ONCE = 1000


class ReplayRequest(Strict):
    """These deliveries, or all that were given up."""

    deliveries: list[str] = Field(default=[], max_length=REPLAY_AT_ONCE)
    dead: bool = False


class ReplayAnswer(Answer):
    count: int


class DeliveryView(Answer):
    """`status` is that of the receiver's last answer, `detail` what was wrong with it."""

    id: str
    event: str
    state: str
    attempts: int
    next_at: float | None = None
    status: int | None = None
    detail: str | None = None
    created_at: float
    ended_at: float | None = None


class DeliveryDetail(DeliveryView):
    body: dict[str, Json]


class DeliveryPage(AnswerPage[DeliveryView]): ...


class NoticeEvent(Answer):
    """The event as in the run's own list."""

    type: str
    actor: str
    data: dict[str, Json]


class NoticeRun(Answer):
    """The run as it was when the notice was written, which may be a moment after the event."""

    id: str
    project: str
    name: str
    kind: str
    state: str
    group: str | None
    seed: int | None
    labels: dict[str, str]
    generation: int
    attempt: int
    reason: str | None
    detail: str | None
    hint: str | None
    exit_code: int | None
    signal: int | None
    host: str | None
    created_at: float
    started_at: float | None
    ended_at: float | None
    metrics: dict[str, float]
    artifact_id: str | None
    submitted_by: str | None


class NoticeCall(Answer):
    """The call as it ended, without its arguments and its result."""

    id: str
    project: str
    endpoint: str | None
    function: str
    state: str
    attempt: int
    lost: int
    key: str | None
    run: str | None
    error: str | None
    message: str | None
    created_at: float
    started_at: float | None
    ended_at: float | None
    ran_s: float
    result_bytes: int
    submitted_by: str


class Notice(Answer):
    """The body of a notice in the format `corral`. Keys may be added within a version; none goes."""

    version: Literal[1]
    type: str = Field(description=f"One of {', '.join(TYPES)}, or webhook.test.")
    at: float = Field(description="When it happened, in Unix seconds.")
    number: int = Field(description="Of the event among those of its run: later ones are higher.")
    event: NoticeEvent
    run: NoticeRun | None = Field(description="Null in a test, and of a call.")
    call: NoticeCall | None = Field(None, description="Of a call.")

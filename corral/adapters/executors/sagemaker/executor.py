"""The port of executors, on SageMaker training jobs."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from corral.adapters.executors.sagemaker.api import AwsApi, AwsDenied, AwsRefusal
from corral.adapters.executors.sagemaker.instances import (
    InstanceShape,
    capacities,
    fitting,
    need_refusals,
    quota_refusals,
    shape_refusals,
    usable,
)
from corral.adapters.executors.sagemaker.jobs import (
    MOST_SECRET_BYTES,
    OWNER,
    SHAPE,
    TrainingHandle,
    handle_of,
    job_requests,
    keys_in,
    mark_of,
    owner_of,
    prefix_of,
    secret_name,
    secret_text,
    tags_of,
)
from corral.adapters.executors.sagemaker.logs import tail_of
from corral.adapters.executors.sagemaker.options import SageMakerOptions
from corral.adapters.executors.sagemaker.preflight import preflight
from corral.adapters.executors.sagemaker.quotas import InstanceQuotas
from corral.adapters.executors.sagemaker.sightings import LIVE, sighting
from corral.domain.errors import CorralError
from corral.domain.hosts.capability import Requirements
from corral.domain.placements.orders import Capacity, Launched, LaunchOrder, PreflightCheck, Sighting
from corral.ports.executor import ExecutorUnreachable, LaunchRefused

Json = dict[str, Any]
# Of jobs that have ended, which never change again; the oldest go first.
_MOST_ENDED = 10_000


class SageMakerExecutor:
    """What there is stands at AWS, and any process finds it there."""

    def __init__(self, options: SageMakerOptions, *, session: Any = None) -> None:
        self._options = options
        self._api = AwsApi(options, session=session)
        self._quotas = InstanceQuotas(self._api, spot=options.spot)
        self._shapes = usable(options.instance_types, options.more_instances)
        self._ended: dict[str, Json] = {}
        self._lock = threading.Lock()

    def preflight(self) -> list[PreflightCheck]:
        return preflight(self._api, self._options, self._quotas, self._shapes)

    def capacities(self) -> list[Capacity]:
        return capacities(self._shapes, self._quotas.counts())

    def refusals(self, need: Requirements, ranks: int) -> list[str]:
        found = [*need_refusals(need), *shape_refusals(need, self._shapes)]
        return found or quota_refusals(fitting(need, self._shapes), ranks, self._quotas.counts())

    def launch(self, order: LaunchOrder) -> str:
        """The jobs first, then the secret that their workers wait for: there is never a secret without its
        job, and whoever dies in between leaves jobs that the next call with this key completes."""
        handle = handle_of(order)
        reasons = self._order_refusals(order)
        if reasons:
            # What was launched before stays so, even if it could not be launched now.
            there = [found for name in handle.names if (found := self._existing(order, name)) is not None]
            if not there:
                raise LaunchRefused(f"SageMaker cannot run {order.run_name}: {'; '.join(reasons)}")
            live = any(job["TrainingJobStatus"] == "InProgress" for job in there)
        else:
            live = self._create(order, handle)
        if live:
            with self._undone(order, handle):
                self._give_secret(order, handle)
        return str(handle)

    def _order_refusals(self, order: LaunchOrder) -> list[str]:
        found = self.refusals(order.need, order.min_ranks)
        if not (order.image or self._options.image):
            found.append("there is no image; set the executor's option `image`")
        if len(secret_text(order).encode()) > MOST_SECRET_BYTES:
            found.append("one secret cannot hold the tokens of so many ranks")
        return found

    def _create(self, order: LaunchOrder, handle: TrainingHandle) -> bool:
        """Whether jobs of it live and wait for their secret."""
        live = 0
        for request in job_requests(order, self._options, self._instance(order)):
            try:
                live += self._created(order, request)
            except QuotaInUse:
                if handle.jobs == 1:
                    raise
                # Fewer may do; too few hold instances for nothing.
                if live < order.min_ranks:
                    self.cancel(str(handle))
                    return False
                break
        return live > 0

    def _created(self, order: LaunchOrder, request: Json) -> bool:
        with _refusing(order):
            try:
                self._api.call("sagemaker", "create_training_job", **request)
            except AwsRefusal as error:
                if error.name == "ResourceLimitExceeded":
                    raise QuotaInUse(f"SageMaker has no room now: {error}") from error
                if error.name != "ResourceInUse":
                    raise
                found = self._existing(order, request["TrainingJobName"])
                return found is not None and found["TrainingJobStatus"] == "InProgress"
        return True

    def _existing(self, order: LaunchOrder, name: str) -> Json | None:
        found = self._describe(name)
        if found is not None and found.get("Environment", {}).get(OWNER) != owner_of(order):
            raise LaunchRefused(f"the account has a training job {name} that is not this installation's")
        return found

    def _instance(self, order: LaunchOrder) -> InstanceShape:
        quotas = self._quotas.counts() or {}
        fits = fitting(order.need, self._shapes)
        return next((one for one in fits if quotas.get(one.name, order.ranks) >= order.ranks), fits[0])

    def _give_secret(self, order: LaunchOrder, handle: TrainingHandle) -> None:
        name, text = secret_name(self._options, handle), secret_text(order)
        request: Json = {"Name": name, "SecretString": text, "Tags": tags_of(order, self._options)}
        if self._options.kms_key:
            request["KmsKeyId"] = self._options.kms_key
        with _refusing(order):
            try:
                self._api.call("secretsmanager", "create_secret", **request)
            except AwsRefusal as error:
                if error.name != "ResourceExistsException":
                    raise
                # The tokens of this call hold, whatever an earlier one wrote.
                self._api.call("secretsmanager", "put_secret_value", SecretId=name, SecretString=text)

    @contextmanager
    def _undone(self, order: LaunchOrder, handle: TrainingHandle) -> Iterator[None]:
        try:
            yield
        except LaunchRefused:
            # Where that is forbidden too, a sweep finds them.
            with suppress(CorralError):
                self.cancel(str(handle))
            raise

    def observe(self, handles: Sequence[str]) -> Mapping[str, Sighting]:
        """Two requests for all that live, and one for each job that has begun to end."""
        asked = {text: handle for text in handles if (handle := TrainingHandle.parse(text)) is not None}
        live: dict[str, Json] = {}
        for mark in {handle.mark for handle in asked.values()}:
            live |= self._live(mark)
        found: dict[str, Sighting] = {}
        for text, handle in asked.items():
            jobs = [self._seen(name, live) for name in handle.names]
            if (seen := sighting(jobs, handle.instances)) is not None:
                found[text] = seen
        return found

    def _live(self, mark: str) -> dict[str, Json]:
        chosen: Json = {"NameContains": prefix_of(mark), "MaxResults": 100}
        found: list[Json] = []
        for status in LIVE:
            found += self._api.pages(
                "sagemaker", "list_training_jobs", "TrainingJobSummaries", StatusEquals=status, **chosen
            )
        return {job["TrainingJobName"]: job for job in found}

    def _seen(self, name: str, live: Mapping[str, Json]) -> Json | None:
        """From the list while nothing has to be explained, and from the job itself otherwise."""
        listed = live.get(name)
        if listed is not None and listed.get("SecondaryStatus") in ("Training", "Uploading"):
            return listed
        return self._ended.get(name) or self._describe(name)

    def _describe(self, name: str) -> Json | None:
        try:
            found = self._api.call("sagemaker", "describe_training_job", TrainingJobName=name)
        except AwsRefusal as error:
            if _is_unknown(error):
                return None
            raise
        if found["TrainingJobStatus"] not in LIVE:
            with self._lock:
                self._ended[name] = found
                while len(self._ended) > _MOST_ENDED:
                    del self._ended[next(iter(self._ended))]
        return found

    def logs(self, handle: str, rank: int, *, most_bytes: int) -> str:
        parsed = TrainingHandle.parse(handle)
        place = parsed.job_of(rank) if parsed else None
        return tail_of(self._api, *place, most_bytes=most_bytes) if place else ""

    def cancel(self, handle: str) -> None:
        """SageMaker sends SIGTERM, and SIGKILL two minutes later."""
        parsed = TrainingHandle.parse(handle)
        if parsed is None:
            return
        for name in parsed.names:
            self._forgive(_is_unknown, "sagemaker", "stop_training_job", TrainingJobName=name)
        name = secret_name(self._options, parsed)
        self._forgive(
            _is_unknown, "secretsmanager", "delete_secret", SecretId=name, ForceDeleteWithoutRecovery=True
        )

    def _forgive(self, harmless: Any, service: str, operation: str, **request: object) -> None:
        try:
            self._api.call(service, operation, **request)
        except AwsRefusal as error:
            if not harmless(error):
                raise

    def launched(self, installation: str) -> list[Launched]:
        mark = mark_of(installation)
        return list(self._found(installation, keys_in(list(self._live(mark)), mark)))

    def _found(self, installation: str, names: Mapping[str, str]) -> Iterable[Launched]:
        for key, name in names.items():
            about = (self._describe(name) or {}).get("Environment", {})
            if about.get(OWNER) == f"{installation}/{key}":
                yield Launched(key, f"{mark_of(installation)}/{key}/{about[SHAPE]}")

    def close(self) -> None:
        self._api.close()


class QuotaInUse(ExecutorUnreachable):
    """Others hold what the account may have at once."""

    code = "aws_quota_in_use"
    hint = "Wait, or raise the quota: `corral executors check NAME` prints the command."


def _is_unknown(error: AwsRefusal) -> bool:
    """There is no such job or secret, or it has ended already: SageMaker says both as a wrong request."""
    return error.name in ("ResourceNotFound", "ResourceNotFoundException", "ValidationException")


@contextmanager
def _refusing(order: LaunchOrder) -> Iterator[None]:
    """A no of AWS is a refusal of the order; credentials that have run out are not."""
    try:
        yield
    except AwsRefusal as error:
        raise LaunchRefused(f"SageMaker does not take {order.run_name}: {error}", hint=error.hint) from error
    except AwsDenied as error:
        if not error.known:
            raise
        raise LaunchRefused(f"SageMaker does not take {order.run_name}: {error}", hint=error.hint) from error

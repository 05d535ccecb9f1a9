"""How many instances of each type the account may have in training jobs at once."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from corral.adapters.executors.sagemaker.api import AwsApi, AwsDenied, AwsRefusal

# They change by a request to AWS that people answer.
_KEPT_S = 600.0
_NAME = re.compile(r"(ml\.\S+) for (spot )?training job usage")


class InstanceQuota(NamedTuple):
    instance: str
    most: int
    code: str


class InstanceQuotas:
    def __init__(self, api: AwsApi, *, spot: bool, now: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._spot = spot
        self._now = now
        self._lock = threading.Lock()
        self._known: list[InstanceQuota] | None = None
        self._until = float("-inf")

    def all(self) -> list[InstanceQuota] | None:
        """None if we may not look."""
        with self._lock:
            if self._now() >= self._until:
                self._known = self._ask()
                self._until = self._now() + _KEPT_S
            return self._known

    def counts(self) -> dict[str, int] | None:
        found = self.all()
        return None if found is None else {one.instance: one.most for one in found}

    def _ask(self) -> list[InstanceQuota] | None:
        try:
            told = self._api.pages(
                "service-quotas", "list_service_quotas", "Quotas", ServiceCode="sagemaker", MaxResults=100
            )
        except AwsDenied as error:
            if not error.known:
                raise
            return None
        except AwsRefusal:
            return None
        found = []
        for quota in told:
            match = _NAME.fullmatch(quota.get("QuotaName", ""))
            if match and bool(match[2]) == self._spot:
                found.append(InstanceQuota(match[1], int(quota["Value"]), quota["QuotaCode"]))
        return found

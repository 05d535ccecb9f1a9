"""What one server's rules for calls and endpoints share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from corral.core.calls.dispatch import Dispatcher
from corral.core.calls.results import CallResults
from corral.core.endpoints.cache import EndpointCache
from corral.core.endpoints.failed_starts import FailedStarts
from corral.core.policy import ServerPolicy
from corral.core.wakeups import Wakeups
from corral.domain.secrets.redact import SecretValues
from corral.ports.clock import Clock
from corral.store.store import Store
from corral.store.transaction import Tx


@dataclass
class CallContext:
    store: Store
    clock: Clock
    policy: ServerPolicy
    wakeups: Wakeups
    # The secrets of a project, to be taken out of what is kept; None if it has none.
    secrets_of: Callable[[Tx, str], SecretValues | None] = lambda tx, project: None
    endpoints: EndpointCache = field(default_factory=EndpointCache)

    def __post_init__(self) -> None:
        self.dispatch = Dispatcher(self.clock)
        self.starts = FailedStarts(self.clock)
        self.results = CallResults(self.store, self.clock)

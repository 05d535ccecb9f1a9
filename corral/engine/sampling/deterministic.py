"""Makes sampling on a CPU repeatable to the last bit.

What is drawn does not depend on what else is in the batch, but the last bits of its logprobs do: a matrix
product of another size adds in another order. So on a CPU the batch must not depend on how fast the
environment answers: sequences go on only when no answer is awaited. A GPU does not wait, and is repeatable
to rounding.
"""

from __future__ import annotations

from corral.engine.data.sequences import Completion, SamplingRequest
from corral.engine.environments.protocol import CallResult, EnvironmentCall, EnvironmentDescription
from corral.engine.sampling.rollouts import RolloutEnvironment, RolloutSampler

_AWAITED = ("start", "step")


class DeterministicEnvironment:
    """The environment, and which of its answers may bring new requests."""

    def __init__(self, inner: RolloutEnvironment) -> None:
        self._inner = inner
        self._awaited: set[int] = set()

    @property
    def description(self) -> EnvironmentDescription:
        return self._inner.description

    @property
    def pending(self) -> int:
        return self._inner.pending

    @property
    def awaited(self) -> bool:
        return bool(self._awaited)

    def submit(self, call: EnvironmentCall) -> int:
        key = self._inner.submit(call)
        if call.op in _AWAITED:
            self._awaited.add(key)
        return key

    def poll(self, timeout_s: float = 0.0) -> list[CallResult]:
        found = self._inner.poll(timeout_s)
        self._awaited.difference_update(result.key for result in found)
        return found


class DeterministicSampler:
    """The sampler; requests are held back, and put in an order of their own, until no answer is awaited."""

    def __init__(self, inner: RolloutSampler, environment: DeterministicEnvironment) -> None:
        self._inner = inner
        self._environment = environment
        self._held: list[SamplingRequest] = []

    @property
    def pending(self) -> int:
        """0 while answers are awaited: the caller then waits for those."""
        return 0 if self._environment.awaited else self._inner.pending + len(self._held)

    def submit(self, request: SamplingRequest) -> None:
        self._held.append(request)

    def step(self) -> list[Completion]:
        for request in sorted(self._held, key=lambda one: (tuple(one.tokens), one.params.seed)):
            self._inner.submit(request)
        self._held.clear()
        return self._inner.step()

    def abort(self, key: int) -> None:
        self._held = [request for request in self._held if request.key != key]
        self._inner.abort(key)

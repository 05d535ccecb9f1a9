"""How often each caller may call: a bucket for each, filled at a steady rate, kept in memory."""

from __future__ import annotations

import re
from ipaddress import IPv6Address, ip_address

_MOST_KEYS = 10_000
# What keeps a run alive or ends it is never held up, or a busy host would lose its work.
_VITAL = re.compile(r"/v1/(?:claims|outcomes|leases/[^/]+/(?:beat|finish|fail|stopped|secrets))")


class RateLimits:
    """Without limit if `per_s` is 0. A caller that was idle may take `burst` at once."""

    def __init__(self, per_s: float, burst: int) -> None:
        self._per_s = per_s
        self._burst = float(burst)
        self._left: dict[str, tuple[float, float]] = {}

    def wait_s(self, key: str, now: float) -> float:
        """How long until the next is allowed; 0 if it is now. Takes nothing."""
        if not self._per_s:
            return 0.0
        return max(0.0, (1.0 - self._filled(key, now)) / self._per_s)

    def take(self, key: str, now: float) -> float:
        """Take one, or say how long to wait for it."""
        if (wait_s := self.wait_s(key, now)) or not self._per_s:
            return wait_s
        left = self._filled(key, now)
        # The one that was used longest ago stands first.
        self._left.pop(key, None)
        self._left[key] = (left - 1.0, now)
        if len(self._left) > _MOST_KEYS:
            del self._left[next(iter(self._left))]
        return 0.0

    def _filled(self, key: str, now: float) -> float:
        left, at = self._left.get(key, (self._burst, now))
        return min(self._burst, left + max(0.0, now - at) * self._per_s)


def is_vital(path: str) -> bool:
    return _VITAL.fullmatch(path) is not None


def origin_key(address: str) -> str:
    """One network is one caller: who has an IPv6 address mostly has 2^64 of them."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        return f"{int(parsed) >> 64:x}::/64"
    return address

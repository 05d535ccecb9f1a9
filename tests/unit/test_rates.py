"""How often a caller may call, by a clock that the test turns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.server.rate_limits import RateLimits, is_vital, origin_key


def test_a_burst_then_a_steady_rate() -> None:
    rates = RateLimits(2.0, 5)

    assert [rates.take("a", 0.0) for _ in range(5)] == [0.0] * 5
    assert rates.take("a", 0.0) == 0.5
    assert rates.wait_s("a", 0.25) == 0.25
    assert rates.take("a", 0.5) == 0.0
    assert rates.take("a", 0.5) > 0
    assert [rates.take("a", 100.0) for _ in range(6)].count(0.0) == 5


def test_callers_do_not_share() -> None:
    rates = RateLimits(1.0, 1)

    assert (rates.take("a", 0), rates.take("b", 0)) == (0.0, 0.0)
    assert rates.take("a", 0) > 0


def test_nought_is_without_limit() -> None:
    rates = RateLimits(0.0, 1)

    assert {rates.take("a", 0.0) for _ in range(1000)} == {0.0}
    assert rates.wait_s("a", 0.0) == 0.0


def test_a_clock_that_goes_back_gives_and_takes_nothing() -> None:
    rates = RateLimits(1.0, 2)
    rates.take("a", 100.0)

    assert rates.take("a", 50.0) == 0.0
    assert rates.take("a", 50.0) > 0


@given(st.floats(0.1, 1000), st.integers(1, 100), st.lists(st.floats(0, 10), max_size=200))
def test_never_more_than_the_burst_and_the_rate(per_s: float, burst: int, pauses: list[float]) -> None:
    rates, now, taken = RateLimits(per_s, burst), 0.0, 0
    for pause in pauses:
        now += pause
        taken += rates.take("a", now) == 0.0

    assert taken <= burst + now * per_s + 1e-6


def test_memory_is_bounded() -> None:
    rates = RateLimits(1.0, 10)
    for number in range(30_000):
        rates.take(str(number), 0.0)

    assert len(rates._left) <= 10_000


@pytest.mark.parametrize(
    "path",
    ["/v1/claims", "/v1/outcomes", *(f"/v1/leases/l-x/{v}" for v in ("beat", "finish", "fail", "stopped"))],
)
def test_what_keeps_a_run_alive_or_ends_it_is_vital(path: str) -> None:
    assert is_vital(path)


@pytest.mark.parametrize("path", ["/v1/runs", "/v1/leases/l-x/events", "/v1/claims/x", "/v1/leases/a/b/beat"])
def test_other_calls_are_not(path: str) -> None:
    assert not is_vital(path)


def test_a_network_of_ipv6_is_one_caller() -> None:
    assert origin_key("2001:db8::1") == origin_key("2001:db8::ffff:1")
    assert origin_key("2001:db8::1") != origin_key("2001:db8:0:1::1")
    assert origin_key("192.0.2.1") != origin_key("192.0.2.2")
    assert origin_key("testclient") == "testclient"

"""Decorated functions on a real server and a real worker: the same comes back as here."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.local_cluster import LocalCluster, local_cluster
from support.waiting import eventually

import corral
from acceptance import apps_for_tests as kit
from corral.functions import backend
from corral.functions.http_backend import HttpBackend
from corral.wire.spec.run_file import RunSpec


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("functions") / "home", lease_s=5.0) as made:
        made.own_worker(slots=40)
        yield made


@pytest.fixture(scope="module", autouse=True)
def remote(stack: LocalCluster) -> Iterator[HttpBackend]:
    made = HttpBackend(stack.client(), "default")
    before = backend.set_backend(made)
    yield made
    backend.set_backend(before)


def test_a_function_that_uses_its_module_returns_the_same_here_and_there() -> None:
    """RF-D01, RF-D04, RF-C38: globals and decorators survive."""
    assert kit.with_global.remote(1) == kit.with_global(1) == 1001
    assert kit.decorated.remote(2) == kit.decorated(2) == 1002


def test_closures_and_lambdas_travel_by_value() -> None:
    """RF-D02, RF-D03."""
    app = corral.App("byvalue")
    y = 7

    def inner(x: int) -> int:
        return x + y

    assert app.function()(inner).remote(1) == 8
    assert app.function(name="lam")(lambda x: x * y).remote(2) == 14


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"error": None},
        {"error": "x"},
        b"\x00\xff",
        kit.Point(1, 2),
        {"a": [1, (2, {3})]},
        "ä\n",
        1 << 80,
    ],
    ids=repr,
)
@pytest.mark.filterwarnings("ignore::corral.UnpickleNotice")
def test_any_value_goes_there_and_back(value: Any) -> None:
    """RF-D08, RF-D09, RF-D19."""
    assert kit.give_back.remote(value) == value


def test_arrays_and_large_values_go_there_and_back() -> None:
    """RF-C17: no limit of ten megabytes; what is large goes through the store."""
    array = np.arange(1 << 20, dtype=np.float32)

    back = kit.give_back.remote(array)

    assert (back == array).all()


def test_arguments_arrive_as_they_were_given() -> None:
    """RF-D07, RF-D08, RF-D12: none, one that is None, keyword-only, and any keywords."""
    assert kit.count_arguments.remote() == (0, False, [])
    assert kit.count_arguments.remote(None) == (1, False, [])
    assert kit.count_arguments.remote(1, 2, flag=True, other=3) == (2, True, ["other"])


def test_wrong_arguments_are_told_before_anything_is_sent(stack: LocalCluster) -> None:
    before = len(stack.client().calls.page().items)

    with pytest.raises(TypeError, match="with_global"):
        kit.with_global.remote(1, 2, 3)  # type: ignore[call-arg]

    assert len(stack.client().calls.page().items) == before


def test_an_exception_comes_back_as_its_own_type() -> None:
    """RF-D20."""
    with pytest.raises(kit.Trouble, match="trouble at 5") as caught:
        kit.fails.remote(5)

    assert caught.value.place == 5
    (note,) = caught.value.__notes__
    assert re.fullmatch(r"call (c-\w+); what it printed: corral calls logs \1", note), "HOUR-08"
    assert "raise Trouble(place)" in str(caught.value.__cause__)


def test_sys_exit_is_an_error_of_the_call_and_the_instance_lives_on() -> None:
    """RF-D23."""
    with pytest.raises(corral.ExitCalled) as caught:
        kit.leaves.remote(3)

    assert caught.value.code == 3
    with pytest.raises(corral.ExitCalled):
        kit.leaves.remote(4)


def test_a_result_that_cannot_travel_is_named_and_the_output_is_kept() -> None:
    """RF-D22."""
    call = kit.unpicklable.spawn()

    with pytest.raises(TypeError, match="generator"):
        call.result()
    assert eventually(lambda: list(call.logs()), "its output") == ["before"]


def test_generators_stream() -> None:
    """RF-C27."""
    assert list(kit.squares.stream(5)) == [0, 1, 4, 9, 16]
    assert list(kit.squares_later.stream(3)) == [0, 1, 4]


def test_a_stream_comes_while_it_is_made() -> None:
    stream = kit.squares.stream(50, pause_s=0.2)

    assert next(stream) == 0
    stream.close()  # type: ignore[attr-defined]


def test_a_function_that_never_ends_is_killed_at_its_timeout_and_its_output_is_kept() -> None:
    """RF-D34."""
    call = kit.endless.spawn()

    with pytest.raises(corral.CallTimeout, match="timeout of 1 s"):
        call.result(60)
    assert eventually(lambda: list(call.logs()), "its output") == ["begun"]
    # The next one gets a new process.
    with pytest.raises(TimeoutError):
        kit.endless.remote()


def test_an_unfinished_call_is_never_a_result() -> None:
    """RF-D18, RF-D24: every wait has an end, and says that it is one."""
    call = kit.sleeps.spawn(5)

    with pytest.raises(corral.NotFinished) as caught:
        call.result(timeout=0.2)

    assert caught.value.call_id == call.id
    call.cancel()


def test_cancelling_reaches_code_that_sleeps(stack: LocalCluster) -> None:
    """RF-C24, RF-D33, RF-C36: a sync function that sleeps hears it, and whoever waits is told at once."""
    call = kit.sleeps.spawn(600)
    eventually(lambda: call.state() == "assigned" or None, "it to begin")

    call.cancel()

    with pytest.raises(corral.CallCancelled):
        call.result(120)
    assert kit.sleeps.remote(0) == "awake"


def test_a_handle_is_opened_again_elsewhere() -> None:
    """RF-C27."""
    call = kit.with_global.spawn(4)

    assert corral.Call.from_id(call.id).result(60) == 1004


def test_errors_of_some_types_are_tried_again(tmp_path: Path) -> None:
    """RF-D36, RF-C40, RF-D69."""
    assert kit.needs_tries.remote(str(tmp_path / "tries"), 3) == 3


def test_map_keeps_the_order_and_collects_errors() -> None:
    """RF-C27."""
    assert list(kit.with_global.map(range(300))) == [n + 1000 for n in range(300)]
    assert sorted(kit.with_global.map(range(20), order=False)) == [n + 1000 for n in range(20)]
    found: list[Any] = list(kit.fails.map([1, 2], return_exceptions=True))
    assert [type(one) for one in found] == [kit.Trouble, kit.Trouble]
    assert list(kit.count_arguments.starmap([(1,), (1, 2)])) == [(1, False, []), (2, False, [])]


def test_a_map_of_the_same_name_repeats_nothing(stack: LocalCluster) -> None:
    done = list(kit.with_global.map(range(10), resume="ten"))
    before = len(stack.client().calls.page(endpoint="live.kit.with_global", limit=1000).items)

    again = list(kit.with_global.map(range(10), resume="ten"))

    assert again == done
    assert len(stack.client().calls.page(endpoint="live.kit.with_global", limit=1000).items) == before


def test_async_calls_overlap_in_one_instance() -> None:
    """RF-D35, RF-D69: with a concurrency of four, four overlap."""
    calls = [kit.meets.spawn(f"guest-{n}") for n in range(4)]
    began = [call.result(60) for call in calls]

    assert max(began) - min(began) < 0.45


def test_each_call_has_its_own_output_also_when_they_overlap() -> None:
    """RF-D28, RF-D29, RF-D30, RF-D31: by whom it was printed, children included, equal lines twice."""
    calls = {f"n{n}": kit.speaks.spawn(f"n{n}") for n in range(8)}
    for name, call in calls.items():
        assert call.result(60) == name
        lines = eventually(partial(_whole, call, f"child of {name}"), "its output")
        assert [line for line in lines if "logs" not in line and "child" not in line] == [
            f"{name} {n}" for n in range(5)
        ]
        assert all(name in line for line in lines), lines


def test_everything_that_one_call_prints_is_in_order() -> None:
    call = kit.prints_everywhere.spawn("me")
    call.result(60)

    lines = eventually(lambda: found if len(found := list(call.logs())) == 5 else None, "five lines")

    assert lines == ["me python", "me fd", "me child", "me again", "me again"]


def _whole(call: corral.Call[Any], last: str) -> list[str] | None:
    lines = list(call.logs())
    return lines if last in lines else None


def test_instances_keep_their_state_and_parameters_make_pools() -> None:
    """RF-D13, RF-D14, RF-D17: 1, 2, 3; other parameters, another instance; loaded once."""
    plain, other = kit.Counter(), kit.Counter(start=100)

    assert [plain.add.remote() for _ in range(3)] == [(1, 1), (2, 1), (3, 1)]
    assert other.add.remote(5) == (105, 1)
    assert kit.Counter().add.remote() == (4, 1), "equal parameters are the same pool"


def test_calls_are_gathered_into_batches() -> None:
    """RF-C30."""
    calls = [kit.Counter().double.spawn(n) for n in range(8)]

    found = [call.result(60) for call in calls]

    assert [value for value, _ in found] == [n * 2 for n in range(8)]
    assert max(size for _, size in found) > 1


def test_a_class_tells_of_wrong_parameters_here() -> None:
    with pytest.raises(TypeError, match="strat"):
        kit.Counter(strat=1)  # type: ignore[call-arg]


def test_a_function_calls_another_of_its_app() -> None:
    """RF-D07, RF-D11, RF-D59: through the instance's own channel, and no token is given to the code."""
    assert kit.calls_another.remote(1) == 2002


def test_a_function_that_calls_itself_gets_as_many_instances_as_it_may() -> None:
    """RF-D37: more depth than instances waits, so it is bounded by the caller's patience."""
    assert kit.calls_itself.remote(0) == 0


@pytest.mark.parametrize(("code", "how"), [(None, "signal 9"), (3, "exit code 3")])
def test_an_instance_that_dies_fails_the_call_after_a_few_and_says_so(code: int | None, how: str) -> None:
    """HOUR-08: how the last of them ended, and which it was."""
    call = kit.dies.spawn(code)

    with pytest.raises(corral.InstanceLost, match=rf"3 instances; the last, r-\w+, .*{how}") as caught:
        call.result(120)

    assert "corral logs" in caught.value.hint
    assert f"corral calls logs {call.id}" in caught.value.__notes__[-1]


def test_async_callers_wait_without_blocking() -> None:
    async def both() -> list[int]:
        return list(await asyncio.gather(kit.with_global.aio.remote(1), kit.with_global.aio.remote(2)))

    assert asyncio.run(both()) == [1001, 1002]


def test_a_second_call_needs_no_new_process() -> None:
    first = kit.which_process.remote()

    assert kit.which_process.remote() == first
    assert first != os.getpid()


def test_code_that_does_not_import_is_an_error_that_says_why(tmp_path: Path) -> None:
    """RF-D21, RF-D53: and nobody waits for ever."""
    (tmp_path / "broken_app.py").write_text(
        "import os, corral\napp = corral.App('broken')\n"
        "if os.environ.get('CORRAL_LEASE_ID'): import this_is_nowhere\n"
        "@app.function()\ndef f(): return 1\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        import broken_app  # type: ignore[import-not-found]  # noqa: PLC0415

        with pytest.raises(corral.CannotStart, match="this_is_nowhere"):
            broken_app.f.spawn().result(60)
    finally:
        sys.path.remove(str(tmp_path))


def test_calls_outlive_a_server_that_is_killed(stack: LocalCluster) -> None:
    """RF-D26, RF-D70: the result waits at the worker until the server is back."""
    call = kit.sleeps.spawn(2)
    eventually(lambda: call.state() == "assigned" or None, "it to begin")

    stack.kill_server()
    time.sleep(3)
    stack.start_server()
    backend.set_backend(HttpBackend(stack.client(), "default"))

    assert corral.Call.from_id(call.id).result(60) == "awake"
    assert stack.client().calls.get(call.id).attempt == 1


def test_many_threads_may_call_at_once() -> None:
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda n=n: found.append(kit.with_global.remote(n))) for n in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert sorted(found) == [n + 1000 for n in range(16)]


def test_short_calls_given_ahead_do_not_wait_behind_a_long_one() -> None:
    """An instance that is quick gets calls ahead of their turn, and gives back what it cannot begin."""
    # Two instances, both known to be quick.
    eventually(lambda: len(set(kit.nap.map([0.002] * 200))) == 2, "both instances", within_s=60)
    long = kit.nap.spawn(60.0)
    eventually(lambda: long.state() == "assigned", "it begins")

    assert len(list(kit.nap.map([0.0] * 300))) == 300
    assert long.state() == "assigned"
    long.cancel()


def test_an_instance_that_nobody_calls_gives_its_place_to_what_waits(tmp_path: Path) -> None:
    """One slot, three functions and a run: the longest unused ends first, with its hooks (RF-D15)."""
    with local_cluster(tmp_path / "home", lease_s=5.0) as small:
        small.own_worker(slots=1)
        before = backend.set_backend(HttpBackend(small.client(), "default"))
        try:
            closed = tmp_path / "closed"
            assert kit.Closer(note=str(closed)).ping.remote() == "pong"  # type: ignore[call-arg]
            assert kit.one_more.remote(1) == 2
            assert closed.exists()
            (run_id,) = small.client().runs.submit([RunSpec(name="plain", argv=["true"])]).ids
            eventually(lambda: small.client().runs.get(run_id).state == "succeeded", "the run")
            assert kit.one_more.remote(2) == 3
        finally:
            backend.set_backend(before)


def test_a_result_that_is_not_kept_any_more_says_so(stack: LocalCluster) -> None:
    """RF-D27: retention is the user's to set, and what is over answers as such."""
    client = stack.client()
    call = kit.with_global.with_options(keep=0.2).spawn(1)
    stream = kit.squares.with_options(keep=0.2).spawn(3)
    for one in (call, stream):
        eventually(lambda one=one: client.calls.get(one.id).forgotten, "its time to be over")  # type: ignore[misc]

    with pytest.raises(corral.CallExpired, match="not kept"):
        corral.Call.from_id(call.id).result()
    with pytest.raises(corral.CallExpired, match="not kept"):
        list(kit.squares.read(stream.id))
    assert client.calls.get(call.id).state == "succeeded"


def test_higher_priorities_come_first_and_what_is_over_before_it_began_never_begins(tmp_path: Path) -> None:
    """RF-C21, RF-D36, RF-C22."""
    order, gate = tmp_path / "order", tmp_path / "gate"

    def note(name: str, wait: bool = False) -> None:
        with order.open("a") as file:
            file.write(f"{name}\n")
        while wait and not gate.exists():
            time.sleep(0.01)

    fn = corral.App("order").function(name="note", max_instances=1)(note)
    calls = [fn.spawn("first", wait=True)]
    eventually(lambda: order.exists(), "it to begin")
    calls += [fn.spawn("low"), fn.with_options(priority=10).spawn("high")]
    late = fn.with_options(ttl=0.2).spawn("late")
    fn.with_options(priority=20).spawn("cancelled").cancel()

    eventually(lambda: late.state() == "expired", "its time to live to be over")
    with pytest.raises(corral.CallExpired, match="time to live"):
        late.result()
    gate.touch()
    for call in calls:
        call.result(60)
    assert order.read_text().split() == ["first", "high", "low"]

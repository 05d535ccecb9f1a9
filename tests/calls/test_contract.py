"""What holds of calls, live and deployed, on one host and on three.

RF-C03, RF-C15, RF-C35, RF-C38, RF-D09, RF-D66: there is one protocol, and one suite for all of it.
RF-D69, RF-D71: what is called local is the same server and worker, with timeouts, retries and batches.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.waiting import eventually

import corral
from calls.conftest import Scene
from calls.functions_for_tests import Boat, Stranded

pytestmark = [pytest.mark.filterwarnings("ignore::corral.UnpickleNotice")]

VALUES: list[Any] = [
    None,
    {},
    [],
    {"error": None},
    {"error": "x"},
    {"__empty": True},
    {"id": "c-1", "status": "IN_PROGRESS"},
    b"\x00\xff",
    (1, [2, {3: frozenset({4})}]),
    1 << 80,
    "ä\n",
    float("inf"),
    Boat("Ada", 3.5),
    b"large" * 100_000,
]


def test_any_value_goes_there_and_back(scene: Scene) -> None:
    """RF-C12, RF-C17, RF-D08, RF-D09, RF-D12, RF-D19, RF-C15, RF-C35, RF-C38."""
    give_back = scene.function("give_back")

    assert list(give_back.map(VALUES)) == VALUES


def test_arguments_arrive_as_they_were_given(scene: Scene) -> None:
    """RF-C16, RF-D08, RF-D12."""
    describe = scene.function("describe")

    assert describe.remote() == (0, False, [])
    assert describe.remote(None) == (1, False, [])
    assert describe.remote(1, 2, flag=True, other=3) == (2, True, ["other"])


def test_wrong_arguments_are_a_type_error(scene: Scene) -> None:
    with pytest.raises(TypeError, match="argument"):
        scene.function("soon").remote(1, 2)


def test_an_exception_is_its_own_type_with_the_traceback_of_the_other_side(scene: Scene) -> None:
    """RF-D20."""
    with pytest.raises(Stranded) as caught:
        scene.function("fails").remote("Ada")

    assert caught.value.boat == "Ada"
    assert "raise Stranded(boat)" in str(caught.value.__cause__)


def test_async_functions_and_async_callers(scene: Scene) -> None:
    """RF-C07: the function and the caller may each be either."""
    soon = scene.function("soon")

    async def three() -> list[int]:
        return list(await asyncio.gather(*(soon.aio.remote(n) for n in range(3))))

    assert soon.remote(1) == 2
    assert asyncio.run(three()) == [1, 2, 3]


def test_generators_stream(scene: Scene, tmp_path: Path) -> None:
    """RF-C24, RF-C27, RF-C36."""
    count = scene.function("count")

    assert list(count.stream(str(tmp_path / "log"), 5)) == [0, 1, 4, 9, 16]
    assert list(scene.function("count_later").stream(3)) == ["0", "1", "2"]

    async def awaited() -> list[int]:
        return [one async for one in count.aio.stream(str(tmp_path / "log"), 3)]

    assert asyncio.run(awaited()) == [0, 1, 4]
    with pytest.raises(corral.FunctionError, match="stream"):
        count.remote(str(tmp_path / "log"), 5)


def test_map_is_in_order_or_as_it_comes_and_gathers_errors(scene: Scene) -> None:
    """RF-C27, RF-C40."""
    give_back, fails = scene.function("give_back"), scene.function("fails")

    assert list(give_back.map(range(300))) == list(range(300))
    assert sorted(give_back.map(range(50), order=False)) == list(range(50))
    found = list(fails.map(["a", "b"], return_exceptions=True))
    assert [one.boat for one in found] == ["a", "b"]
    with pytest.raises(Stranded):
        list(fails.map(["a", "b"]))
    with pytest.raises(ValueError, match="shorter"):
        list(scene.function("describe").map([1, 2], [3]))


def test_a_handle_is_opened_again_elsewhere(scene: Scene) -> None:
    """RF-C06, RF-C27, RF-C36, RF-D66, RF-D71."""
    call = scene.function("give_back").spawn("later")

    other = corral.Call.from_id(call.id)

    assert other.result(60) == "later"
    assert (other.state(), other.done(), other.exception()) == ("succeeded", True, None)


def test_a_method_keeps_its_state_and_other_parameters_are_another_instance(scene: Scene) -> None:
    """RF-C03, RF-C08, RF-C30, RF-C40, RF-D13, RF-D14, RF-D17, RF-D71: 1, 2, 3; the hook ran once; parameters
    are honoured."""
    small = scene.function("Harbour.moor", berths=1)
    large = scene.function("Harbour.moor", berths=9)

    first = [small.remote(f"boat {n}") for n in range(10)]
    other = large.remote("Ada")

    pids = {pid for _, _, _, pid in first}
    assert len(pids) == 1
    assert [(moored, berths, opened) for moored, berths, opened, _ in first] == [
        (n, 1, 1) for n in range(first[0][0], first[0][0] + 10)
    ]
    assert other[1] == 9
    assert other[3] not in pids


def test_calls_are_gathered_into_batches(scene: Scene) -> None:
    """RF-C30, RF-C40, RF-D69, RF-D71."""
    found = list(scene.function("Harbour.lengths", berths=2).map([Boat("x", float(n)) for n in range(16)]))

    assert [length for length, _ in found] == [float(n) for n in range(16)]
    assert max(size for _, size in found) > 1


def test_a_function_calls_others_through_an_attribute_and_an_alias(scene: Scene) -> None:
    """RF-C09, RF-C14, RF-D07, RF-D11."""
    before = scene.stack.client().calls.page(endpoint=scene.endpoint("describe"), limit=1000).items

    assert scene.function("asks_others").remote(5) == 7

    after = scene.stack.client().calls.page(endpoint=scene.endpoint("describe"), limit=1000).items
    made = [one for one in after if one.id not in {two.id for two in before}]
    assert [one.parent is not None for one in made] == [True], "it was a call of its own, made by a call"


def test_a_call_that_runs_too_long_is_killed_and_what_it_printed_is_kept(scene: Scene) -> None:
    """RF-D18, RF-D24, RF-D34, RF-D69."""
    call = scene.function("endless").spawn()

    with pytest.raises(corral.CallTimeout):
        call.result(100)

    assert eventually(lambda: list(call.logs()), "its output") == ["begun"]


def test_what_an_async_function_prints_is_its_own_for_as_long_as_it_runs(scene: Scene) -> None:
    """RF-D30."""
    call = scene.function("speaks_slowly").spawn()
    call.result(100)

    def all_of_it() -> bool:
        return list(call.logs()) == [f"slowly {n}" for n in range(3)]

    assert eventually(all_of_it, "its output")


def test_200_calls_at_once_have_their_own_output_in_order(scene: Scene) -> None:
    """RF-D28, RF-D29, RF-D30, RF-D31, RF-D65: children and both streams included."""
    names = [f"boat-{n}" for n in range(200)]
    speaks = scene.function("speaks")
    calls = {name: speaks.spawn(name) for name in names}
    assert [calls[name].result(120) for name in names] == names

    expected = {calls[name].id: lines_of(name) for name in names}
    found = eventually(partial(_all_there, scene, expected), "all lines to arrive", within_s=60)

    for call_id, lines in expected.items():
        said = [text for stream, text in found[call_id] if stream == "stdout"]
        assert said == lines[:-1], scene.stack.client().calls.get(call_id)
        assert [text for stream, text in found[call_id] if stream == "stderr"] == lines[-1:]


def lines_of(name: str) -> list[str]:
    child = [f"{name} has a child"] if name.endswith("0") else []
    return [*(f"{name} says {n}" for n in range(4)), *child, f"{name} says no more"]


def _all_there(scene: Scene, expected: dict[str, list[str]]) -> dict[str, list[tuple[str, str]]] | None:
    corral_ = scene.stack.client()
    runs = {one.run for one in corral_.calls.page(endpoint=scene.endpoint("speaks"), limit=1000).items}
    found: dict[str, list[tuple[str, str]]] = {}
    for run in runs - {None}:
        assert run is not None
        for line in corral_.runs.iter_logs(run):
            if line.call in expected:
                found.setdefault(line.call, []).append((line.stream, line.text))
    whole = all(len(found.get(call_id, ())) >= len(lines) for call_id, lines in expected.items())
    return found if whole else None

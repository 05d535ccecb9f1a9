"""Chains of runs and places in a group with real processes, through kill -9 of the server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.local_cluster import LocalCluster, local_cluster, problems, python, result, wait_final, wait_line
from support.waiting import eventually

from corral.domain.errors import InvalidInput
from corral.wire.spec.tables import After


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path / "home") as made:
        made.own_worker(slots=4)
        yield made


def test_the_result_of_one_run_is_the_input_of_the_next_whatever_dies(fleet: LocalCluster) -> None:
    """FL-D06."""
    corral = fleet.client()
    (first,) = corral.runs.submit(
        [
            python(
                "print('made', flush=True)\nwhile not pathlib.Path(env['GO']).exists(): time.sleep(0.05)\n"
                "(O / 'out').mkdir(); (O / 'out' / 'model.txt').write_text('weights'); (O / 'log').touch()",
                env={"GO": str(fleet.home.parent / "go")},
            )
        ]
    ).ids
    (second,) = corral.runs.submit(
        [
            python(
                "made = pathlib.Path(env['CORRAL_INPUT_DIR']) / 'model'\n"
                "assert [one.name for one in made.iterdir()] == ['model.txt']\n"
                "(O / 'score.txt').write_text((made / 'model.txt').read_text() + ' are good')",
                after=[After(run=first, input="model")],
                input_paths={"model": "out"},
            )
        ]
    ).ids
    lacking = python("pass", after=[After(run=first, input="model")], input_paths={"model": "out/none.txt"})
    (refused,) = corral.runs.submit([lacking]).ids
    (third,) = corral.runs.submit([python("pass", after=[After(run=second)])]).ids
    wait_line(corral, first, "made")
    assert [corral.runs.get(one).state for one in (second, third)] == ["held", "held"]

    fleet.kill_server()
    (fleet.home.parent / "go").touch()
    corral = fleet.start_server()

    done = wait_final(corral, second)
    assert done.state == "succeeded", done.detail
    assert result(corral, done) == {"score.txt": b"weights are good"}
    assert done.spec.inputs == {"model": corral.runs.get(first).artifact_id}
    assert wait_final(corral, third).state == "succeeded"
    assert problems(corral) == []
    # What the result lacks can only be told at the start; once the result is there, before.
    failed = wait_final(corral, refused)
    assert (failed.state, failed.reason) == ("failed", "bad_data")
    assert "has no file or folder 'out/none.txt'" in str(failed.detail)
    with pytest.raises(InvalidInput, match=r"`inputs\.model` names 'out/none\.txt' of a-"):
        corral.runs.requeue(refused)


def test_no_more_than_the_limit_run_at_once_also_when_the_server_is_killed(fleet: LocalCluster) -> None:
    corral = fleet.client()
    marks = fleet.home.parent / "marks"
    marks.mkdir()
    body = (
        "mine = pathlib.Path(env['MARKS']) / env['CORRAL_RUN_ID']\n"
        "mine.touch()\nothers = len(list(mine.parent.iterdir()))\ntime.sleep(0.4)\nmine.unlink()\n"
        "(O / 'seen').write_text(str(others))"
    )
    answer = corral.runs.submit(
        [python(body, env={"MARKS": str(marks)}, name=f"n{n}") for n in range(8)], group="few", max_running=2
    )
    for _ in range(3):
        eventually(lambda: any(marks.iterdir()), "a run to begin")
        fleet.kill_server()
        corral = fleet.start_server()

    ended = [wait_final(corral, run_id, within_s=90) for run_id in answer.ids]

    assert {run.state for run in ended} == {"succeeded"}
    assert max(int(result(corral, run)["seen"]) for run in ended) <= 2
    assert corral.groups.get("few").states == {"succeeded": 8}
    assert problems(corral) == []

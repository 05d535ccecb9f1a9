"""A run of high priority gets a host on one's own machines once the run there has saved a checkpoint
(FL-D05); a drain that does not wait."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.local_cluster import (
    LocalCluster,
    event_types,
    local_cluster,
    printed,
    python,
    result,
    wait_final,
    wait_line,
)
from support.waiting import eventually

# Counts steps; at SIGTERM it saves the step that it is at and ends, and a later attempt goes on from there.
CAREFUL = """
saved = pathlib.Path(env.get('CORRAL_RESUME_DIR') or '/nowhere') / 'step'
step = int(saved.read_text()) if saved.exists() else 0
print('from', step, flush=True)
def save(*_):
    folder = pathlib.Path(env['CORRAL_CHECKPOINT_DIR']) / f'step-{step}'
    folder.mkdir(parents=True)
    (folder / 'step').write_text(str(step))
    say(checkpoint=str(folder), step=step)
    print('saved', step, flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
while step < 40 or (step < 20000 and env['CORRAL_ATTEMPT'] == '1'):
    time.sleep(0.02)
    step += 1
    if step == 3:
        print('under way', flush=True)
(O / 'steps').write_text(str(step))
"""


@pytest.fixture
def made(tmp_path: Path) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path / "home", lease_s=3.0) as made:
        yield made


def saved_steps(made: LocalCluster, run_id: str, attempt: int) -> list[int]:
    lines = printed(made.client(), run_id, attempt)
    return [int(line.split()[1]) for line in lines if line.startswith("saved")]


def test_the_urgent_run_starts_after_the_other_saved_its_checkpoint_which_then_goes_on_from_it(
    made: LocalCluster,
) -> None:
    """FL-D05."""
    corral = made.client()
    made.own_worker(slots=1)
    low = corral.runs.submit([python(CAREFUL, preemptible=True, grace=20)]).ids[0]
    wait_line(corral, low, "under way")
    urgent = corral.runs.submit([python("print('urgent')", priority=9)]).ids[0]

    assert wait_final(corral, urgent, within_s=90).state == "succeeded"
    ended = wait_final(corral, low, within_s=90)
    assert (ended.state, ended.attempt) == ("succeeded", 2)
    assert ended.retries_used["infrastructure"] == 0
    (step,) = saved_steps(made, low, 1)
    assert printed(corral, low, 2)[0] == f"from {step}"
    assert result(corral, ended)["steps"].decode() == str(max(40, step))
    assert "preempt" in event_types(corral, low)
    begun = {
        run: [e.at for e in corral.runs.events(run, limit=100).items if e.type == "claim"]
        for run in (low, urgent)
    }
    assert begun[low][0] < begun[urgent][0] < begun[low][1]


def test_a_drain_at_once_moves_what_allows_it_and_lets_the_rest_go_on(
    made: LocalCluster, tmp_path: Path
) -> None:
    corral = made.client()
    made.own_worker(slots=2)
    moving = corral.runs.submit([python(CAREFUL, preemptible=True, grace=20)]).ids[0]
    staying = corral.runs.submit([python(CAREFUL, grace=20)]).ids[0]
    for run in (moving, staying):
        wait_line(corral, run, "under way")
    (first,) = corral.hosts.page().items
    made.other_worker(tmp_path / "other", "other", slots=2)
    eventually(lambda: len([h for h in corral.hosts.page().items if h.alive]) == 2, "the other host")

    corral.hosts.drain(first.id, stop="preemptible")
    moved = wait_final(corral, moving, within_s=90)
    assert (moved.state, moved.attempt, moved.host) == ("succeeded", 2, "other")
    assert corral.runs.get(staying).state == "running"
    corral.hosts.drain(first.id, stop="all")
    moved = wait_final(corral, staying, within_s=90)
    assert (moved.state, moved.attempt, moved.host) == ("succeeded", 2, "other")

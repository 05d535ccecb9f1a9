"""Training runs of several replicas that meet in a folder: equal at the end, whatever happens to one."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import jobs_for_tests as jobs
import pytest
import torch
from safetensors.torch import load_file
from support.waiting import eventually

from corral.diloco.folder_store import FolderStore
from corral.diloco.round_store import StoreRefused
from corral.diloco.rounds import NotFinite
from corral.engine import job
from corral.engine.engine import Engine
from corral.engine.reports.events import EventWriter, TerminalOutput
from corral.engine.reports.report import read_lines
from corral.engine.training.outer_rounds import OuterRounds, ReplicaPlace
from corral.recipes.diloco import RankRange, parse
from corral.recipes.train_tables import Lora

WEIGHTS = "adapter/adapter_model.safetensors"
# Children are forked from a process that has loaded the engine, and nothing else.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["corral.engine.job"])


def diloco(spec: Path, *, least: int = 2, most: int = 2, **table: Any) -> Path:
    said = json.loads(spec.read_bytes())
    settings = {"store": str(spec.parent / "meet"), **table}
    return jobs.write(spec.parent, {**said, "replicas": {"min": least, "max": most}, "diloco": settings})


def replica(spec: str, name: str, variables: dict[str, str]) -> None:
    """The engine as the worker starts it, in a process that was forked for it."""
    folder = Path(spec).parent
    log = os.open(folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    places = jobs.places(Path(spec), name)
    events = folder / f"{name}-events.jsonl"
    more = {"events": events, "resume": folder / name if "RESUME" in variables else None}
    sys.exit(job.main(type(places)(**{**vars(places), **more}), variables, again="AGAIN" in variables))


def start(spec: Path, rank: int, **more: str) -> BaseProcess:
    variables = {"CORRAL_RUN_ID": "r-test", "CORRAL_RANK": str(rank), **more}
    process = FORKS.Process(target=replica, args=(str(spec), f"rank{rank}", variables))
    process.start()
    return process


@contextmanager
def ended(*processes: BaseProcess) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def told(spec: Path, rank: int) -> list[dict[str, Any]]:
    path = spec.parent / f"rank{rank}-events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def tally(spec: Path, rank: int) -> dict[str, Any]:
    said = [one["progress"]["rounds"] for one in told(spec, rank) if "rounds" in one.get("progress", {})]
    return said[-1] if said else {}


def join(spec: Path, rank: int, process: BaseProcess) -> int:
    process.join(120)
    assert process.exitcode is not None, (spec.parent / f"rank{rank}.log").read_text()
    return process.exitcode


def weights(spec: Path, name: str) -> bytes:
    return (spec.parent / name / WEIGHTS).read_bytes()


def test_a_replica_that_is_killed_or_stopped_comes_back_and_all_end_alike(tmp_path: Path) -> None:
    """DL-D37, DL-D43: in processes of their own, by SIGTERM and by SIGKILL; what each rank leaves is compared
    bit for bit."""
    spec = diloco(
        jobs.sft(tmp_path, steps=12, save_every=4, eval_fraction=0.0), inner_steps=4, compress="int4"
    )
    first = start(spec, 0)
    with ended(first):
        # It waits for its quorum; a stop ends it there.
        eventually(lambda: "waiting" in str(told(spec, 0)[-1:]), "rank 0 to wait for the other")
        assert first.pid is not None
        os.kill(first.pid, signal.SIGTERM)
        assert join(spec, 0, first) == -signal.SIGTERM
    store = FolderStore(tmp_path / "meet")
    assert [one.key for one in store.list("r-test/f0/commits")] == ["r-test/f0/commits/00000000.json"]

    both = [start(spec, 0, AGAIN="1"), start(spec, 1)]
    with ended(*both):
        eventually(lambda: tally(spec, 1).get("done", 0) >= 1, "a round of both")
        both[1].kill()
        both[1].join()
        again = start(spec, 1, AGAIN="1")
        with ended(again):
            assert (join(spec, 0, both[0]), join(spec, 1, again)) == (0, 0)
    assert weights(spec, "rank0") == weights(spec, "rank1")
    ends = [tally(spec, rank) for rank in range(2)]
    assert [(one["done"], one["of"]) for one in ends] == [(3, 3), (3, 3)]
    assert ends[0]["taken"] == 3
    assert ends[0]["recent"][-1] == [0, 3, "0 1"]
    # What it counted before it was killed is not lost.
    assert ends[1]["taken"] + ends[1]["late"] == 3
    assert ends[1]["committed"] > 0
    assert {one["metrics"]["round"] for one in told(spec, 0) if "round" in one.get("metrics", {})} == {
        1,
        2,
        3,
    }


def test_one_replica_of_a_whole_run_of_inner_steps_is_the_plain_run(tmp_path: Path) -> None:
    """DL-C29: with lr 1 and no momentum. The weights are those of the plain run after the two subtractions of
    the outer step, each of which rounds once."""
    plain = jobs.sft(tmp_path, steps=6, save_every=6)
    jobs.here(plain, "plain")
    spec = diloco(plain, least=1, inner_steps=6, outer={"lr": 1.0, "momentum": 0.0}, quorum=1, grace=0)
    said = json.loads(spec.read_bytes())
    jobs.write(tmp_path, {**said, "replicas": {"min": 1, "max": 1}})
    jobs.here(spec, "one")
    Engine.load("corral/tiny", lora=Lora(), seed=3).save_adapter(tmp_path / "start")

    history, _ = jobs.losses(tmp_path / "plain")
    assert jobs.losses(tmp_path / "one")[0] == history
    began = load_file(tmp_path / "start" / "adapter_model.safetensors")
    there, here = load_file(tmp_path / "plain" / WEIGHTS), load_file(tmp_path / "one" / WEIGHTS)
    assert set(began) == set(there) == set(here)
    for name, param in here.items():
        assert torch.equal(param, began[name] - (began[name] - there[name])), name
    assert any(not torch.equal(began[name], param) for name, param in here.items())


def test_who_comes_when_the_others_have_finished_heals_and_ends_too(tmp_path: Path) -> None:
    """With a checkpoint of its own, and with nothing at all."""
    spec = diloco(
        jobs.sft(tmp_path, steps=8, save_every=2), least=1, most=3, inner_steps=4, grace=0, fragments=2
    )
    # Killed after its checkpoint, between two rounds.
    jobs.here(spec, "rank1", die_after=2, CORRAL_RANK="1", CORRAL_RUN_ID="r-test")
    jobs.here(spec, "rank0", CORRAL_RANK="0", CORRAL_RUN_ID="r-test")
    back = jobs.here(spec, "rank1", again=True, CORRAL_RANK="1", CORRAL_RUN_ID="r-test")
    late = jobs.here(spec, "rank2", CORRAL_RANK="2", CORRAL_RUN_ID="r-test")
    assert weights(spec, "rank0") == weights(spec, "rank1") == weights(spec, "rank2")
    assert not any("total" in said for said in late.said)
    # Its first steps are in its record; those that it missed are not.
    history, evaluations = jobs.losses(tmp_path / "rank1")
    assert [row["step"] for row in history] == [1, 2]
    assert evaluations[-1][0] == 8
    assert not any("total" in said for said in back.said)


def test_replicas_sample_tasks_of_their_own(tmp_path: Path) -> None:
    """Rewards are compared within a group, and no group has members on two replicas."""
    spec = diloco(jobs.grpo(tmp_path, steps=2), least=1, inner_steps=1, grace=0, quorum=1)
    seen = []
    for rank in range(2):
        jobs.here(spec, f"rank{rank}", CORRAL_RANK=str(rank), CORRAL_RUN_ID=f"r-{rank}")
        rows = read_lines(tmp_path / f"rank{rank}" / "samples.jsonl")
        seen.append({row["task"] for row in rows if row.get("advantage") is not None})
    assert seen[0]
    assert seen[1]
    assert seen[0].isdisjoint(seen[1])


def test_rollouts_of_other_weights_are_not_learned_from(tmp_path: Path) -> None:
    """After a kill the journal has rollouts; they count only where the weights of the last round are those
    that sampled them."""
    table = {"least": 1, "inner_steps": 2, "grace": 0, "quorum": 1}
    spec = diloco(jobs.grpo(tmp_path, steps=4, save_every=1), **table)
    jobs.here(spec, "killed", die_after=3, CORRAL_RUN_ID="r-test", CORRAL_RANK="0")
    journal = tmp_path / "killed-checkpoints" / "work" / "journal"
    [kept] = journal.glob("*.jsonl")
    assert int(kept.stem) == 3
    head, *rows = [json.loads(line) for line in kept.read_text().splitlines()]
    kept.write_text("".join(json.dumps(row) + "\n" for row in [head, *({**r, "reward": 0.75} for r in rows)]))
    # The checkpoint is of step 3; the last round was after step 2.
    jobs.here(spec, "killed", again=True, CORRAL_RUN_ID="r-test", CORRAL_RANK="0")
    history, _ = jobs.losses(tmp_path / "killed")
    assert [row["step"] for row in history] == [1, 2, 3, 4]
    assert history[3]["reward"] != 0.75


def test_without_a_store_the_run_ends_with_what_to_do(tmp_path: Path) -> None:
    spec = diloco(jobs.sft(tmp_path), store="corral")
    with pytest.raises(StoreRefused) as found:
        jobs.here(spec, "rank0", CORRAL_RANK="0")
    assert found.value.hint


@pytest.mark.parametrize(
    ("store", "code", "word"),
    [("meet", job.DIVERGED, "gradients"), ("/proc/corral", job.AWAY, "/proc/corral")],
)
def test_how_a_replica_ended_says_cause_and_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], store: str, code: int, word: str
) -> None:
    """A guard ends the replica that it is about; a store that cannot be used is told as that."""
    spec = jobs.sft(tmp_path, steps=400, save_every=400, learning_rate=0.9, grad_clip=0, schedule="constant")
    outer = {"lr": 10.0, "momentum": 0.99}
    diloco(spec, least=1, inner_steps=1, grace=0, quorum=1, outer=outer, store=str(tmp_path / store))
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    try:
        assert job.main(jobs.places(spec, "out"), {"CORRAL_RANK": "0"}) == code
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])
    said = capsys.readouterr().err
    assert word in said
    assert "hint: " in said


def test_weights_that_are_no_numbers_end_the_replica_and_spoil_nobody(tmp_path: Path) -> None:
    """DL-D36: what others have stays as it was."""
    engine, kept = (Engine.load("corral/tiny", lora=Lora(), seed=3) for _ in range(2))
    settings = parse({"inner_steps": 1, "store": str(tmp_path), "quorum": 1}, RankRange(1, 2))
    events = EventWriter(None, TerminalOutput(io.StringIO()))
    rounds = OuterRounds(settings, ReplicaPlace("r-test", 0), engine, events, total=4)
    assert (rounds.join(), rounds.changed) == (0, False)
    next(iter(engine.weights.values())).detach().fill_(float("nan"))
    with pytest.raises(NotFinite) as found:
        rounds.step(10)
    assert job.code_of(found.value) == job.DIVERGED
    other = OuterRounds(settings, ReplicaPlace("r-test", 1), kept, events, total=4)
    assert (other.join(), other.changed) == (0, False)

"""Replicas of one training run: who may be missing, whose result counts, and what each goes on from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from contract.samples import an_artifact

from corral.domain.artifacts import Artifact, ArtifactKind
from corral.domain.ids import ArtifactId
from corral.domain.runs.reasons import Reason
from model.test_gangs import Gang


@pytest.fixture(params=["train", "command"])
def replicas(request: pytest.FixtureRequest) -> Iterator[Gang]:
    made = Gang(3, elastic=True, minimum=2, kind=request.param)
    yield made
    made.close()


@pytest.fixture
def training() -> Iterator[Gang]:
    made = Gang(3, elastic=True, minimum=2, kind="train")
    yield made
    made.close()


def made_by(gang: Gang, rank: int, kind: ArtifactKind = ArtifactKind.OUTPUT) -> ArtifactId:
    lease = gang.leases[rank]
    artifact: Artifact = an_artifact(
        kind=kind,
        run_id=gang.run.id,
        attempt=lease.attempt,
        rank=lease.rank,
        epoch=lease.epoch,
        step=4,
        created_by=f"lease:{lease.id}",
    )
    gang.write(lambda tx: tx.artifacts.insert(artifact, []))
    return artifact.id


def result(gang: Gang) -> ArtifactId | None:
    found = gang.write(lambda tx: tx.runs.get(gang.run.id))
    assert found is not None
    return found.artifact_id


def test_a_replica_that_diverged_ends_alone_while_the_minimum_runs(replicas: Gang) -> None:
    """No retry of the code's budget is there; another error of the code would end the run."""
    assert replicas.end(1, "fail", Reason.DIVERGED) == ("running", "retired")
    assert replicas.beat(0) == "continue"
    assert replicas.end(2, "fail", Reason.DIVERGED).run_state == "failed"
    found = replicas.write(lambda tx: tx.runs.get(replicas.run.id))
    assert found is not None
    assert found.reason == Reason.DIVERGED
    assert replicas.problems() == []


def test_a_store_that_is_away_costs_a_rank_a_retry_of_the_infrastructure(training: Gang) -> None:
    assert training.end(1, "fail", Reason.STORE_AWAY).run_state == "running"
    found = training.write(lambda tx: tx.runs.get(training.run.id))
    assert found is not None
    assert found.used_infrastructure == 1
    (lease,) = training.claim(training.new_host())
    assert lease.rank == 1


def test_without_rank_0_the_result_of_a_training_run_is_anothers(replicas: Gang) -> None:
    """Replicas have made the same; of other programs rank 0 alone makes the result."""
    replicas.end(0, "fail", Reason.DIVERGED)
    made = {rank: made_by(replicas, rank) for rank in (1, 2)}
    replicas.end(2, "finish", artifact_id=made[2])
    assert replicas.end(1, "finish", artifact_id=made[1]).run_state == "succeeded"
    assert result(replicas) == (made[1] if replicas.run.kind == "train" else None)


def test_a_replica_goes_on_from_its_own_checkpoint_or_from_none(replicas: Gang) -> None:
    """Its optimiser and record are of its own rows; the weights come from the last round."""
    kept = {rank: made_by(replicas, rank, ArtifactKind.CHECKPOINT) for rank in (0, 2)}
    replicas.lose(1)
    replicas.claim(replicas.new_host())
    (grant,) = replicas.granted
    assert grant.lease.rank == 1
    resumed = None if grant.resume is None else grant.resume.id
    assert resumed == (None if replicas.run.kind == "train" else kept[2])
    replicas.lose(2)
    replicas.claim(replicas.new_host())
    (grant,) = replicas.granted
    assert grant.resume is not None
    assert (grant.lease.rank, grant.resume.id) == (2, kept[2])

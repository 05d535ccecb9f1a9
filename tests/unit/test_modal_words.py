"""How a sandbox ended, read as what is seen of a rank; GPUs; names."""

from __future__ import annotations

import sys

import pytest

from corral.adapters.executors.modal.executor import ModalExecutor
from corral.adapters.executors.modal.gpus import gpu_of, refusals
from corral.adapters.executors.modal.options import LONGEST_S, ModalOptions
from corral.adapters.executors.modal.sandboxes import SandboxHandle, name_of, request_of
from corral.adapters.executors.modal.sightings import SandboxEnd, ended_rank, is_broken
from corral.domain.hosts.capability import GIB, Requirements
from corral.domain.placements.orders import LaunchOrder, RankSighting, SightCause, SightState

OPTIONS = ModalOptions(image="registry.example/corral:1")


def order(**changes: object) -> LaunchOrder:
    made = LaunchOrder(
        "k", "i-1", "r-1", "run", "p", 2, 2, Requirements(), ("worker",), {"A": "b"}, ("t0", "t1")
    )
    return made._replace(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("end", "state", "cause", "code", "number"),
    [
        (SandboxEnd("SUCCESS", 0), SightState.SUCCEEDED, None, 0, None),
        (SandboxEnd("FAILURE", 3), SightState.FAILED, SightCause.EXITED, 3, None),
        (SandboxEnd("FAILURE", 137), SightState.FAILED, SightCause.EXITED, 137, 9),
        # The number that the SDK has for these is its own, and may be 0.
        (SandboxEnd("TIMEOUT", 124), SightState.FAILED, SightCause.DEADLINE, None, None),
        (SandboxEnd("TERMINATED", 137, asked=True), SightState.FAILED, SightCause.CANCELLED, None, None),
        (SandboxEnd("TERMINATED", 137), SightState.FAILED, SightCause.UNKNOWN, None, None),
        (SandboxEnd("KERNEL_OOM_KILL", 137), SightState.FAILED, SightCause.OUT_OF_MEMORY, None, None),
        (SandboxEnd("INTERNAL_FAILURE", 0), SightState.FAILED, SightCause.UNKNOWN, None, None),
        (SandboxEnd("INIT_FAILURE", 0, "no such file"), SightState.FAILED, SightCause.UNKNOWN, None, None),
    ],
)
def test_each_end_of_a_sandbox_is_told_as_it_is(
    end: SandboxEnd, state: SightState, cause: SightCause | None, code: int | None, number: int | None
) -> None:
    """DL-D18: an end that is no exit has no exit code."""
    seen = ended_rank(1, end, "sb-1")

    assert (seen.state, seen.cause, seen.exit_code, seen.signal) == (state, cause, code, number)
    assert end.words in seen.detail


def test_a_gang_is_broken_when_too_few_are_left() -> None:
    """DL-D13."""
    states = (SightState.RUNNING, SightState.FAILED, SightState.SUCCEEDED)
    ranks = [RankSighting(rank, state) for rank, state in enumerate(states)]

    assert is_broken(ranks, 3)
    assert not is_broken(ranks, 2)


@pytest.mark.parametrize(
    ("need", "name"),
    [
        (Requirements(gpus=1), "T4"),
        (Requirements(gpus=1, gpu=("A100",), min_vram_bytes=80 * GIB), "A100-80GB"),
        (Requirements(gpus=8, gpu=("A10", "h100")), "H100"),
        (Requirements(gpus=1, min_compute_capability="9.0"), "RTX-PRO-6000"),
        (Requirements(gpus=1, gpu=("L40S", "h100")), "L40S"),
    ],
)
def test_a_rank_gets_the_smallest_gpu_that_fits(need: Requirements, name: str) -> None:
    """DL-D25."""
    found = gpu_of(need)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    ("need", "ranks", "words"),
    [
        (Requirements(gpus=1, gpu=("A6000",)), 1, "Modal has no GPU called A6000"),
        (Requirements(gpus=9, gpu=("H100",)), 1, "at most 8 in one sandbox"),
        (Requirements(gpus=4, gpu=("H100",)), 3, "needs 12 GPUs at once; the workspace may have 10"),
        (Requirements(), 101, "needs 101 sandboxes at once"),
        (Requirements(min_cores=65), 1, "needs 65 cores"),
        (Requirements(min_ram_bytes=400 * GIB), 1, "at most 336 GiB"),
        (Requirements(labels=("nvme",)), 1, "lacks the labels nvme"),
        (Requirements(arch="arm64"), 1, "sandboxes are x86_64"),
        (Requirements(os="windows"), 1, "sandboxes run linux"),
        (Requirements(hosts=("a",)), 1, "allows only the hosts a"),
    ],
)
def test_what_modal_could_never_run_is_refused_with_the_reason(
    need: Requirements, ranks: int, words: str
) -> None:
    """DL-D25, DL-D32: the workspace's limits, which Modal tells nobody, are options."""
    (reason,) = refusals(need, ranks, OPTIONS)
    assert words in reason


def test_a_sandbox_is_asked_for_with_what_a_rank_needs() -> None:
    """DL-C13, DL-D24."""
    need = Requirements(gpus=2, gpu=("H100",), min_cores=4, min_ram_bytes=GIB)
    made = request_of(order(need=need, limit_s=10**6), OPTIONS, 1)

    assert (made.gpu, made.cores, made.ram_mib, made.timeout_s) == ("H100:2", 4.0, 1024, LONGEST_S)
    assert made.environ == {"A": "b", "CORRAL_PLACED_RANK": "1"}
    assert list(made.secret.values()) == ["t1"]
    assert made.args[-1] == "worker"
    assert "t1" not in " ".join(made.args)


def test_names_are_short_enough_and_handles_lead_back() -> None:
    """DL-D23, DL-D28."""
    assert len(name_of("i-1", "k" * 40, 99_999)) < 64
    handle = SandboxHandle("0a", "k-1", 2, ("sb-1", "-", "sb-2"))
    assert SandboxHandle.parse(str(handle)) == handle
    assert SandboxHandle.parse("x") is None


def test_without_the_sdk_a_check_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """DL-C02, DL-D47."""
    monkeypatch.setitem(sys.modules, "modal", None)

    (check,) = ModalExecutor(OPTIONS).preflight()

    assert not check.ok
    assert "pip install 'corral[modal]'" in check.fix

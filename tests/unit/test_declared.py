"""What an operator declares of a host. FL-C05: the more restrictive of reported and declared wins."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.domain.errors import InvalidInput
from corral.domain.hosts.capability import GIB, Capability, Gpu, Requirements, judge
from corral.domain.hosts.policy import (
    NOTHING_DECLARED,
    HostPolicy,
    RequestedWork,
    effective,
    effective_slots,
    read_declared,
    refusals,
    render_declared,
)
from corral.wire.base import validated
from corral.wire.hosts import HostTable

BIG = Capability(
    hostname="big",
    os="linux",
    arch="x86_64",
    cores=16,
    ram_bytes=64 * GIB,
    disk_bytes=1000 * GIB,
    gpus=(Gpu(0, "A100", memory_bytes=80 * GIB), Gpu(1, "A100", memory_bytes=80 * GIB)),
    labels=("lab",),
)
PATTERNS = ("kind:train", "recipe:grpo", "model:Qwen*", "project:lab-*", "name:eval-*", "eval-*", "*")

amounts = st.none() | st.integers(0, 8)
names = st.lists(st.sampled_from(["lab", "fast", "lab-1", "other"]), max_size=3, unique=True).map(tuple)
patterns = st.lists(st.sampled_from(PATTERNS), max_size=3).map(tuple)
declarations = st.builds(
    HostPolicy,
    slots=amounts,
    cores=amounts,
    ram_bytes=amounts,
    disk_bytes=amounts,
    gpus=amounts | st.lists(st.integers(0, 4), max_size=4, unique=True).map(lambda i: tuple(sorted(i))),
    vram_bytes=amounts,
    slots_per_gpu=st.none() | st.integers(1, 4),
    labels=names,
    allow=patterns,
    deny=patterns,
    projects=st.none() | names,
    secrets=st.none() | names,
)


def gpus(amount: st.SearchStrategy[int | None]) -> st.SearchStrategy[tuple[Gpu, ...]]:
    one = st.builds(
        Gpu,
        index=st.integers(0, 4),
        name=st.sampled_from(["H100", "A100"]),
        memory_bytes=amount,
        compute_capability=st.sampled_from(["8.0", "9.0"]),
    )
    return st.lists(one, max_size=4, unique_by=lambda gpu: gpu.index).map(tuple)


def capabilities(amount: st.SearchStrategy[int | None]) -> st.SearchStrategy[Capability]:
    return st.builds(
        Capability,
        hostname=st.just("host"),
        os=st.just("linux"),
        arch=st.just("x86_64"),
        cores=amount,
        ram_bytes=amount,
        disk_bytes=amount,
        gpus=gpus(amount),
        labels=names,
    )


needs = st.builds(
    Requirements,
    gpus=st.integers(0, 3),
    gpu=st.sampled_from([(), ("H100",), ("H100", "A100")]),
    min_vram_bytes=amounts,
    min_ram_bytes=amounts,
    min_cores=amounts,
    min_disk_bytes=amounts,
    min_compute_capability=st.none() | st.sampled_from(["8.0", "9.0"]),
    labels=names,
)


@given(needs, capabilities(amounts), declarations)
def test_what_counts_is_never_more_than_was_reported_or_declared(
    need: Requirements, reported: Capability, declared: HostPolicy
) -> None:
    """FL-C05."""
    counts = effective(reported, declared)
    for field in ("cores", "ram_bytes", "disk_bytes"):
        known = [v for v in (getattr(reported, field), getattr(declared, field)) if v is not None]
        assert getattr(counts, field) == min(known, default=None)
    assert {gpu.index for gpu in counts.gpus or ()} <= {gpu.index for gpu in reported.gpus or ()}
    if isinstance(declared.gpus, int):
        assert len(counts.gpus or ()) <= declared.gpus
    elif declared.gpus is not None:
        assert {gpu.index for gpu in counts.gpus or ()} <= set(declared.gpus)
    for gpu in counts.gpus or ():
        if declared.vram_bytes is not None:
            assert gpu.memory_bytes is not None
            assert gpu.memory_bytes <= declared.vram_bytes
    verdict = judge(need, counts, host="host")
    assert verdict.eligible == (not verdict.shortfalls)


@given(needs, capabilities(st.integers(0, 8)), declarations)
def test_a_declaration_never_makes_a_host_eligible_except_by_its_labels(
    need: Requirements, reported: Capability, declared: HostPolicy
) -> None:
    """Of a host that knows what it has. What it does not know, a declaration may stand in for."""
    declared = replace(declared, labels=())
    if judge(need, effective(reported, declared), host="host").eligible:
        assert judge(need, reported, host="host").eligible


@given(declarations)
def test_a_declaration_reads_as_it_was_written(declared: HostPolicy) -> None:
    assert read_declared(render_declared(declared)) == declared


def test_a_declared_limit_stands_in_for_what_the_host_does_not_know() -> None:
    """FL-D26: unknown is unknown; the operator may know better, but never more than the host."""
    unknown = replace(BIG, ram_bytes=None, gpus=None)
    counts = effective(unknown, HostPolicy(ram_bytes=32 * GIB, gpus=2))
    assert counts.ram_bytes == 32 * GIB
    assert counts.gpus is None
    assert effective(unknown, HostPolicy(gpus=0)).gpus == ()
    assert effective(BIG, HostPolicy(ram_bytes=128 * GIB)).ram_bytes == 64 * GIB


def test_gpus_are_chosen_by_number_or_by_index_and_share_a_limit() -> None:
    assert [gpu.index for gpu in effective(BIG, HostPolicy(gpus=1)).gpus or ()] == [0]
    chosen = effective(BIG, HostPolicy(gpus=(1, 7), vram_bytes=40 * GIB)).gpus or ()
    assert [(gpu.index, gpu.memory_bytes) for gpu in chosen] == [(1, 40 * GIB)]


def test_slots_are_the_fewer_of_both_and_labels_are_of_both() -> None:
    assert effective_slots(4, NOTHING_DECLARED) == 4
    assert effective_slots(4, HostPolicy(slots=2)) == 2
    assert effective_slots(4, HostPolicy(slots=9)) == 4
    assert effective(BIG, HostPolicy(labels=("fast", "lab"))).labels == ("lab", "fast")


TRAIN = RequestedWork(
    "lab", kind="train", recipe="grpo", model="Qwen/Qwen3-0.6B", name="eval-1", secrets=True
)


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        (HostPolicy(), []),
        (HostPolicy(allow=("recipe:grpo",)), []),
        (HostPolicy(allow=("recipe:sft", "eval-*")), []),
        (HostPolicy(allow=("recipe:sft",)), ["the host allows only recipe:sft"]),
        (HostPolicy(allow=("kind:train",), deny=("model:Qwen*",)), ["the host denies model:Qwen*"]),
        (
            HostPolicy(projects=("art",), secrets=(), deny=("eval-*",)),
            [
                "the host serves the projects art; the run is of lab",
                "the host may not get the secrets of project lab",
                "the host denies eval-*",
            ],
        ),
    ],
)
def test_policy_says_every_reason(declared: HostPolicy, said: list[str]) -> None:
    assert list(refusals(declared, TRAIN)) == said


@given(declarations, st.sampled_from(["eval-1", "train-1"]))
def test_what_is_refused_without_the_name_is_refused_with_it(declared: HostPolicy, name: str) -> None:
    work = TRAIN._replace(name=None)
    if refusals(declared, work):
        assert refusals(declared, work._replace(name=name))


@pytest.mark.parametrize(
    ("table", "place", "said"),
    [
        ({"slot": 2}, "hosts.big.slot", "did you mean `slots`"),
        ({"gpus": "two"}, "hosts.big.gpus", "neither how many GPUs nor a list"),
        ({"gpus": [1, 1]}, "hosts.big.gpus", "names a GPU twice"),
        ({"gpus": True}, "hosts.big.gpus", "neither how many"),
        ({"ram": "lots"}, "hosts.big.ram", "is not a size"),
        ({"allow": ["knd:train"]}, "hosts.big.allow[0]", "a pattern is about name, kind"),
        ({"allow": ["kind:"]}, "hosts.big.allow[0]", "names nothing"),
        ({"slots": "2"}, "hosts.big.slots", "a whole number"),
        ({"labels": ["no spaces"]}, "hosts.big.labels[0]", "is not a name"),
    ],
)
def test_a_wrong_table_is_refused_with_its_place(table: dict[str, object], place: str, said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        validated(HostTable, table, what="hosts.big", under="hosts.big")
    (field,) = caught.value.fields
    assert field.path == place
    assert said in field.message


def test_a_table_is_read_with_its_units() -> None:
    declared = HostTable.model_validate({"ram": "16GiB", "gpus": [1, 0], "secrets": []}).declared()
    assert declared == HostPolicy(ram_bytes=16 * GIB, gpus=(0, 1), secrets=())

"""Which host takes which run: policy, preference, shared GPUs, and what was given back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.placement_scene import POLICY, PlacementScene, machine

from corral.core.queue.choose import LOOKED_AT
from corral.core.queue.roster import AGAIN_S
from corral.core.queue.why import HostStanding
from corral.domain.hosts.capability import GIB, Requirements
from corral.domain.hosts.policy import HostPolicy
from corral.domain.quotas import Quota
from corral.domain.runs.reasons import Reason
from corral.recipes import offers

CUDA = Requirements(prefer="cuda", prefer_for_s=120.0)
HALF = Requirements(gpus=1, min_vram_bytes=40 * GIB, share_gpu=True)


@pytest.fixture
def ground() -> Iterator[PlacementScene]:
    made = PlacementScene()
    yield made
    made.db.end()


def test_a_host_takes_only_what_is_declared_of_it(ground: PlacementScene) -> None:
    """FL-C05: the more restrictive of reported and declared wins, at the next claim."""
    ground.host("big", machine(gpus=2), slots=4)
    large = ground.submit(Requirements(min_ram_bytes=32 * GIB))
    ground.declare("big", HostPolicy(ram_bytes=16 * GIB))
    assert ground.claim("big") == []
    assert ground.why(large)["big"].reasons == ("needs 32 GiB RAM; the host has 16 GiB",)
    ground.declare("big", None)
    assert ground.claim("big") == [large]


def test_of_hosts_that_fit_the_first_that_is_free_takes_the_run(ground: PlacementScene) -> None:
    """DEF-07: as recipes/offers.py says; the ranking of an estimate does not place anything."""
    ground.host("slow", machine(gpus=1, vram=24))
    ground.host("fast", machine(gpus=1, vram=141))
    run = ground.submit(Requirements(gpus=1, min_vram_bytes=16 * GIB))

    assert ground.claim("slow") == [run]
    assert "the first that\nis free takes it" in (offers.__doc__ or "")


def test_declared_slots_and_gpus_bound_what_runs_at_once(ground: PlacementScene) -> None:
    ground.host("big", machine(gpus=2), slots=4)
    ground.declare("big", HostPolicy(slots=2, gpus=(1,)))
    first, second = ground.submit(Requirements(gpus=1)), ground.submit(Requirements(gpus=1))
    (granted,) = ground.poll("big", most=4).grants
    assert (granted.run.id, granted.lease.gpus) == (first, "[1]")
    assert ground.why(second)["big"].waits[0] == "needs 1 free GPU; 0 are free"
    plain = [ground.submit(), ground.submit()]
    assert ground.claim("big", most=4) == plain[:1]
    assert ground.why(plain[1])["big"].waits == ("every slot is busy",)


@pytest.mark.parametrize(
    ("need", "waits"),
    [
        (
            Requirements(min_ram_bytes=40 * GIB),
            "needs 40 GiB RAM; 24 GiB are left beside other runs",
        ),
        (Requirements(min_cores=5), "needs 5 cores; 3 are left beside other runs"),
        (Requirements(min_disk_bytes=60 * GIB), "needs 60 GiB disk; 40 GiB are left beside other runs"),
    ],
    ids=["memory", "cores", "disk"],
)
def test_what_a_run_asks_for_is_set_aside(ground: PlacementScene, need: Requirements, waits: str) -> None:
    """DEF-01, FL-D25: in one claim and over several, until the run ends."""
    ground.host("box", replace(machine(), disk_bytes=100 * GIB), slots=8)
    first, second = ground.submit(need), ground.submit(need)
    (granted,) = ground.poll("box", most=8).grants
    assert granted.run.id == first
    assert ground.claim("box", most=8) == []
    assert ground.why(second)["box"].waits == (waits,)
    # What asks for nothing runs beside it.
    small = ground.submit()
    assert ground.claim("box", most=8) == [small]
    ground.finish(granted)
    assert ground.claim("box", most=8) == [second]


def test_policy_is_by_project_kind_recipe_model_and_secrets(ground: PlacementScene) -> None:
    ground.host("box")
    train = Requirements(kind="train", recipe="grpo", model="corral/tiny", secrets=True)
    mine, other = ground.submit(train, project="lab"), ground.submit(project="art")
    for declared in (
        HostPolicy(projects=("art",)),
        HostPolicy(secrets=("art",)),
        HostPolicy(deny=("kind:train",)),
        HostPolicy(deny=("recipe:gr*",)),
        HostPolicy(deny=("model:corral/*",)),
        HostPolicy(allow=("project:art",)),
    ):
        ground.declare("box", declared)
        grant = ground.grant("box")
        assert grant.run.id == other
        assert len(ground.why(mine)["box"].reasons) == 1
        ground.end(grant, "stopped", Reason.RELEASED)
    ground.declare("box", HostPolicy(projects=("art",), secrets=(), deny=("kind:train", "train")))
    assert len(ground.why(mine)["box"].reasons) == 4
    ground.declare("box", HostPolicy(projects=("lab",)))
    assert ground.claim("box") == [mine]


def test_a_run_behind_others_is_found_by_its_name(ground: PlacementScene) -> None:
    """Names are not part of a shape: they are looked at one by one, in order, and others keep their place."""
    ground.host("box")
    ground.host("other")
    older = ground.submit_many(700, name="train")
    wanted = [ground.submit(name=f"eval-{n}") for n in range(2)]
    ground.declare("box", HostPolicy(allow=("eval-*",)))
    assert ground.claim("box", most=2) == wanted
    assert ground.claim("box") == []
    assert set(ground.claim("other", most=2)) <= set(older)


def test_more_refused_runs_than_one_claim_looks_at_do_not_starve_the_next(ground: PlacementScene) -> None:
    """The next claim goes on where the last one stopped, and one that comes back with its age is seen."""
    ground.host("box", slots=9)
    ground.host("other", slots=9)
    ground.declare("box", HostPolicy(deny=("train",)))
    first = ground.submit(name="eval")
    taken = ground.grant("box")
    assert taken.run.id == first
    ground.submit_many(LOOKED_AT + 200, name="train")
    wanted = ground.submit(name="eval")
    assert ground.claim("box") == []
    assert ground.claim("box") == [wanted]
    # Given back by a host that was lost: it keeps its age, and is before all that were refused.
    ground.lose(taken)
    assert ground.claim("box") == [first]


def test_a_host_is_not_kept_for_a_run_that_it_refuses_by_its_name(ground: PlacementScene) -> None:
    ground.host("box", machine(gpus=2))
    ground.declare("box", HostPolicy(deny=("large",)))
    first = ground.submit(Requirements(gpus=1))
    assert ground.claim("box") == [first]
    ground.submit(Requirements(gpus=2), name="large")
    for _ in range(3):
        assert ground.claim("box") == []
        ground.clock.advance(POLICY.reserve_after_s)
    second = ground.submit(Requirements(gpus=1))
    assert ground.claim("box") == [second]


def test_a_preferred_gpu_counts_only_where_it_is_given(ground: PlacementScene) -> None:
    """A project at its `max_gpus` still uses the CPUs: the wish alone is nothing that it holds (FL-D34)."""
    ground.host("cpu")
    ground.host("gpu", machine(gpus=4))
    ground.quota(Quota("default", max_gpus=1))
    first, second = ground.submit(CUDA), ground.submit(CUDA)
    assert ground.claim("gpu") == [first]
    assert ground.claim("gpu") == []
    ground.clock.advance(CUDA.prefer_for_s)
    assert any("leaves it no GPU" in note for note in ground.notes(second))
    assert ground.claim("cpu") == [second]
    third = ground.submit(CUDA)
    ground.clock.advance(CUDA.prefer_for_s)
    (grant,) = ground.poll("gpu").grants
    assert (grant.run.id, grant.lease.gpus) == (third, "[]")


def test_what_why_says_of_gpu_hours_is_what_a_claim_does(ground: PlacementScene) -> None:
    """So near the end of the hours that a run could only be stopped, none is begun, and `why` knows."""
    ground.host("gpu", machine(gpus=4))
    ground.quota(Quota("default", gpu_hours=1))
    said = []
    for before_end_s in (1.0, -1.0):
        run_id = ground.submit(Requirements(gpus=1))
        margin_s = POLICY.margin_s(ground.run(run_id))
        ground.use("default", gpu_s=3600 - margin_s - before_end_s)
        said.append(ground.held_back(run_id))
        claimed = ground.poll("gpu").grants
        assert [grant.run.id for grant in claimed] == ([run_id] if said[-1] is None else [])
        for grant in claimed:
            ground.end(grant, "finish", Reason.FINISHED, ran_s=0.0)
    assert said[0] is None
    assert "kept so that what runs can be stopped in time" in (said[1] or "")
    ground.use("default", gpu_s=3600.0)
    assert "has used 1.0 GPU hours" in (ground.held_back(run_id) or "")


def test_a_host_whose_policy_keeps_everything_from_it_writes_nothing(ground: PlacementScene) -> None:
    ground.host("box")
    ground.declare("box", HostPolicy(projects=("art",)))
    run_id = ground.submit()
    assert ground.claim("box") == []
    assert [event.type for event in ground.events(run_id)] == ["submit"]


def test_a_run_that_prefers_a_gpu_waits_its_time_and_then_goes_to_a_cpu(ground: PlacementScene) -> None:
    """FL-D34: the rule is stated, and it neither ignores the wish nor starves the run."""
    ground.host("cpu")
    ground.host("gpu", machine(gpus=1))
    run_id = ground.submit(CUDA)
    assert ground.claim("cpu") == []
    assert ground.why(run_id)["cpu"].waits == ("hosts with a GPU have first refusal for another 120 s",)
    assert ground.place(run_id, "gpu") is HostStanding.READY
    ground.clock.advance(60)
    ground.claim("gpu", most=0)
    assert ground.claim("cpu") == []
    ground.clock.advance(60)
    grant = ground.grant("cpu")
    assert (grant.run.id, grant.lease.gpus) == (run_id, "[]")


def test_a_run_that_prefers_a_gpu_gets_one(ground: PlacementScene) -> None:
    ground.host("gpu", machine(gpus=2))
    ground.submit(CUDA)
    assert ground.grant("gpu").lease.gpus == "[0]"


@pytest.mark.parametrize("gone", ["away", "draining", "aside", "revoked", "small", "refused", "none"])
def test_nobody_waits_for_a_gpu_that_cannot_come(ground: PlacementScene, gone: str) -> None:
    ground.host("cpu")
    if gone != "none":
        ground.host("gpu", machine(gpus=1, vram=8 if gone == "small" else 80))
    now = ground.clock.now()
    standings: dict[str, dict[str, object]] = {
        "away": {"last_seen_at": now - 1000},
        "draining": {"draining": True},
        "aside": {"set_aside_until": now + 50},
        "revoked": {"revoked_at": now},
    }
    if gone in standings:
        ground.save("gpu", **standings[gone])
    if gone == "refused":
        ground.declare("gpu", HostPolicy(projects=("art",)))
    need = Requirements(prefer="cuda", prefer_for_s=120.0, min_vram_bytes=16 * GIB)
    run_id = ground.submit(need)
    assert ground.place(run_id, "cpu") is HostStanding.READY
    assert ground.claim("cpu") == [run_id]


def test_the_wait_is_from_when_it_became_ready_and_only_once(ground: PlacementScene) -> None:
    ground.host("cpu")
    ground.host("gpu", machine(gpus=1))
    run_id = ground.submit(CUDA)
    ground.clock.advance(119)
    grant = ground.grant("gpu")
    assert grant.run.id == run_id
    ground.lose(grant)
    ground.claim("gpu", most=0)
    ground.claim("cpu", most=0)
    assert ground.claim("cpu") == [run_id]


def test_a_clock_that_went_back_does_not_make_it_wait_anew(ground: PlacementScene) -> None:
    ground.host("cpu")
    ground.host("gpu", machine(gpus=1))
    run_id = ground.submit(CUDA)
    ground.clock.jump(-3600)
    assert ground.claim("cpu") == [run_id]


def test_a_gpu_that_is_too_small_is_not_given_to_a_run_that_would_like_one(ground: PlacementScene) -> None:
    """FL-D24: a run with min_vram never sees a smaller GPU, not even where a GPU is only a wish."""
    ground.host("small", machine(gpus=1, vram=8))
    ground.submit(Requirements(prefer="cuda", prefer_for_s=120.0, min_vram_bytes=16 * GIB))
    assert ground.grant("small").lease.gpus == "[]"


def test_a_busy_gpu_is_waited_for_and_then_done_without(ground: PlacementScene) -> None:
    ground.host("gpu", machine(gpus=1))
    ground.submit(Requirements(gpus=1))
    ground.grant("gpu")
    run_id = ground.submit(CUDA)
    assert ground.claim("gpu") == []
    assert "it waits for a GPU here, which it prefers" in ground.why(run_id)["gpu"].waits[0]
    ground.clock.advance(120)
    assert ground.grant("gpu").lease.gpus == "[]"


def test_two_runs_share_a_gpu_and_a_third_waits_with_the_reason(ground: PlacementScene) -> None:
    """FL-D10."""
    ground.host("gpu", machine(gpus=1, vram=80))
    first, second, third = (ground.submit(HALF) for _ in range(3))
    granted = ground.poll("gpu", most=3).grants
    assert [grant.run.id for grant in granted] == [first, second]
    assert [(g.lease.gpus, g.lease.gpu_bytes) for g in granted] == [("[0]", 40 * GIB)] * 2
    standing = ground.why(third)["gpu"]
    assert standing.place is HostStanding.WAITS
    assert "GPU 0 is shared by 2 runs; 0 MiB of it are left" in standing.waits
    ground.finish(granted[0])
    assert ground.claim("gpu") == [third]


def test_a_whole_gpu_is_never_shared(ground: PlacementScene) -> None:
    ground.host("gpu", machine(gpus=2, vram=80))
    whole = ground.submit(Requirements(gpus=1))
    assert ground.claim("gpu") == [whole]
    shared = ground.submit(HALF)
    assert ground.grant("gpu").lease.gpus == "[1]"
    another = ground.submit(Requirements(gpus=1))
    assert ground.claim("gpu") == []
    assert ground.why(another)["gpu"].note == (
        "2 of 4 slots busy; GPU 0 is held by one run; GPU 1 is shared by 1 run; 40 GiB of it are left"
    )
    assert shared != another


def test_sharers_are_packed_so_that_whole_gpus_stay_free(ground: PlacementScene) -> None:
    ground.host("gpu", machine(gpus=2, vram=80))
    for _ in range(2):
        ground.submit(HALF)
    assert [grant.lease.gpus for grant in ground.poll("gpu", most=2).grants] == ["[0]", "[0]"]
    whole = ground.submit(Requirements(gpus=1))
    assert ground.claim("gpu") == [whole]


def test_slots_per_gpu_bound_the_sharers(ground: PlacementScene) -> None:
    ground.host("gpu", machine(gpus=1, vram=80))
    ground.declare("gpu", HostPolicy(slots_per_gpu=1))
    ground.submit(Requirements(gpus=1, min_vram_bytes=GIB, share_gpu=True))
    waiting = ground.submit(Requirements(gpus=1, min_vram_bytes=GIB, share_gpu=True))
    assert len(ground.poll("gpu", most=2).grants) == 1
    assert "GPU 0 is shared by 1 run of at most 1; 79 GiB of it are left" in ground.why(waiting)["gpu"].waits


def test_eligibility_goes_by_totals_and_reservations_not_by_the_moment(ground: PlacementScene) -> None:
    """FL-D25: a GPU that is busy now is not a reason why never."""
    ground.host("gpu", machine(gpus=1, vram=80))
    ground.submit(HALF)
    ground.grant("gpu")
    whole = ground.submit(Requirements(gpus=1, min_vram_bytes=60 * GIB))
    standing = ground.why(whole)["gpu"]
    assert standing.eligible
    assert standing.place is HostStanding.WAITS


def test_a_run_that_was_given_back_goes_elsewhere_first_and_costs_no_attempt(ground: PlacementScene) -> None:
    """FL-D36: a host that finds, before the start, that it cannot do it gives it back free of charge."""
    ground.host("one")
    ground.host("two")
    run_id = ground.submit(lost=0)
    grant = ground.grant("one")
    ground.end(grant, "stopped", Reason.RELEASED, ran_s=0, detail="GPU 0 has vanished")
    assert ground.run(run_id).used.infrastructure == 0
    said = [json.loads(event.data).get("detail") for event in ground.events(run_id)]
    assert "GPU 0 has vanished" in said
    assert ground.claim("one") == []
    assert "it gave the run back (GPU 0 has vanished)" in ground.why(run_id)["one"].waits[0]
    other = ground.submit()
    assert ground.claim("one") == [other]
    assert ground.claim("two") == [run_id]


def test_what_was_given_back_is_offered_again_after_a_while_or_to_the_next_boot(
    ground: PlacementScene,
) -> None:
    ground.host("one")
    run_id = ground.submit()
    ground.end(ground.grant("one"), "stopped", Reason.RELEASED, ran_s=0)
    assert ground.claim("one") == []
    ground.clock.advance(AGAIN_S)
    grant = ground.grant("one")
    assert grant.run.id == run_id
    ground.end(grant, "stopped", Reason.RELEASED, ran_s=0)
    ground.boot = "boot-two"
    assert ground.claim("one") == [run_id]


def test_why_names_each_host_and_all_that_keeps_it(ground: PlacementScene) -> None:
    now = ground.clock.now()
    for name in ("away", "draining", "aside", "revoked", "fine", "no"):
        ground.host(name, machine(labels=() if name == "no" else ("lab",)))
    ground.save("away", last_seen_at=now - 1000, draining=True)
    ground.save("draining", draining=True)
    ground.save("aside", set_aside_until=now + 60, set_aside_why="3 failures in a row")
    ground.save("revoked", revoked_at=now)
    found = ground.why(ground.submit(Requirements(labels=("lab",))))
    assert {name: str(standing.place) for name, standing in found.items()} == {
        "away": "away",
        "draining": "draining",
        "aside": "set_aside",
        "revoked": "revoked",
        "fine": "ready",
        "no": "no",
    }
    assert found["away"].reasons == (
        "the host is away (last seen 1000 s ago)",
        "the host is being drained",
    )
    assert found["aside"].reasons == ("the host is set aside for another 60 s: 3 failures in a row",)
    assert found["no"].reasons == ("lacks the label lab",)


def test_hosts_that_are_alike_are_judged_once_and_one_that_a_run_names_apart(ground: PlacementScene) -> None:
    """Whoever asks first, before or after the shape is known: only the named host takes it."""
    names = [f"box-{n}" for n in range(6)]
    for name in names:
        ground.host(name)
    plain = [ground.submit() for _ in names]
    assert [ground.claim(name) for name in names] == [[run_id] for run_id in plain]
    kinds = {ground.shapes.kind(ground.row(name)) for name in names}
    assert len(kinds) == 1
    for cores, in_turn in ((1, ["box-1", "box-4"]), (2, ["box-4", "box-1"])):
        pinned = ground.submit(Requirements(hosts=("box-4",), min_cores=cores))
        got = {name: ground.claim(name) for name in in_turn}
        assert got == {"box-1": [], "box-4": [pinned]}
    assert ground.shapes.kind(ground.row("box-4")) != ground.shapes.kind(ground.row("box-1"))
    ground.declare("box-2", HostPolicy(cores=2))
    large = ground.submit(Requirements(min_cores=8))
    assert [ground.claim(name) for name in ("box-2", "box-3")] == [[], [large]]


def test_one_that_lacks_a_program_is_not_taken_for_one_that_has_it(ground: PlacementScene) -> None:
    """All that a host reports but its names counts: what is added to it later does so too."""
    ground.host("with", replace(machine(), system={"ffmpeg": True}))
    ground.host("without", replace(machine(), system={"ffmpeg": False}))
    run_id = ground.submit(Requirements(system=("ffmpeg",)))
    assert ground.place(run_id, "with") is HostStanding.READY
    assert ground.place(run_id, "without") is HostStanding.NO
    assert ground.claim("without") == []
    assert ground.claim("with") == [run_id]

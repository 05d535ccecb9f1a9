"""Which host takes which run: policy, preference, shared GPUs, and what was given back."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from yards import Yard, machine

from corral.core.choose import PASS_OVER
from corral.core.roster import AGAIN_S
from corral.core.why import Place
from corral.domain.capability import GIB, Requirements
from corral.domain.declared import Declared
from corral.domain.reasons import Reason

CUDA = Requirements(prefer="cuda", prefer_for_s=120.0)
HALF = Requirements(gpus=1, min_vram_bytes=40 * GIB, share_gpu=True)


@pytest.fixture
def yard() -> Iterator[Yard]:
    made = Yard()
    yield made
    made.db.end()


def test_a_host_takes_only_what_is_declared_of_it(yard: Yard) -> None:
    """FL-C05: the more restrictive of reported and declared wins, at the next claim."""
    yard.host("big", machine(gpus=2), slots=4)
    large = yard.submit(Requirements(min_ram_bytes=32 * GIB))
    yard.declare("big", Declared(ram_bytes=16 * GIB))
    assert yard.claim("big") == []
    assert yard.why(large)["big"].reasons == ("needs 32 GiB RAM; the host has 16 GiB",)
    yard.declare("big", None)
    assert yard.claim("big") == [large]


def test_declared_slots_and_gpus_bound_what_runs_at_once(yard: Yard) -> None:
    yard.host("big", machine(gpus=2), slots=4)
    yard.declare("big", Declared(slots=2, gpus=(1,)))
    first, second = yard.submit(Requirements(gpus=1)), yard.submit(Requirements(gpus=1))
    (granted,) = yard.poll("big", most=4).grants
    assert (granted.run.id, granted.lease.gpus) == (first, "[1]")
    assert yard.why(second)["big"].waits[0] == "needs 1 free GPU; 0 are free"
    plain = [yard.submit(), yard.submit()]
    assert yard.claim("big", most=4) == plain[:1]
    assert yard.why(plain[1])["big"].waits == ("every slot is busy",)


def test_policy_is_by_project_kind_recipe_model_and_secrets(yard: Yard) -> None:
    yard.host("box")
    train = Requirements(kind="train", recipe="grpo", model="corral/tiny", secrets=True)
    mine, other = yard.submit(train, project="lab"), yard.submit(project="art")
    for declared in (
        Declared(projects=("art",)),
        Declared(secrets=("art",)),
        Declared(deny=("kind:train",)),
        Declared(deny=("recipe:gr*",)),
        Declared(deny=("model:corral/*",)),
        Declared(allow=("project:art",)),
    ):
        yard.declare("box", declared)
        grant = yard.grant("box")
        assert grant.run.id == other
        assert len(yard.why(mine)["box"].reasons) == 1
        yard.end(grant, "stopped", Reason.RELEASED)
    yard.declare("box", Declared(projects=("art",), secrets=(), deny=("kind:train", "train")))
    assert len(yard.why(mine)["box"].reasons) == 4
    yard.declare("box", Declared(projects=("lab",)))
    assert yard.claim("box") == [mine]


def test_a_run_behind_others_is_found_by_its_name(yard: Yard) -> None:
    """Names are not part of a shape: they are looked at one by one, in order, and others keep their place."""
    yard.host("box")
    yard.host("other")
    older = [yard.submit(name="train") for _ in range(PASS_OVER // 2)]
    wanted = yard.submit(name="eval-1")
    yard.declare("box", Declared(allow=("eval-*",)))
    assert yard.claim("box") == [wanted]
    assert yard.claim("box") == []
    assert yard.claim("other", most=2) == older[:2]


def test_a_host_whose_policy_keeps_everything_from_it_writes_nothing(yard: Yard) -> None:
    yard.host("box")
    yard.declare("box", Declared(projects=("art",)))
    run_id = yard.submit()
    assert yard.claim("box") == []
    assert [event.type for event in yard.events(run_id)] == ["submit"]


def test_a_run_that_prefers_a_gpu_waits_its_time_and_then_goes_to_a_cpu(yard: Yard) -> None:
    """FL-D34: the rule is stated, and it neither ignores the wish nor starves the run."""
    yard.host("cpu")
    yard.host("gpu", machine(gpus=1))
    run_id = yard.submit(CUDA)
    assert yard.claim("cpu") == []
    assert yard.why(run_id)["cpu"].waits == ("hosts with a GPU have first refusal for another 120 s",)
    assert yard.place(run_id, "gpu") is Place.READY
    yard.clock.advance(60)
    yard.claim("gpu", most=0)
    assert yard.claim("cpu") == []
    yard.clock.advance(60)
    grant = yard.grant("cpu")
    assert (grant.run.id, grant.lease.gpus) == (run_id, "[]")


def test_a_run_that_prefers_a_gpu_gets_one(yard: Yard) -> None:
    yard.host("gpu", machine(gpus=2))
    yard.submit(CUDA)
    assert yard.grant("gpu").lease.gpus == "[0]"


@pytest.mark.parametrize("gone", ["away", "draining", "aside", "revoked", "small", "refused", "none"])
def test_nobody_waits_for_a_gpu_that_cannot_come(yard: Yard, gone: str) -> None:
    yard.host("cpu")
    if gone != "none":
        yard.host("gpu", machine(gpus=1, vram=8 if gone == "small" else 80))
    now = yard.clock.now()
    standings: dict[str, dict[str, object]] = {
        "away": {"last_seen_at": now - 1000},
        "draining": {"draining": True},
        "aside": {"set_aside_until": now + 50},
        "revoked": {"revoked_at": now},
    }
    if gone in standings:
        yard.save("gpu", **standings[gone])
    if gone == "refused":
        yard.declare("gpu", Declared(projects=("art",)))
    need = Requirements(prefer="cuda", prefer_for_s=120.0, min_vram_bytes=16 * GIB)
    run_id = yard.submit(need)
    assert yard.place(run_id, "cpu") is Place.READY
    assert yard.claim("cpu") == [run_id]


def test_the_wait_is_from_when_it_became_ready_and_only_once(yard: Yard) -> None:
    yard.host("cpu")
    yard.host("gpu", machine(gpus=1))
    run_id = yard.submit(CUDA)
    yard.clock.advance(119)
    grant = yard.grant("gpu")
    assert grant.run.id == run_id
    yard.lose(grant)
    yard.claim("gpu", most=0)
    yard.claim("cpu", most=0)
    assert yard.claim("cpu") == [run_id]


def test_a_clock_that_went_back_does_not_make_it_wait_anew(yard: Yard) -> None:
    yard.host("cpu")
    yard.host("gpu", machine(gpus=1))
    run_id = yard.submit(CUDA)
    yard.clock.jump(-3600)
    assert yard.claim("cpu") == [run_id]


def test_a_gpu_that_is_too_small_is_not_given_to_a_run_that_would_like_one(yard: Yard) -> None:
    """FL-D24: a run with min_vram never sees a smaller GPU, not even where a GPU is only a wish."""
    yard.host("small", machine(gpus=1, vram=8))
    yard.submit(Requirements(prefer="cuda", prefer_for_s=120.0, min_vram_bytes=16 * GIB))
    assert yard.grant("small").lease.gpus == "[]"


def test_a_busy_gpu_is_waited_for_and_then_done_without(yard: Yard) -> None:
    yard.host("gpu", machine(gpus=1))
    yard.submit(Requirements(gpus=1))
    yard.grant("gpu")
    run_id = yard.submit(CUDA)
    assert yard.claim("gpu") == []
    assert "a GPU that it prefers is to become free here" in yard.why(run_id)["gpu"].waits[0]
    yard.clock.advance(120)
    assert yard.grant("gpu").lease.gpus == "[]"


def test_two_runs_share_a_gpu_and_a_third_waits_with_the_reason(yard: Yard) -> None:
    """FL-D10."""
    yard.host("gpu", machine(gpus=1, vram=80))
    first, second, third = (yard.submit(HALF) for _ in range(3))
    granted = yard.poll("gpu", most=3).grants
    assert [grant.run.id for grant in granted] == [first, second]
    assert [(g.lease.gpus, g.lease.gpu_bytes) for g in granted] == [("[0]", 40 * GIB)] * 2
    standing = yard.why(third)["gpu"]
    assert standing.place is Place.WAITS
    assert "GPU 0 is shared by 2 runs; 0 MiB of it are left" in standing.waits
    yard.finish(granted[0])
    assert yard.claim("gpu") == [third]


def test_a_whole_gpu_is_never_shared(yard: Yard) -> None:
    yard.host("gpu", machine(gpus=2, vram=80))
    whole = yard.submit(Requirements(gpus=1))
    assert yard.claim("gpu") == [whole]
    shared = yard.submit(HALF)
    assert yard.grant("gpu").lease.gpus == "[1]"
    another = yard.submit(Requirements(gpus=1))
    assert yard.claim("gpu") == []
    assert yard.why(another)["gpu"].note == (
        "2 of 4 slots busy; GPU 0 is held by one run; GPU 1 is shared by 1 run; 40 GiB of it are left"
    )
    assert shared != another


def test_sharers_are_packed_so_that_whole_gpus_stay_free(yard: Yard) -> None:
    yard.host("gpu", machine(gpus=2, vram=80))
    for _ in range(2):
        yard.submit(HALF)
    assert [grant.lease.gpus for grant in yard.poll("gpu", most=2).grants] == ["[0]", "[0]"]
    whole = yard.submit(Requirements(gpus=1))
    assert yard.claim("gpu") == [whole]


def test_slots_per_gpu_bound_the_sharers(yard: Yard) -> None:
    yard.host("gpu", machine(gpus=1, vram=80))
    yard.declare("gpu", Declared(slots_per_gpu=1))
    yard.submit(Requirements(gpus=1, min_vram_bytes=GIB, share_gpu=True))
    waiting = yard.submit(Requirements(gpus=1, min_vram_bytes=GIB, share_gpu=True))
    assert len(yard.poll("gpu", most=2).grants) == 1
    assert "GPU 0 is shared by 1 run of at most 1; 79 GiB of it are left" in yard.why(waiting)["gpu"].waits


def test_eligibility_goes_by_totals_and_reservations_not_by_the_moment(yard: Yard) -> None:
    """FL-D25: a GPU that is busy now is not a reason why never."""
    yard.host("gpu", machine(gpus=1, vram=80))
    yard.submit(HALF)
    yard.grant("gpu")
    whole = yard.submit(Requirements(gpus=1, min_vram_bytes=60 * GIB))
    standing = yard.why(whole)["gpu"]
    assert standing.eligible
    assert standing.place is Place.WAITS


def test_a_run_that_was_given_back_goes_elsewhere_first_and_costs_no_attempt(yard: Yard) -> None:
    """FL-D36: a host that finds, before the start, that it cannot do it gives it back free of charge."""
    yard.host("one")
    yard.host("two")
    run_id = yard.submit(lost=0)
    grant = yard.grant("one")
    yard.end(grant, "stopped", Reason.RELEASED, ran_s=0, detail="GPU 0 has vanished")
    assert yard.run(run_id).used.infrastructure == 0
    said = [json.loads(event.data).get("detail") for event in yard.events(run_id)]
    assert "GPU 0 has vanished" in said
    assert yard.claim("one") == []
    assert "it gave the run back (GPU 0 has vanished)" in yard.why(run_id)["one"].waits[0]
    other = yard.submit()
    assert yard.claim("one") == [other]
    assert yard.claim("two") == [run_id]


def test_what_was_given_back_is_offered_again_after_a_while_or_to_the_next_boot(yard: Yard) -> None:
    yard.host("one")
    run_id = yard.submit()
    yard.end(yard.grant("one"), "stopped", Reason.RELEASED, ran_s=0)
    assert yard.claim("one") == []
    yard.clock.advance(AGAIN_S)
    grant = yard.grant("one")
    assert grant.run.id == run_id
    yard.end(grant, "stopped", Reason.RELEASED, ran_s=0)
    yard.boot = "boot-two"
    assert yard.claim("one") == [run_id]


def test_why_names_each_host_and_all_that_keeps_it(yard: Yard) -> None:
    now = yard.clock.now()
    for name in ("away", "draining", "aside", "revoked", "fine", "no"):
        yard.host(name, machine(labels=() if name == "no" else ("lab",)))
    yard.save("away", last_seen_at=now - 1000, draining=True)
    yard.save("draining", draining=True)
    yard.save("aside", set_aside_until=now + 60, set_aside_why="3 failures in a row")
    yard.save("revoked", revoked_at=now)
    found = yard.why(yard.submit(Requirements(labels=("lab",))))
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

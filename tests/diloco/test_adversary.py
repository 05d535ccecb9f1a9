"""What a store, its users and bad luck may do to rounds: each is named or survived, and no sum is wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.waiting import eventually

from corral.diloco import blocks, records
from corral.diloco.blocks import Corrupt, Missing
from corral.diloco.codec import BLOCK, Codec, Compression
from corral.diloco.folder_store import FolderStore
from corral.diloco.loop import OuterLoop
from corral.diloco.outer import OuterOptimizer
from corral.diloco.round_store import StoredObject, StoreError
from corral.diloco.rounds import NotFinite, OtherSize, Point, ReplicaReplaced, Rounds
from diloco.test_rounds import HASTY, RULES, SIZE, Replica, a_round, same, together

ALONE = replace(HASTY, quorum=1)
AVERAGE = replace(RULES, outer=OuterOptimizer(1.0, 0.0))


class Held:
    """Stops a replica at one point until it is let go, as SIGSTOP does with a process."""

    def __init__(self, one: Replica, point: Point) -> None:
        self.there, self.go = threading.Event(), threading.Event()

        def reached(at: Point) -> None:
            if at == point:
                self.there.set()
                assert self.go.wait(120)

        one.rounds.reached = reached
        # The others are needed for it.
        self.late = point in ("reducing", "applying")
        self.found: list[Any] = []
        self.thread = threading.Thread(target=self._meet, args=(one,))

    def _meet(self, one: Replica) -> None:
        try:
            self.found.append(one.meet())
        except StoreError as error:
            self.found.append(error)

    def __enter__(self) -> Held:
        self.thread.start()
        if not self.late:
            self.arrive()
        return self

    def arrive(self) -> None:
        assert self.there.wait(120)

    def __exit__(self, *_: object) -> None:
        self.go.set()
        self.thread.join()


def rewritten(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    said = json.loads(path.read_bytes())
    change(said)
    path.write_text(json.dumps(said))


def hasty(*replicas: Replica) -> list[Replica]:
    for one in replicas:
        one.rounds.rules = replace(one.rounds.rules, grace_s=HASTY.grace_s)
    return list(replicas)


@pytest.fixture
def three(tmp_path: Path) -> list[Replica]:
    return [Replica(tmp_path, str(number)) for number in range(3)]


# A replica that stands still for longer than everything else.


@pytest.mark.parametrize("point", ["before payload", "after payload", "after offer", "reducing", "applying"])
def test_a_replica_that_stood_still_for_six_rounds_goes_on(three: list[Replica], point: Point) -> None:
    """DL-D07: what it was about to read and write is long removed. It is told truly whether it counted."""
    a_round(three)
    still, others = three[2], hasty(*three[:2])
    still.learn()
    with Held(still, point) as held:
        if held.late:
            offer = "run/rounds/00000002/offers/2.json"
            eventually(lambda: still.store.get(offer), "the offer")
        a_round(others)
        held.arrive()
        for _ in range(5):
            a_round(others)
    [outcome] = held.found
    assert outcome.fate == ("late" if point in ("before payload", "after payload") else "committed")
    in_it = "2" in records.read_commit(*content(still, "run/commits/00000002.json")).members
    assert in_it == (outcome.fate == "committed")
    assert outcome.commit.round == 7
    assert same(still.weights, others[0].weights)
    still.rounds.reached = lambda point: None
    for one in three:
        one.rounds.rules = RULES
    found = a_round(three)
    assert sorted(found[0].commit.members) == ["0", "1", "2"]
    assert same(*(one.weights for one in found))


def content(one: Replica, key: str) -> tuple[bytes, str]:
    found = one.store.get(key)
    assert found is not None
    return found[0], key


def test_a_process_that_was_replaced_while_it_stood_still_changes_nothing(
    three: list[Replica], tmp_path: Path
) -> None:
    """DL-D04: between the look at its seat and its offer another process became the replica."""
    a_round(three)
    old = three[2]
    old.learn()
    with Held(old, "before payload") as held:
        new = Replica(tmp_path, "2")
        for _ in range(4):
            a_round([*three[:2], new])
    assert [one.fate for one in held.found] == ["late"]
    old.learn()
    with pytest.raises(ReplicaReplaced):
        old.meet()
    assert same(*(one.weights for one in a_round([*three[:2], new])))


def test_a_round_whose_only_offer_is_of_a_process_that_is_gone(tmp_path: Path) -> None:
    """It counts, once; its successor is told that what it brought did not."""
    gone = Replica(tmp_path, "0", ALONE)
    gone.learn()
    with Held(gone, "after offer") as held:
        again = Replica(tmp_path, "0", ALONE)
        again.tokens = 7
        again.learn()
        found = again.meet()
        assert (found.fate, found.commit.round, found.commit.members) == ("late", 1, {"0": gone.tokens})
    assert [(one.fate, one.ended.members) for one in held.found] == [("committed", {"0": 100})]
    again.learn()
    assert (again.meet().fate, again.commit.members) == ("committed", {"0": 7})


def test_a_second_try_of_a_round_does_not_change_what_the_first_offered(tmp_path: Path) -> None:
    """A loop that goes on after an error of the store: the first try stands, and the second is not told
    that its tokens count."""
    one = Replica(tmp_path, "0", ALONE)
    one.learn()

    def fails(point: Point) -> None:
        if point == "after offer":
            raise StoreError("the store is away")

    one.rounds.reached = fails
    with pytest.raises(StoreError, match="is away"):
        one.meet()
    first = one.local
    one.rounds.reached = lambda point: None
    one.learn()
    one.tokens = 55
    found = one.meet()
    assert (found.fate, found.commit.members) == ("late", {"0": 100})
    expected = OuterOptimizer().step(
        Replica(tmp_path / "x", "1").weights,
        np.zeros_like(first),
        Replica(tmp_path / "y", "1").weights - first,
    )
    assert np.allclose(found.weights, expected[0], atol=1e-5)


def test_two_processes_race_for_all_that_is_created_once(tmp_path: Path) -> None:
    """DL-D04: every replica reduces every shard, and all race for membership, records and commit."""
    racing = replace(RULES, grace_s=0.0)
    replicas = [Replica(tmp_path, str(number), replace(racing, quorum=4)) for number in range(4)]
    for _ in range(4):
        found = a_round(replicas)
        assert same(*(one.weights for one in found))
        assert [one.fate for one in found] == ["committed"] * 4
    doubles = list(replicas[0].store.list("run/rounds/00000004/shards"))
    assert len(doubles) == 4


# The store.


class LateLists(FolderStore):
    """A list shows an object only when others were made after it."""

    behind = 3

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        found = sorted(super().list(prefix), key=lambda one: one.modified)
        yield from found[: max(0, len(found) - self.behind)]


def test_a_list_that_is_late_loses_nothing(tmp_path: Path) -> None:
    """Commits, offers, seats and shards are there before a list shows them."""
    three = [Replica(tmp_path, str(number), replace(AVERAGE, grace_s=0.5)) for number in range(3)]
    for _ in range(3):
        a_round(three)
    for one in three:
        one.store.inner = LateLists(tmp_path)
    # Only what was put is listed late; a commit is found by its number.
    joined = Rounds(LateLists(tmp_path), "run", "9", SIZE, AVERAGE)
    commit, weights = joined.begin(np.zeros(SIZE, np.float32))
    assert (commit.round, same(weights, three[0].weights)) == (3, True)
    LateLists.behind = 1
    for one in three:
        one.rounds.rules = replace(one.rounds.rules, quorum=2)
    found = a_round(three)
    ended = found[0].ended
    assert ended.round == 4
    assert all(same(one.weights, found[0].weights) for one in found)
    assert [one.fate for one in found].count("committed") == len(ended.members)


class RestlessEtags(FolderStore):
    """An etag is another one each second time, though the content is the same: as after a copy in parts."""

    turn = 0

    def get(self, key: str) -> tuple[bytes, str] | None:
        found = super().get(key)
        self.turn += 1
        return None if found is None else (found[0], f"{found[1]}-2" if self.turn % 2 else found[1])


def test_an_etag_that_changes_keeps_nobody_from_the_next_round(three: list[Replica], tmp_path: Path) -> None:
    """A replica that was late says that it is back, until the store has taken it."""
    a_round(three)
    late, others = three[2], hasty(*three[:2])
    late.learn()
    a_round(others)
    late.store.inner = RestlessEtags(tmp_path)
    assert late.meet().fate == "late"
    seat = records.read_seat(*content(late, "run/seats/2.json"))
    assert (seat.incarnation, seat.since) == (late.rounds.incarnation, 2)
    again = Replica(tmp_path, "2")
    again.store.inner = RestlessEtags(tmp_path)
    assert again.commit.round == 2


def test_a_commit_whose_objects_are_gone_is_named_or_left_for_a_newer_one(
    three: list[Replica], tmp_path: Path
) -> None:
    """DL-D07: a late joiner reads while others collect."""
    a_round(three)
    old = three[0].commit
    for _ in range(4):
        a_round(three)
    commit, weights = three[0].rounds.heal(old)
    assert (commit.round, same(weights, three[0].weights)) == (5, True)
    for path in (tmp_path / "run" / "rounds" / "00000005" / "state").iterdir():
        path.unlink()
    with pytest.raises(Missing, match="is not in the store"):
        Replica(tmp_path, "9")


def test_a_joiner_that_reads_while_objects_are_collected_gets_a_newer_commit(
    three: list[Replica], tmp_path: Path
) -> None:
    """DL-D07: the others go on between its look at the commit and its reading of the shards."""

    class Slow(FolderStore):
        waited = False

        def read_into(self, key: str, buffer: bytearray | memoryview, start: int = 0) -> int | None:
            if not self.waited:
                self.waited = True
                for _ in range(4):
                    a_round(three)
            return super().read_into(key, buffer, start)

    a_round(three)
    hasty(*three)
    commit, weights = Rounds(Slow(tmp_path), "run", "9", SIZE, RULES).begin(np.zeros(SIZE, np.float32))
    assert commit.round == 5
    assert same(weights, three[0].weights)


def test_a_quorum_larger_than_the_living_waits_for_one_who_comes(tmp_path: Path) -> None:
    rules = replace(RULES, quorum=3, outer=OuterOptimizer(1.0, 0.0))
    two = [Replica(tmp_path, str(number), rules) for number in range(2)]
    for one in two:
        one.learn()
    waiting = [threading.Thread(target=one.meet) for one in two]
    for thread in waiting:
        thread.start()
    offers = "run/rounds/00000001/offers"
    eventually(lambda: len(list(two[0].store.list(offers))) == 2, "two offers")
    assert two[0].store.get("run/rounds/00000001/members.json") is None
    third = Replica(tmp_path, "2", rules)
    third.learn()
    third.meet()
    for thread in waiting:
        thread.join()
    assert sorted(third.commit.members) == ["0", "1", "2"]
    assert same(*(one.weights for one in (*two, third)))


# What replicas bring.


def test_tokens_of_zero_weigh_nothing_and_alike_where_all_are_zero(tmp_path: Path) -> None:
    two = [Replica(tmp_path, str(number), AVERAGE) for number in range(2)]
    two[0].tokens, two[1].tokens = 0, 5
    a_round(two)
    assert np.allclose(two[0].weights, two[1].local, atol=1e-6)
    two[1].tokens = 0
    found = a_round(two)
    assert np.allclose(found[0].weights, (two[0].local + two[1].local) / 2, atol=1e-6)
    assert found[0].commit.members == {"0": 0, "1": 0}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_payload_that_holds_no_numbers_is_named(three: list[Replica], tmp_path: Path, bad: float) -> None:
    """DL-D36: its digests are right, since who wrote it is not one of ours."""
    spoilt = hasty(*three)[0].rounds
    gradient = np.zeros(SIZE + (-SIZE % BLOCK), np.float32)
    gradient[5] = bad
    data, cut = Codec("none").encode(gradient), blocks.Cut.of(SIZE)
    key = "run/rounds/00000001/payloads/0-x.safetensors"
    start, [pieces] = blocks.write(spoilt.store, key, {"data": data}, cut.piece_blocks * data.shape[1])
    offer = records.RoundOffer("0", "x", 1, SIZE, key, "none", start, pieces)
    assert spoilt.store.create("run/rounds/00000001/offers/0.json", records.dump(offer))
    three[1].learn()
    with pytest.raises(Corrupt, match=r"replica 0 offers .* is no numbers"):
        three[1].meet()
    assert spoilt.store.get("run/commits/00000001.json") is None


def test_numbers_that_compression_or_the_sum_cannot_hold_are_named(tmp_path: Path) -> None:
    largest = np.float32(3.4e38)
    one = Replica(tmp_path, "0", replace(ALONE, compression="bf16"))
    one.local = one.weights - largest
    with pytest.raises(NotFinite, match="too large for bf16"), np.errstate(all="ignore"):
        one.meet()
    other = Replica(tmp_path / "other", "0", ALONE)
    other.local = other.weights - largest
    with pytest.raises(NotFinite, match="round 1 of run would make"), np.errstate(all="ignore"):
        other.meet()


def test_replicas_may_compress_in_different_ways(tmp_path: Path) -> None:
    """Each payload says what it is."""
    kinds: list[Compression] = ["none", "bf16", "int8", "int4"]
    four = [Replica(tmp_path, str(n), replace(AVERAGE, compression=kind)) for n, kind in enumerate(kinds)]
    found = a_round(four)
    assert same(*(one.weights for one in found))
    total = sum(one.tokens for one in four)
    mean = sum(one.local.astype(np.float64) * one.tokens / total for one in four)
    assert np.abs(mean - found[0].weights).max() < 0.01


def test_an_offer_of_another_size_is_named_by_all(three: list[Replica]) -> None:
    a_round(three)
    three[0].rounds.size = 100
    three[0].weights = three[0].local = np.zeros(100, np.float32)
    for act in hasty(*three)[1:]:
        act.learn()
    with pytest.raises(OtherSize, match="weights"):
        together(*(one.meet for one in three))
    assert three[1].store.get("run/commits/00000002.json") is None


def test_a_name_with_a_slash_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no name of a replica"):
        OuterLoop({"w": np.zeros(3, np.float32)}, store=str(tmp_path), run="run", replica="a/b")


# Records that somebody else wrote.

COMMIT, OFFER = "commits/00000001.json", "rounds/00000002/offers/1.json"
RAW = {
    "not JSON": b"{",
    "not text": b"\xff\xfe",
    "a list": b"[]",
    "deep": b"[" * 100_000,
    "a number of 5000 digits": b"9" * 5000,
    "empty": b"",
    "huge": b" " * (33 << 20),
}


@pytest.mark.parametrize("what", RAW)
@pytest.mark.parametrize("where", [COMMIT, OFFER, "seats/0.json", "rounds/00000002/members.json"])
def test_a_record_that_is_none_is_named(three: list[Replica], tmp_path: Path, where: str, what: str) -> None:
    a_round(three)
    path = tmp_path / "run" / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(RAW[what])
    with pytest.raises(StoreError, match=f"run/{where} is not what Corral wrote there"):
        (Replica(tmp_path, "9") if where == COMMIT else hasty(*three)[0]).meet()


SPOILT_COMMITS: dict[str, Callable[[dict[str, Any]], object]] = {
    "another round": lambda said: said.update(round=7),
    "no shards": lambda said: said.update(shards=[]),
    "a shard less": lambda said: said["shards"].pop(1),
    "a shard twice": lambda said: said["shards"].insert(1, said["shards"][0]),
    "shards that are no tables": lambda said: said.update(shards=[1]),
    "digests that are no list": lambda said: said["shards"][0].update(weights=5),
    "another run's object": lambda said: said["shards"][0].update(key="other/rounds/00000001/state/x"),
    "an object outside": lambda said: said["shards"][0].update(key="../../etc/passwd"),
    "a negative start": lambda said: said["shards"][0].update(start=-1),
    "members without counts": lambda said: said.update(members={"0": "many"}),
    "members that are a list": lambda said: said.update(members=["0"]),
    "a word too many": lambda said: said.update(more=1),
    "a word too few": lambda said: said.pop("size"),
    "a size that is true": lambda said: said.update(size=True),
    "a size of ten to the 30": lambda said: said.update(size=10**30),
    "another size": lambda said: said.update(size=2000),
}


@pytest.mark.parametrize("how", SPOILT_COMMITS)
def test_a_commit_that_was_edited_is_named(three: list[Replica], tmp_path: Path, how: str) -> None:
    a_round(three)
    rewritten(tmp_path / "run" / COMMIT, SPOILT_COMMITS[how])
    with pytest.raises(StoreError, match=r"commits/00000001.json is not what Corral wrote there"):
        Replica(tmp_path, "9")


@pytest.mark.parametrize(
    "change",
    [
        lambda said: said["shards"][0]["weights"].__setitem__(0, "abc"),
        lambda said: said["shards"][0]["weights"].insert(0, "0" * 64),
        lambda said: said["shards"][0].update(start=10**9),
        lambda said: said["shards"][0].update(start=0),
    ],
    ids=["a short digest", "a digest more", "a start beyond the end", "a start elsewhere"],
)
def test_a_shard_that_is_not_as_its_commit_says_is_named(
    three: list[Replica], tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    a_round(three)
    rewritten(tmp_path / "run" / COMMIT, change)
    with pytest.raises(Corrupt):
        Replica(tmp_path, "9")


SPOILT_OFFERS: dict[str, Callable[[dict[str, Any]], object]] = {
    "another replica": lambda said: said.update(replica="2"),
    "another run's payload": lambda said: said.update(payload="other/rounds/00000001/payloads/x"),
    "an older round's payload": lambda said: said.update(payload="run/rounds/00000000/payloads/x"),
    "a payload outside": lambda said: said.update(payload="../secret"),
    "negative tokens": lambda said: said.update(tokens=-5),
    "tokens that are no number": lambda said: said.update(tokens=float("nan")),
    "more tokens than there can be": lambda said: said.update(tokens=1 << 70),
    "pieces that are no list": lambda said: said.update(pieces=3),
    "pieces that are no texts": lambda said: said.update(pieces=[1, 2]),
    "a piece less": lambda said: said["pieces"].pop(),
    "another compression": lambda said: said.update(compression="zip"),
    "a compression that is a number": lambda said: said.update(compression=4),
}


@pytest.mark.parametrize("how", SPOILT_OFFERS)
def test_an_offer_that_was_edited_is_named(three: list[Replica], tmp_path: Path, how: str) -> None:
    """DL-D08."""
    hasty(*three)[0].learn()
    with Held(three[0], "after offer"):
        rewritten(tmp_path / "run" / "rounds" / "00000001" / "offers" / "0.json", SPOILT_OFFERS[how])
        three[1].learn()
        with pytest.raises(StoreError, match=r"is not what Corral wrote there|is packed as 'zip'"):
            three[1].meet()
        assert three[1].store.get("run/rounds/00000001/members.json") is None


@pytest.mark.parametrize(
    "change",
    [
        lambda said: said.update(offers=[]),
        lambda said: said["offers"].append(said["offers"][0]),
        lambda said: said["offers"][0].update(payload="run/commits/00000000.json"),
    ],
    ids=["nobody", "somebody twice", "another payload"],
)
def test_a_membership_that_was_edited_is_named(
    three: list[Replica], tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    """A token that is counted twice would be a wrong sum."""
    hasty(*three)[0].learn()
    with Held(three[0], "after offer"):
        offer = json.loads((tmp_path / "run" / "rounds" / "00000001" / "offers" / "0.json").read_bytes())
        said = {"offers": [offer]}
        change(said)
        (tmp_path / "run" / "rounds" / "00000001" / "members.json").write_text(json.dumps(said))
        three[1].learn()
        with pytest.raises(StoreError, match=r"members.json is not what Corral wrote there"):
            three[1].meet()
        assert three[1].store.get("run/commits/00000001.json") is None


@pytest.mark.parametrize(
    "change",
    [
        lambda said: said.update(last=said["last"] + 1),
        lambda said: said.update(first=1),
        lambda said: said.update(key="run/rounds/00000000/state/x"),
    ],
    ids=["a piece more", "a piece less", "another round's object"],
)
def test_a_shard_that_was_edited_is_in_no_commit(
    three: list[Replica], tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    digests = ["0" * 64]
    said = {"first": 0, "last": 7, "key": "run/rounds/00000001/state/x", "start": 0}
    said |= {"weights": digests, "momentum": digests}
    change(said)
    path = tmp_path / "run" / "rounds" / "00000001" / "shards" / "0000.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(said))
    with pytest.raises(StoreError, match=r"shards/0000.json is not what Corral wrote there"):
        a_round(three)
    assert three[0].store.get("run/commits/00000001.json") is None


def test_objects_that_nobody_asked_for_do_no_harm(three: list[Replica], tmp_path: Path) -> None:
    for name in ("commits/notes.txt", "commits/old/00000009.json", "rounds/00000001/shards/x.json", "readme"):
        path = tmp_path / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    assert same(*(one.weights for one in a_round(three)))
    assert Replica(tmp_path, "9").commit.round == 1

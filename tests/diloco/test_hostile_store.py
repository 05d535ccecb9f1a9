"""Who may write to the store where replicas meet neither fills nor spoils a replica; what it did is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corral.diloco import blocks, records
from corral.diloco.codec import BLOCK, Codec, Vector, padded
from corral.diloco.folder_store import FolderStore
from corral.diloco.records import Commit, RoundOffer
from corral.diloco.round_store import MOST_BYTES, StoreError
from corral.diloco.rounds import RoundRules, Rounds

SIZE = 20 * BLOCK + 5
FIRST = "run/commits/00000001.json"
OFFER = "run/rounds/00000001/offers/9.json"


class Scene:
    """One honest replica that has begun, and its store."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, FolderStore(folder)
        self.rounds = Rounds(self.store, "run", "0", SIZE, RoundRules(quorum=1, grace_s=0.05, poll_s=0.01))
        self.commit, self.weights = self.rounds.begin(np.ones(SIZE, np.float32))

    def put(self, key: str, said: Any) -> None:
        self.store.put(key, json.dumps(said).encode())

    def claims(self, **changes: Any) -> None:
        """A commit of the next round, with these changes."""
        found = asdict(self.commit)
        self.put(FIRST, {**found, "round": 1, **changes})

    def offers(self, numbers: Vector, **changes: Any) -> None:
        """What replica 9 brings, well packed whatever it is."""
        data, cut = Codec("none").encode(padded(numbers)), blocks.Cut.of(SIZE)
        payload = "run/rounds/00000001/payloads/9-x.safetensors"
        start, [pieces] = blocks.write(self.store, payload, {"data": data}, cut.piece_blocks * data.shape[1])
        offer = asdict(RoundOffer("9", "x", 5, SIZE, payload, "none", start, pieces))
        self.put(OFFER, {**offer, **changes})

    def meet(self) -> tuple[Commit, Vector]:
        done = self.rounds.run(self.commit, self.weights, np.full(SIZE, 0.5, np.float32), 5)
        return done.commit, done.weights


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.mark.parametrize(
    "lie",
    [
        lambda scene: scene.claims(shards=[]),
        lambda scene: scene.claims(shards=scene.commit.shards and 5),
        lambda scene: scene.claims(members=[1, 2]),
        lambda scene: scene.claims(members={"0": "many"}),
        lambda scene: scene.claims(members={"0": 10**400}),
        lambda scene: scene.claims(round=7),
        lambda scene: scene.store.put(FIRST, b"[" * 100_000),
        lambda scene: scene.put("run/rounds/00000001/members.json", {"offers": []}),
        lambda scene: scene.put("run/rounds/00000001/members.json", {"offers": 5}),
    ],
)
def test_a_record_that_cannot_be_is_told_and_never_gone_by(
    scene: Scene, lie: Callable[[Scene], None]
) -> None:
    """ATK7-06: weights that no shard had were whatever lay in memory; others ended it with a traceback."""
    lie(scene)
    with pytest.raises(StoreError, match="is not what Corral wrote there"):
        scene.meet()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda scene: scene.store.put(OFFER, b"{}"),
        lambda scene: scene.offers(np.zeros(SIZE, np.float32), replica="0"),
        lambda scene: scene.offers(np.zeros(SIZE, np.float32), pieces=[]),
        lambda scene: scene.offers(np.zeros(SIZE, np.float32), tokens=10**400),
        lambda scene: scene.offers(np.zeros(SIZE, np.float32), payload="other/run"),
        lambda scene: scene.offers(np.full(SIZE, np.nan, np.float32)),
        lambda scene: scene.offers(np.full(SIZE, np.inf, np.float32)),
    ],
)
def test_an_offer_that_cannot_be_is_told_and_counts_in_no_round(
    scene: Scene, spoil: Callable[[Scene], None]
) -> None:
    """ATK7-06: one replica's numbers that are none became everybody's weights."""
    spoil(scene)
    with pytest.raises(StoreError, match=r"is not what Corral wrote there|is no numbers"):
        scene.meet()
    assert scene.store.get(FIRST) is None


def test_an_object_larger_than_any_record_is_not_read(scene: Scene) -> None:
    """ATK7-06: it was read as a whole, whatever its size."""
    with (scene.folder / FIRST).open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(StoreError, match="more than"):
        scene.rounds.newest()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda scene: scene.store.put("run/commits/notes.txt", b"x"),
        lambda scene: scene.store.put("run/rounds/00000001/shards/mine.json", b"{}"),
        lambda scene: scene.store.put("run/rounds/00000001/shards/9999.json", b"{}"),
    ],
)
def test_what_is_no_record_is_left_alone_and_the_round_goes_on(
    scene: Scene, spoil: Callable[[Scene], None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """ATK7-06: a file's name ended all."""
    _, alone = Scene(tmp_path_factory.mktemp("alone")).meet()
    spoil(scene)

    commit, weights = scene.meet()

    assert commit.round == 1
    assert weights.tobytes() == alone.tobytes()


def test_a_record_as_corral_writes_it_is_read_as_it_was(scene: Scene) -> None:
    assert records.read_commit(records.dump(scene.commit), "x") == scene.commit

"""The `[diloco]` table: what it may hold, what is refused, and how it fits the run that it is in."""

from __future__ import annotations

from typing import Any

import pytest

from corral.client.submit.run_file import edited, parse
from corral.client.training.replicas import check_folder
from corral.domain.errors import InvalidInput
from corral.domain.placements.placements import ExecutorKind
from corral.engine.data.row_order import RowOrder, RowShare
from corral.recipes import diloco
from corral.recipes.diloco import RankRange
from corral.recipes.train import TrainError
from corral.wire.executors import ExecutorView
from corral.wire.spec.identity import identity_of
from corral.wire.spec.run_file import RunFile, RunSpec

FILE = """
name = "together"
model = "corral/tiny"
{top}

[train]
recipe = "sft"
data = "rows.jsonl"
steps = 20

{table}
"""
ELASTIC = "replicas = { min = 2, max = 8 }"


def run_file(top: str = ELASTIC, table: str = "[diloco]") -> RunFile:
    return parse(FILE.format(top=top, table=table), what="run.toml")


def refusal(top: str = ELASTIC, table: str = "[diloco]") -> str:
    with pytest.raises(InvalidInput) as found:
        run_file(top, table)
    assert found.value.hint
    return "; ".join(f"{field.path}: {field.message}" for field in found.value.fields)


def test_defaults_are_filled_in_and_the_quorum_is_what_the_run_begins_with() -> None:
    assert run_file().diloco == {
        "inner_steps": 100,
        "outer": {"lr": 0.7, "momentum": 0.9},
        "quorum": 2,
        "grace": 30.0,
        "compress": "none",
        "fragments": 1,
        "delay": 0,
        "blend": 0.0,
    }
    found = run_file(table='[diloco]\ngrace = "1m30s"\nouter = { lr = 1, momentum = 0 }\nstore = "gs://b/p"')
    assert found.diloco is not None
    assert (found.diloco["grace"], found.diloco["store"]) == (90.0, "gs://b/p")
    # What is in effect says the same again.
    ranks = RankRange(2, 8)
    assert diloco.to_table(diloco.parse(found.diloco, ranks)) == found.diloco


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("quorum = 3", "diloco.quorum: 3 is more than the 2 replicas"),
        ("inner_steps = 10\nfragments = 3", "diloco.inner_steps: 10 is no multiple of 3 fragments"),
        ("inner_steps = 10\ndelay = 10", "diloco.delay: 10 steps, and the next round begins after 10"),
        ("inner_steps = 10\nfragments = 2\ndelay = 5", "diloco.delay: 5 steps"),
        ('store = "meet"', "diloco.store: 'meet' is no whole path"),
        ('store = "/shared/../etc"', "diloco.store: '/shared/../etc' goes up"),
        ('store = "s3://key:secret@bucket/p"', "credentials are secrets of the project"),
        ('store = "https://s3.example.org/b"', "AWS_ENDPOINT_URL"),
        ('store = "s3://"', "no store is known"),
        ('store = "ftp://host/p"', "no store is known"),
        ('grace = "soon"', "diloco.grace: is not a duration"),
        ("grace = -1", "diloco.grace: must be at least 0"),
        ("inner_step = 5", "did you mean `inner_steps`?"),
        ("lr = 0.7", "it is `outer.lr`"),
        ("outer = { lr = 0 }", "diloco.outer.lr: must be more than 0"),
        ("outer = { momentum = 1 }", "diloco.outer.momentum: must be less than 1"),
        ('compress = "int5"', "did you mean 'int8'?"),
        ("blend = 1", "diloco.blend: must be less than 1"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(line: str, said: str) -> None:
    assert said in refusal(table=f"[diloco]\n{line}")


def test_every_fault_is_told_at_once() -> None:
    said = refusal(table='[diloco]\nquorum = 9\nstore = "x"\ncompres = "int8"')
    assert all(word in said for word in ("quorum", "store", "compres"))


def test_the_table_is_there_just_where_several_replicas_train() -> None:
    assert "diloco: is required: the 8 replicas" in refusal(table="")
    assert "needs several replicas" in refusal(top="")
    assert "needs several replicas" in refusal(top="replicas = 1")
    with pytest.raises(InvalidInput, match="has no \\[train\\] beside it"):
        parse('argv = ["true"]\nreplicas = 2\n[diloco]\n', what="run.toml")


def test_a_folder_is_refused_where_machines_share_none_and_told_of_elsewhere() -> None:
    executors = [
        ExecutorView(name=str(kind), kind=kind, options={}, created_at=0.0, created_by="")
        for kind in ExecutorKind
    ]

    def asked(store: str, name: str) -> tuple[str, ...]:
        table = f'[diloco]\nstore = "{store}"\n[placement]\nexecutors = ["{name}"]'
        return check_folder(run_file(table=table), executors)

    for name in ("modal", "sagemaker"):
        with pytest.raises(InvalidInput, match=f"the machines of executor {name}") as found:
            asked("/shared/meet", name)
        assert "s3://" in found.value.hint
        assert asked("s3://bucket/p", name) == ()
    (note,) = asked("/shared/meet", "slurm")
    assert "/shared/meet" in note
    assert check_folder(run_file(table='[diloco]\nstore = "/shared/meet"'), executors) == ()


def test_a_changed_run_is_checked_as_a_new_one() -> None:
    """What requeue changes goes by the same rules, at the server too."""
    spec = RunSpec.model_validate(run_file().model_dump(exclude_unset=True, include=_OF_A_SPEC))
    with pytest.raises(ValueError, match="more than the 2 replicas"):
        _checked(edited(spec, ["diloco.quorum=4"]))
    changed = _checked(edited(spec, ["diloco.inner_steps=50"]))
    assert changed.diloco is not None
    assert changed.diloco["inner_steps"] == 50
    # It is other work, and a run without the table is what it always was.
    assert identity_of(changed) != identity_of(spec)


_OF_A_SPEC = {"name", "model", "train", "replicas", "diloco"}


def _checked(spec: RunSpec | None) -> RunSpec:
    assert spec is not None
    return spec.checked()


def test_the_parser_raises_nothing_else_whatever_it_is_given() -> None:
    wrong: list[Any] = [None, 3, [], {"outer": 3}, {"store": 5}, {"grace": []}, {3: 4}, {"inner_steps": True}]
    for given in wrong:
        with pytest.raises(TrainError):
            diloco.parse(given, RankRange(2, 2))


def test_replicas_take_rows_of_their_own_and_together_all_of_them() -> None:
    """DL-D42: no two replicas see the same batch; which is whose follows from seed, rank and step alone."""
    order = RowOrder(24, seed=5)
    shares = [RowShare(rank, 3) for rank in range(3)]
    seen = [[row for step in range(2) for row in order.batch(one.batch_of(step), 4)] for one in shares]
    assert sorted(row for rows in seen for row in rows) == list(range(24))
    assert seen[1] == [row for step in range(2) for row in RowOrder(24, 5).batch(step * 3 + 1, 4)]
    assert [RowShare().batch_of(step) for step in range(3)] == [0, 1, 2]

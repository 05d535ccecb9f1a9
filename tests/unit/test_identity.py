"""What makes a run the run that it is (FL-D32), and what does not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.wire.manifests import ManifestPolicy
from corral.wire.spec.identity import PLACE, POLICY, WORK, identity_of, policy_of
from corral.wire.spec.run_file import RunSpec, packed

NAMES = st.from_regex(r"[a-z]([a-z0-9_-]{0,6}[a-z0-9])?", fullmatch=True)
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12),
)
TABLES = st.fixed_dictionaries(
    {"argv": st.lists(st.sampled_from(["train", "--fast", "x"]), min_size=1, max_size=3)},
    optional={
        "params": st.dictionaries(NAMES, SCALARS, max_size=4),
        "env": st.dictionaries(st.sampled_from(["A", "B", "C"]), st.sampled_from(["1", "2"]), max_size=3),
        "seed": st.integers(-(2**63), 2**63 - 1),
        "code_digest": st.sampled_from(["a" * 64, "b" * 64]),
        "input_digests": st.dictionaries(NAMES, st.sampled_from(["c" * 64, "d" * 64]), max_size=2),
    },
)
POLICIES = st.fixed_dictionaries(
    {},
    optional={
        "name": NAMES,
        "priority": st.integers(-10, 10),
        "labels": st.dictionaries(NAMES, st.just("x"), max_size=2),
        "retries": st.fixed_dictionaries({"code": st.integers(0, 3)}),
        "resources": st.fixed_dictionaries({"min_cores": st.integers(0, 64)}),
        "wall_limit": st.sampled_from([60, "2h"]),
        "grace": st.integers(0, 60),
        "project": NAMES,
    },
)


def spec(table: dict[str, Any]) -> RunSpec:
    return RunSpec.model_validate(table)


def test_every_field_of_a_run_is_work_or_policy_or_a_place() -> None:
    """FL-D28: docs, schema and code from one definition. A new field must be put where it belongs."""
    assert sorted((*WORK, *POLICY, *PLACE)) == sorted(RunSpec.model_fields)


@given(TABLES, POLICIES, st.randoms(use_true_random=False))
def test_the_order_of_keys_and_the_policy_do_not_matter(
    table: dict[str, Any], policy: dict[str, Any], random: Any
) -> None:
    keys = list(table)
    random.shuffle(keys)
    params = list(table.get("params", {}).items())
    random.shuffle(params)
    other = {key: table[key] for key in keys} | policy
    if params:
        other["params"] = dict(params)

    assert identity_of(spec(other)) == identity_of(spec(table))


@given(TABLES, TABLES)
def test_different_work_is_never_the_same_run(one: dict[str, Any], two: dict[str, Any]) -> None:
    def meant(table: dict[str, Any]) -> str:
        kept = {key: value for key, value in table.items() if value != {}}
        return json.dumps(kept, sort_keys=True)

    assert (identity_of(spec(one)) == identity_of(spec(two))) == (meant(one) == meant(two))


@given(TABLES)
def test_a_run_is_the_same_after_it_was_stored_sent_and_read(table: dict[str, Any]) -> None:
    made = spec(table)
    stored = RunSpec.model_validate_json(made.model_dump_json())
    sent = packed(made).unpacked({})

    assert identity_of(made) == identity_of(stored) == identity_of(sent)


@pytest.mark.parametrize(
    ("change", "base"),
    [
        ({"code_digest": "b" * 64}, {"code_digest": "a" * 64}),
        ({"input_digests": {"data": "b" * 64}}, {"input_digests": {"data": "a" * 64}}),
        ({"environment": {"python": "3.12", "lock": "y", "digest": "b" * 64}}, {}),
        ({"seed": 2}, {"seed": 1}),
        ({"seed": 0}, {}),
        ({"params": {"lr": 0.2}}, {"params": {"lr": 0.1}}),
        ({"params": {"lr": "0.1"}}, {"params": {"lr": 0.1}}),
        ({"params": {"on": True}}, {"params": {"on": 1}}),
        ({"argv": ["train", "--slow"]}, {}),
        ({"env": {"A": "2"}}, {"env": {"A": "1"}}),
        ({"secrets": ["KEY"]}, {}),
        ({"input_paths": {"data": "a"}}, {"input_digests": {"data": "a" * 64}}),
    ],
)
def test_changed_code_data_environment_seed_or_params_is_another_run(
    change: dict[str, Any], base: dict[str, Any]
) -> None:
    """FL-D32: a changed commit, dataset or image changes the id."""
    table = {"argv": ["train"], **base}

    assert identity_of(spec({**table, **change})) != identity_of(spec(table))


def test_without_a_schema_1_and_1_0_are_different_text_and_different_runs() -> None:
    """FL-D32: where nobody says that it is a number, the command line tells them apart."""
    one, other = ({"argv": ["train", "{params.n}"], "params": {"n": n}} for n in (1, 1.0))

    assert identity_of(spec(one)) != identity_of(spec(other))


def test_the_recipe_says_what_is_a_number() -> None:
    """FL-D32: `1` and `1.0` agree where the recipe's schema says number; keys left out are the defaults."""
    base = {"model": "corral/tiny", "kind": "train"}
    tables = [{"recipe": "sft", "data": "rows.jsonl", "steps": 2, "weight_decay": n} for n in (1, 1.0)]

    one, other = (spec({**base, "train": table}).checked() for table in tables)

    assert identity_of(one) == identity_of(other)


def test_where_shipped_data_lay_on_somebodys_disk_does_not_matter() -> None:
    def at(path: str, digest: str) -> RunSpec:
        table = {"recipe": "sft", "data": path, "steps": 2}
        return spec(
            {"model": "corral/tiny", "kind": "train", "train": table, "input_digests": {"data": digest}}
        ).checked()

    assert identity_of(at("a/rows.jsonl", "a" * 64)) == identity_of(at("/tmp/b.jsonl", "a" * 64))
    assert identity_of(at("a/rows.jsonl", "a" * 64)) != identity_of(at("a/rows.jsonl", "b" * 64))


def test_two_parts_are_never_read_as_one() -> None:
    """FL-D22: (`a_b`, `c`) and (`a`, `b_c`) have different identities and different names."""
    pairs = [{"a_b": "c"}, {"a": "b_c"}, {"a": "b", "c": "d"}, {"a": 'b","c":"d'}]

    found = {identity_of(spec({"argv": ["train"], "params": params})) for params in pairs}

    assert len(found) == len(pairs)


@given(POLICIES)
def test_the_policy_that_is_sent_is_that_of_the_spec(policy: dict[str, Any]) -> None:
    made = spec({"argv": ["train"], **policy})

    read = ManifestPolicy(policy_of(made))

    assert {name: getattr(made, name) for name in POLICY} == read.fields
    assert read.values == made.model_dump(mode="json", include=set(POLICY))

"""What replicas will move and what it costs: told before launch, and refused above what the file allows."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support import forked

from corral.client.submit.run_file import parse
from corral.client.training.placement import ForecastSubject
from corral.client.training.traffic import TrafficEstimate, check_traffic, estimate_traffic
from corral.domain.errors import InvalidInput
from corral.recipes import models
from corral.recipes.diloco_traffic import OWN, S3, UNKNOWN, Traffic, list_prices
from corral.recipes.models import lora_params
from corral.recipes.train import parse as parse_train
from corral.recipes.train_tables import DataFacts
from corral.wire.spec.identity import identity_of
from corral.wire.spec.run_file import RunFile, RunSpec

CLEAN = {key: value for key, value in os.environ.items() if "CORRAL" not in key}
FILE = """
model = "qwen3-0.6b"
replicas = {{ min = 2, max = 4 }}
[env]
{env}
[train]
recipe = "sft"
data = "x.jsonl"
{train}
[diloco]
inner_steps = 10
{diloco}
"""


def run_file(diloco: str = "", train: str = "steps = 100", env: str = "") -> RunFile:
    return parse(FILE.format(diloco=diloco, train=train, env=env), what="run.toml")


def subject(found: RunFile, rows: int = 1000) -> ForecastSubject:
    made, facts = parse_train(found.model or "", found.train or {}), models.facts("qwen3-0.6b")
    assert facts is not None
    return ForecastSubject(made, facts, DataFacts(rows, rows * 100, 500))


def estimated(diloco: str = "", train: str = "steps = 100", env: str = "") -> TrafficEstimate:
    found = run_file(diloco, train, env)
    estimate = estimate_traffic(found, subject(found))
    assert estimate is not None
    return estimate


def test_it_is_of_what_is_trained_and_of_the_most_replicas_that_there_may_be() -> None:
    """DL-D06."""
    facts = models.facts("qwen3-0.6b")
    assert facts is not None
    adapter, whole = estimated(), estimated(train='steps = 100\nmethod = "full"')
    assert adapter.numbers == lora_params(facts, 16)
    assert whole.numbers == facts.params
    assert adapter.traffic.members == 4
    assert adapter.traffic.rounds == 10
    # Each gives its payload, and a quarter of weights and momentum; reads a shard of each payload and of the
    # momentum, and the weights.
    size = 4 * facts.params
    assert whole.traffic.cycle.up / 4 == pytest.approx(size * 1.5, rel=1e-3)
    assert whole.traffic.cycle.down / 4 == pytest.approx(size * 2.25, rel=1e-3)
    packed = estimated('compress = "int4"', 'steps = 100\nmethod = "full"')
    assert packed.traffic.cycle.up / 4 == pytest.approx(size * (0.5 + 1 / 8), rel=2e-2)


def test_epochs_are_of_all_replicas_together_and_steps_of_each() -> None:
    epochs = estimated(train="epochs = 1\nbatch_size = 5")
    assert epochs.traffic.rounds == 5


@pytest.mark.parametrize(
    ("store", "env", "prices"),
    [
        ("s3://bucket/prefix", "", S3),
        ("s3://bucket/prefix", 'AWS_ENDPOINT_URL = "http://127.0.0.1:9"', UNKNOWN),
        ("gs://bucket/prefix", "", UNKNOWN),
        ("az://bucket/prefix", "", UNKNOWN),
        ("/mnt/shared", "", OWN),
        ("corral", "", OWN),
    ],
)
def test_prices_are_those_that_are_known_and_no_others(store: str, env: str, prices: object) -> None:
    found = estimated(f'store = "{store}"', env=env)
    assert found.prices == prices
    assert (found.cost is None) == (prices is not S3)


def test_the_price_is_of_what_is_fetched_and_of_the_requests() -> None:
    moved = Traffic(up=10**12, down=9 * 10**9, records=10**9, puts=2000, gets=10_000)
    assert S3.cost(moved) == pytest.approx(10 * 0.09 + 2 * 0.005 + 10 * 0.0004)
    own = list_prices("gs://x").replaced(0.12, None)
    assert own.cost(moved) == pytest.approx(1.2)
    assert list_prices("s3://x").replaced(0.0, None).cost(moved) == pytest.approx(0.014)
    assert list_prices("gs://x").replaced(0.12, 1.0).cost(moved) == pytest.approx(1.2 + 12)
    assert list_prices("gs://x").replaced(None, 1.0).cost(moved) is None


def test_more_than_the_file_allows_is_refused() -> None:
    whole = estimated().traffic.whole.total
    enough, little = run_file(f"max_traffic = {whole}"), run_file(f"max_traffic = {whole - 1}")
    check_traffic(enough, [subject(enough)])
    with pytest.raises(InvalidInput, match="max_traffic is") as caught:
        check_traffic(little, [subject(little)])
    assert [field.path for field in caught.value.fields] == ["diloco.max_traffic"]
    assert "corral estimate" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "size"), [('"500GB"', 5e11), ('"1.5 TiB"', 1.5 * 2**40), ("7", 7), ('"12"', 12), ('"9kb"', 9e3)]
)
def test_a_size_is_read(text: str, size: float) -> None:
    assert estimated(f"max_traffic = {text}").diloco.max_traffic_bytes == size


@pytest.mark.parametrize("text", ['"much"', '"0GB"', "0", "-1", '"5 parsecs"'])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="max_traffic"):
        run_file(f"max_traffic = {text}")


def test_what_a_run_may_cost_is_no_part_of_what_it_is() -> None:
    def spec(**diloco: Any) -> RunSpec:
        found = RunSpec.model_validate(
            {
                "model": "corral/tiny",
                "train": {"recipe": "sft", "data": "x", "steps": 10},
                "replicas": {"min": 2, "max": 2},
                "diloco": {"inner_steps": 5, **diloco},
            }
        )
        return found.checked()

    assert identity_of(spec(price_per_gb=0.1, max_traffic="5GB")) == identity_of(spec())
    assert identity_of(spec(compress="int8")) != identity_of(spec())


def cli(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**CLEAN, "CORRAL_HOME": str(folder / "home"), "COLUMNS": "120"}
    return forked.run([*words], env, cwd=folder)


def test_the_command_shows_it(tmp_path: Path) -> None:
    """DL-D06: printed before launch, bytes and money."""
    (tmp_path / "x.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    (tmp_path / "run.toml").write_text(
        FILE.format(env="", train="steps = 100", diloco='store = "s3://bucket/x"\nmax_traffic = "1MB"')
    )
    done = cli(tmp_path, "estimate", "run.toml")
    assert done.returncode == 0, done.stderr
    assert "4 replicas meet in s3://bucket/x: 10 rounds" in done.stdout
    row = next(line for line in done.stdout.splitlines() if line.startswith("the whole run"))
    table = json.loads(cli(tmp_path, "estimate", "run.toml", "--json").stdout)["traffic"]
    assert table["whole"]["up"] + table["whole"]["down"] + table["whole"]["records"] == table["bytes"]
    assert f"${table['cost']:.2f}" in row or f"${table['cost']:.4f}" in row
    assert "S3's list price" in done.stderr
    assert "refused at submit" in done.stderr

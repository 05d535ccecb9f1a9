"""Training runs at the HTTP API, whichever client sends them: checked, completed, placed by their needs."""

from __future__ import annotations

from typing import Any

import pytest
from support.live_server import FakeHost, LiveServer, error_of, fresh, new_host

TABLE = {"recipe": "sft", "data": "x.jsonl"}
ENGINE = {"torch": "2.13.0", "transformers": "5.22.2", "peft": "0.21.2", "safetensors": "0.6.0"}
FORMS = ["application/json", "application/json; charset=utf-8"]


def train(**changes: Any) -> dict[str, Any]:
    return {"model": "corral/tiny", "train": {**TABLE, **changes}}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("run", "place"),
    [
        (train(lora={"rnak": 1}), "runs.0.train.lora.rnak"),
        (train(recipe=3), "runs.0.train.recipe"),
        (train(epochs=[]), "runs.0.train.epochs"),
        (train(lora=5), "runs.0.train.lora"),
        ({"model": ["x"], "train": TABLE}, "runs.0.model"),
        ({"model": "corral/tiny", "train": 7}, "runs.0.train"),
        ({"model": "corral/tiny", "train": {}}, "runs.0.train.recipe"),
        ({"train": TABLE}, "runs.0.train"),
        ({**train(), "argv": ["true"]}, "runs.0.argv"),
        ({**train(), "resources": {"gpus": 8}}, "runs.0.resources"),
        ({**train(), "task": "sample"}, "runs.0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_named_and_never_an_error_of_the_server(
    run: dict[str, Any], place: str, form: str, live: LiveServer
) -> None:
    """MT-D31: a list for `model` or a number for the recipe is a named field, not a 500."""
    body = {"request_id": fresh(), "runs": [run]}

    error = error_of(
        live.call("POST", "/v1/runs", body, headers={"Content-Type": form}), 422, "invalid_input"
    )

    assert place in {field.path for field in error.fields}


def test_the_table_is_completed_and_given_to_the_worker(live: LiveServer) -> None:
    """MT-C27, MT-D13: every setting as it is in effect."""
    worker = new_host(live)
    run_id = live.submit(host=worker.name, **train(lora={"rank": 4}), argv=[])

    lease = worker.claim(capability={**_capability(), "engine": ENGINE})

    assert lease.run_id == run_id
    spec = lease.about["spec"]
    assert (spec["kind"], spec["model"], spec["argv"]) == ("train", "corral/tiny", [])
    assert spec["train"]["lora"] == {"rank": 4, "alpha": 8, "rslora": True, "targets": "all-linear"}


def _capability() -> dict[str, Any]:
    return {"hostname": "box", "os": "linux", "arch": "x86_64"}


@pytest.mark.parametrize(
    ("engine", "words"),
    [(None, "is unknown"), ({**ENGINE, "peft": None}, "the host lacks peft: `pip install 'corral[train]'`")],
)
def test_a_host_without_the_engine_gets_no_training_run_and_why_says_so(
    engine: dict[str, str | None] | None, words: str, live: LiveServer
) -> None:
    worker = new_host(live)
    run_id = live.submit(host=worker.name, **train(), argv=[])
    asked = worker.ask(capability={**_capability(), "engine": engine})

    assert live.ok("POST", "/v1/claims", asked, token=worker.token)["leases"] == []

    why = live.ok("GET", f"/v1/runs/{run_id}/why")
    (reason,) = next(host["reasons"] for host in why["hosts"] if host["host"] == worker.name)
    assert words in reason


def test_a_command_needs_no_engine(live: LiveServer, worker: FakeHost) -> None:
    assert worker.run().run_id


def test_a_host_shows_the_versions_of_its_engine(live: LiveServer) -> None:
    worker = new_host(live)
    asked = worker.ask(capability={**_capability(), "engine": ENGINE})
    live.ok("POST", "/v1/claims", asked, token=worker.token)

    hosts = live.ok("GET", "/v1/hosts?limit=1000")["items"]

    (found,) = [host for host in hosts if host["name"] == worker.name]
    assert found["capability"]["engine"] == ENGINE

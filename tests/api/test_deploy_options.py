"""What a decorator says reaches the server whole: each option as it was asked for is what is stored."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.live_server import LiveServer, named
from support.waiting import eventually

import corral
from corral.functions.http_backend import HttpBackend

# Packages are resolved, which needs an index: acceptance/test_function_environments.py has them.
ELSEWHERE = {"python"}
OPTIONS: dict[str, Any] = {
    "name": "doubled",
    "gpu": "H100:2",
    "memory": "3GiB",
    "cores": 5,
    "labels": ["big"],
    "hosts": ["nobody"],
    "system": ["ffmpeg"],
    "secrets": ["WORD"],
    "env": {"COLOUR": "red", "MY_TOKEN": "no secret"},
    "public_env": ["MY_TOKEN"],
    "volumes": {"data": corral.Volume("notes")},
    "retries": corral.Retries(2, on=(OSError,), delay="2s", backoff=3, max_delay="9s"),
    "timeout": "123s",
    "ttl": "1h",
    "keep": "2d",
    "min_instances": 1,
    "max_instances": 3,
    "idle": "77s",
    "concurrency": 2,
    "queue_delay": None,
    "per_instance": 4,
    "max_memory": "2GiB",
    "executors": ["fleet"],
}
BATCH = corral.Batch(8, wait="20ms")
NIGHTLY = corral.Cron("0 3 * * *", timezone="Europe/Berlin", missed="skip", overlap="queue")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """One of a folder of its own: with a function all of its package is shipped."""
    name = named("functions").replace("-", "_")
    (tmp_path / f"{name}.py").write_text("def batched(items): return items\ndef timed(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module(name)


def test_every_option_is_stored_as_it_was_asked(live: LiveServer, module: ModuleType) -> None:
    """RF-D48: with the endpoint, with its function, or with the run that is its instance."""
    assert {*OPTIONS, "batch", "schedule", *ELSEWHERE} == corral.FunctionOptions.__optional_keys__
    live.ok("PUT", "/v1/projects/default/secrets/WORD", {"value": "x" * 20})
    app = corral.App(named("app"))
    batched = app.function(**OPTIONS, batch=BATCH)(module.batched).member
    timed = app.function(schedule=NIGHTLY)(module.timed).member

    with corral.Corral(live.url, live.operator) as client:
        backend = HttpBackend(client, "default")
        view, other = (
            client.endpoints.deploy(backend.request(one, "default", live=False)) for one in (batched, timed)
        )
        run = eventually(
            lambda: next((one for one in client.runs.page().items if one.name == view.name), None),
            "the instance that is always kept",
        )
        spec = client.runs.get(run.id).spec
        for name in (view.name, other.name):
            client.endpoints.remove("default", name)

    assert view.name == f"{app.name}.doubled"
    (function,) = view.functions.values()
    asked, scaling = function.options, view.scaling
    assert (asked.timeout_s, asked.ttl_s, asked.keep_s) == (123.0, 3600.0, 172800.0)
    assert (asked.retries, asked.retry_on, asked.delay_s) == (2, ["builtins.OSError"], 2.0)
    assert (asked.backoff, asked.max_delay_s) == (3.0, 9.0)
    assert (function.batch_size, function.batch_wait_s) == (8, 0.02)
    assert (scaling.min, scaling.max, scaling.idle_s, scaling.concurrency) == (1, 3, 77.0, 2)
    assert (scaling.queue_delay_s, scaling.per_instance) == (None, 4)
    (scheduled,) = (one.schedule for one in other.functions.values())
    assert scheduled is not None
    assert (scheduled.cron, scheduled.timezone) == ("0 3 * * *", "Europe/Berlin")
    assert (scheduled.missed, scheduled.overlap) == ("skip", "queue")
    needs = spec.resources
    assert (needs.gpus, needs.gpu, needs.min_ram, needs.min_cores) == (2, ["H100"], 3 << 30, 5)
    assert (needs.labels, needs.hosts, needs.system) == (["big"], ["nobody"], ["ffmpeg"])
    assert (spec.secrets, spec.env) == (["WORD"], OPTIONS["env"])
    assert spec.service is not None
    assert (spec.service.volumes, spec.service.max_memory) == ({"data": "notes"}, 2 << 30)
    assert spec.service.concurrency == 2
    assert list(spec.placement.executors) == ["fleet"]

"""Where a training run can go, and what its child is given there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from corral.core.runs.shapes import _shape
from corral.domain.hosts.capability import ENGINE_PACKAGES, Capability, Requirements, judge
from corral.wire.hosts import CapabilityReport
from corral.worker.child.variables import base_environment, engine_environment
from corral.worker.host.probe import HostProbe, engine_versions

WHOLE = {"torch": "2.13.0", "transformers": "5.22.2", "peft": "0.21.2", "safetensors": "0.6.0"}


def host(engine: Mapping[str, str | None] | None) -> Capability:
    return Capability("box", "linux", "x86_64", engine=engine)


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({**WHOLE, "torch": None, "peft": None}, "the host lacks torch, peft"),
        ({}, "the host lacks torch, transformers, peft, safetensors"),
        (None, "is unknown"),
    ],
)
def test_a_host_without_the_engine_cannot_train_and_is_told_what_to_install(
    engine: Mapping[str, str | None] | None, words: str
) -> None:
    """MT-C07."""
    (why,) = judge(Requirements(engine=True), host(engine), host="box").shortfalls

    assert words in why
    assert "`pip install 'corral[train]'`" in why


def test_a_host_with_the_engine_can_train_and_any_other_run_needs_none() -> None:
    assert judge(Requirements(engine=True), host(WHOLE), host="box").eligible
    assert judge(Requirements(), host(None), host="box").eligible


def test_a_need_without_the_engine_keeps_the_shape_that_it_had() -> None:
    assert '"engine"' not in _shape(Requirements(gpus=1))[1]
    assert '"engine":true' in _shape(Requirements(engine=True))[1]


def test_versions_are_found_without_importing_anything(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom corral.worker.host.probe import engine_versions\n"
        "print(engine_versions())\nassert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == str(engine_versions())


def test_the_probe_reports_the_engine_and_it_survives_the_wire(tmp_path: Path) -> None:
    found = HostProbe(tmp_path, []).capability()

    assert found.engine is not None
    assert set(found.engine) == set(ENGINE_PACKAGES)
    sent = CapabilityReport(hostname="x", os="linux", arch="x86_64", engine=dict(found.engine))
    assert sent.capability().engine == found.engine


def test_a_training_run_gets_the_caches_and_no_token() -> None:
    """MT-C56, MT-D01: no credential of the host reaches what users write."""
    own = {
        "PATH": "/bin",
        "HF_HOME": "/models",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TRITON_CACHE_DIR": "/t",
        "HF_TOKEN": "secret",
        "HUGGING_FACE_HUB_TOKEN": "secret",
        "OPENAI_API_KEY": "secret",
        "CORRAL_TOKEN": "secret",
    }

    given = {**base_environment(own), **engine_environment(own)}

    assert given["HF_HOME"] == "/models"
    assert given["OMP_NUM_THREADS"] == "1"
    assert "secret" not in given.values()
    assert "HF_HOME" not in base_environment(own)

"""The blobs on disk, checked and damaged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.installation import Installation, installed


@pytest.fixture(scope="module")
def corral(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Of its own: its blobs are damaged."""
    with installed(tmp_path_factory.mktemp("home")) as made:
        yield made


def test_fsck_finds_nothing_and_then_the_damaged_file(corral: Installation) -> None:
    assert "no problems" in corral.ok("fsck")
    write = (
        "import os, pathlib; pathlib.Path(os.environ['CORRAL_OUTPUT_DIR'], 'f').write_text('to be damaged')"
    )
    assert corral.python(write).returncode == 0
    blob = next(path for path in (corral.home / "blobs").rglob("*") if _holds(path, b"to be damaged"))
    blob.chmod(0o644)
    blob.write_bytes(b"to be changed")

    done = corral("fsck")

    run_id = json.loads(corral.ok("ls", "--json"))[0]["id"]
    assert done.returncode == 1
    assert blob.name in done.stdout
    assert f"(run {run_id})" in done.stdout, "the harm is named as its owner knows it"
    assert "set aside as damaged" in corral("fsck").stdout, "the second look says what became of it"
    assert corral("artifacts", "verify", "latest").returncode == 1


def _holds(path: Path, data: bytes) -> bool:
    return path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data

"""What a worker looks at once more between the claim and the start."""

from __future__ import annotations

from pathlib import Path

from corral.client.training.model_cache import cached_bytes
from corral.domain.hosts.capability import Capability
from corral.wire.leases import LeaseView
from corral.wire.spec.run_file import RunSpec
from corral.worker.host.probe import FreeResources, HostSnapshot
from corral.worker.host.recheck import recheck
from corral.worker.host.system_packages import SystemPackages

GIB = 1 << 30
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def lease(**fields: object) -> LeaseView:
    spec = RunSpec.model_validate({"argv": ["true"], **fields})
    return LeaseView(
        id="l-1",
        run_id="r-1",
        project="default",
        name="run",
        attempt=1,
        rank=0,
        world_size=1,
        epoch=1,
        lease_s=30,
        log_quota_bytes=1,
        spec=spec,
    )


def snapshot(disk_free: int) -> HostSnapshot:
    has = Capability("box", "linux", "x86_64", ram_bytes=64 * GIB, disk_bytes=100 * GIB, gpus=())
    return HostSnapshot(has, FreeResources(ram_bytes=1, disk_bytes=disk_free, gpu_bytes={}))


def test_what_of_the_model_is_on_the_host_already_needs_no_room(tmp_path: Path) -> None:
    """A host whose disk is nearly full of the very model that is asked for can train it."""
    folder = tmp_path / "hub" / "models--Qwen--Qwen3-0.6B" / "snapshots" / COMMIT
    blobs = tmp_path / "blobs"
    folder.mkdir(parents=True)
    blobs.mkdir()
    with (blobs / "weights").open("wb") as file:
        file.truncate(15 * GIB)
    (folder / "model.safetensors").symlink_to(blobs / "weights")
    environ = {"HF_HOME": str(tmp_path)}
    here = cached_bytes("qwen3-0.6b", COMMIT, environ)
    asked = lease(resources={"min_disk": "18GiB"})

    def found(model_here: int, disk_free: int) -> list[str]:
        return recheck(lambda: snapshot(disk_free), asked, None, SystemPackages(), lambda: model_here)

    assert here == 15 * GIB
    assert found(here, 4 * GIB) == []
    assert found(here, 2 * GIB) == ["needs 18 GiB disk; 17 GiB are free now"]
    assert found(0, 4 * GIB) == ["needs 18 GiB disk; 4 GiB are free now"]
    assert [cached_bytes("qwen3-0.6b", revision, environ) for revision in (None, "main", "f" * 40)] == [0] * 3

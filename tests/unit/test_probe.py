"""What a worker finds out about its machine: unknown is None, limits of a container count."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from corral import __version__
from corral.domain.hosts.capability import ENGINE_PACKAGES, Requirements, judge
from corral.domain.hosts.samples import GpuSample, HostSample, mean_of
from corral.wire.leases import BeatRequest
from corral.worker.host.cgroup import cpu_quota, memory_left, memory_limit
from corral.worker.host.gpus import GpuProbe, GpuSurvey
from corral.worker.host.nvml import survey
from corral.worker.host.probe import HostProbe, gpu_sample, usable_cores

GIB = 1 << 30


def tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def answering(answer: object, *, timeout_s: float = 10) -> GpuProbe:
    return GpuProbe([sys.executable, "-S", "-c", f"print({json.dumps(answer)!r})"], timeout_s=timeout_s)


def gpu(index: int, **changes: object) -> dict[str, Any]:
    return {
        "index": index,
        "name": "NVIDIA H200",
        "uuid": f"GPU-{index}f00-1234",
        "memory_bytes": 140 * GIB,
        "compute_capability": "9.0",
        "driver": "580.1",
        "free_bytes": 100 * GIB,
        "used_bytes": 40 * GIB,
        "utilisation": 0.5,
        **changes,
    }


def found(*gpus: dict[str, Any], notes: tuple[str, ...] = ()) -> GpuProbe:
    return answering({"found": True, "gpus": gpus, "notes": notes})


NO_GPU = answering({"found": False})


def indexes(seen: GpuSurvey) -> list[int] | None:
    return None if seen.gpus is None else [state.gpu.index for state in seen.gpus]


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "150000 100000\n"}, 1.5),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
                "sys/fs/cgroup/a/cpu.max": "300000 100000\n",
            },
            3,
        ),
        ({"proc/self/cgroup": "0::/../host/only\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/docker/abc\n0::/\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            2,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/a\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "garbage"}, None),
    ],
    ids=[
        "none",
        "v2-max",
        "v2",
        "v2-nested",
        "v2-parent",
        "v2-hidden",
        "v1-hidden",
        "v1-unlimited",
        "garbage",
    ],
)
def test_the_tightest_cpu_quota_around_the_process_is_found(
    tmp_path: Path, files: Mapping[str, str], quota: float | None
) -> None:
    """FL-D27."""
    assert cpu_quota(tree(tmp_path, files)) == quota


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, None),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/memory.max": f"{2 * GIB}\n",
                "sys/fs/cgroup/a/b/memory.max": f"{3 * GIB}\n",
            },
            2 * GIB,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/x\n0::/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/x/memory.limit_in_bytes": f"{GIB}\n",
            },
            GIB,
        ),
    ],
    ids=["none", "v2-max", "v2-parent", "v1"],
)
def test_the_tightest_memory_limit_around_the_process_is_found(
    tmp_path: Path, files: Mapping[str, str], limit: int | None
) -> None:
    """FL-D27."""
    assert memory_limit(tree(tmp_path, files)) == limit


def test_page_cache_does_not_count_as_used_memory(tmp_path: Path) -> None:
    two = tree(
        tmp_path / "v2",
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/memory.current": f"{3 * GIB}\n",
            "sys/fs/cgroup/memory.stat": f"anon 1\ninactive_file {GIB}\n",
        },
    )
    one = tree(
        tmp_path / "v1",
        {
            "proc/self/cgroup": "4:memory:/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{5 * GIB}\n",
            "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 0\n",
        },
    )

    assert memory_left(two) == 2 * GIB
    assert memory_left(one) == 0
    assert memory_left(tmp_path) is None


@pytest.mark.parametrize(
    ("physical", "affinity", "quota", "cores"),
    [
        (32, 64, 2.0, 2),
        (32, 2, None, 2),
        (32, 64, None, 32),
        (32, 64, 0.5, 1),
        (32, 64, 2.5, 2),
        (None, 64, None, None),
        (None, 4, 2.0, 2),
        (8, None, None, 8),
    ],
)
def test_cores_are_physical_and_within_affinity_and_quota(
    physical: int | None, affinity: int | None, quota: float | None, cores: int | None
) -> None:
    """FL-D26, FL-D27: a container with 2 CPUs reports 2; unknown stays unknown."""
    assert usable_cores(physical=physical, affinity=affinity, quota=quota) == cores


def test_a_container_with_limits_reports_them(tmp_path: Path) -> None:
    """FL-D27."""
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpu.max": "100000 100000\n",
            "sys/fs/cgroup/memory.max": f"{64 << 20}\n",
            "sys/fs/cgroup/memory.current": f"{60 << 20}\n",
        },
    )

    assert HostProbe(tmp_path, [], gpus=NO_GPU, root=root).capability().cores == 1
    assert HostProbe(tmp_path, [], gpus=NO_GPU, root=root).capability().ram_bytes == 64 << 20
    assert HostProbe(tmp_path, [], gpus=NO_GPU, root=root).snapshot().free.ram_bytes == 4 << 20
    assert HostProbe(tmp_path, [], gpus=NO_GPU, root=root).ram_free() == 4 << 20


V1 = Path("/sys/fs/cgroup")


@pytest.fixture
def real_groups() -> Iterator[list[Path]]:
    """Control groups of the kernel's own, made for one test; only root can, and only where v1 is mounted."""
    made: list[Path] = []
    try:
        for controller in ("cpu", "memory"):
            if not (V1 / controller / "cgroup.procs").exists():
                pytest.skip(f"there is no v1 hierarchy of {controller}")
            group = V1 / controller / f"corral-test-{os.getpid()}"
            try:
                group.mkdir()
            except OSError as error:
                pytest.skip(f"control groups cannot be made here: {error}")
            made.append(group)
        yield made
    finally:
        for group in made:
            group.rmdir()


def test_the_limits_of_a_real_control_group_are_reported(real_groups: list[Path], tmp_path: Path) -> None:
    """FL-D27: the kernel's own files, not a likeness of them."""
    cpu, memory = real_groups
    (cpu / "cpu.cfs_period_us").write_text("100000")
    (cpu / "cpu.cfs_quota_us").write_text("100000")
    (memory / "memory.limit_in_bytes").write_text(str(1 << 30))
    program = (
        "import os, sys; [open(f'{g}/cgroup.procs', 'w').write(str(os.getpid())) for g in sys.argv[1:]];"
        "from pathlib import Path; from corral.worker.host.probe import HostProbe;"
        "have = HostProbe(Path('.'), []).capability(); print(have.cores, have.ram_bytes)"
    )
    command = [sys.executable, "-c", program, str(cpu), str(memory)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["1", str(1 << 30)]


def test_the_worker_says_which_corral_it_is(tmp_path: Path) -> None:
    """FL-C06: its version, with the commit where that is known; and why GPUs are unknown."""
    have = HostProbe(tmp_path, [], gpus=answering({"error": "driver not loaded"})).capability()
    assert (have.corral or "").startswith(__version__)
    assert have.gpu_note == "driver not loaded"
    (reason,) = judge(Requirements(gpus=1), have, host="h").shortfalls
    assert reason == "needs 1 GPU; which the host has is unknown: driver not loaded"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
def test_a_worker_bound_to_one_cpu_reports_one_core() -> None:
    """FL-D27."""
    program = (
        "import os; from pathlib import Path; from corral.worker.host.probe import HostProbe;"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "print(HostProbe(Path('.'), []).capability().cores)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "1\n"


def test_this_machine_is_probed_for_real(tmp_path: Path) -> None:
    """FL-C06, FL-D25, FL-D26, FL-D27: totals, and nothing is zero."""
    have = HostProbe(tmp_path / "not" / "made" / "yet", ["lab", "fast"]).capability()
    now = HostProbe(tmp_path, []).snapshot().free

    assert have.os in {"linux", "darwin", "windows"}
    assert have.arch in {"x86_64", "aarch64"}
    assert have.cores is None or have.cores >= 1
    assert have.ram_bytes is not None
    assert have.disk_bytes is not None
    assert now.ram_bytes is not None
    assert now.disk_bytes is not None
    assert 0 < now.ram_bytes <= have.ram_bytes
    assert 0 < now.disk_bytes < have.disk_bytes
    assert have.labels == ("lab", "fast")
    assert have.hostname == platform.node()
    assert have.python == platform.python_version()
    assert set(have.engine or ()) == set(ENGINE_PACKAGES)


def test_the_worker_itself_never_loads_the_driver() -> None:
    """FL-D27: the probe runs in a child, so no context is held."""
    program = (
        "import sys; from pathlib import Path; from corral.worker.host.probe import HostProbe;"
        "HostProbe(Path('.'), []).capability(); print('pynvml' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"


def test_gpus_are_reported_with_what_a_run_may_require(tmp_path: Path) -> None:
    """FL-D24, FL-D27, FL-D28: count, model, memory, driver and compute capability are gated."""
    have = HostProbe(tmp_path, [], gpus=found(gpu(0), gpu(1))).capability()

    assert have.gpus is not None
    assert [one.memory_bytes for one in have.gpus] == [140 * GIB, 140 * GIB]
    fits = Requirements(gpus=2, gpu=("H200",), min_vram_bytes=100 * GIB, min_compute_capability="9.0")
    assert judge(fits, have, host="h").eligible
    assert not judge(Requirements(gpus=3), have, host="h").eligible
    assert not judge(Requirements(gpus=1, min_vram_bytes=141 * GIB), have, host="h").eligible
    assert not judge(Requirements(min_cores=100_000), have, host="h").eligible


def test_free_gpu_memory_is_no_part_of_the_capability(tmp_path: Path) -> None:
    """FL-D25: a busy GPU stays eligible; what is free is asked again at the start."""
    busy, idle = found(gpu(0, free_bytes=0)), found(gpu(0))

    assert HostProbe(tmp_path, [], gpus=busy).capability() == HostProbe(tmp_path, [], gpus=idle).capability()
    assert HostProbe(tmp_path, [], gpus=busy).snapshot().free.gpu_bytes == {0: 0}
    assert HostProbe(tmp_path, [], gpus=found(gpu(0, free_bytes=None))).snapshot().free.gpu_bytes == {0: None}


def test_no_nvidia_library_means_surely_no_gpu(tmp_path: Path) -> None:
    assert HostProbe(tmp_path, [], gpus=NO_GPU).capability().gpus == ()
    assert HostProbe(tmp_path, [], gpus=NO_GPU).snapshot().free.gpu_bytes == {}
    assert gpu_sample([0], gpus=NO_GPU) == {}


@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "-S", "-c", 'print(\'{"error": "driver not loaded"}\')'],
        [sys.executable, "-S", "-c", "raise SystemExit(3)"],
        [sys.executable, "-S", "-c", "import os; os.abort()"],
        [sys.executable, "-S", "-c", "print('[]')"],
        [sys.executable, "-S", "-c", 'print(\'{"found": true, "gpus": [{}], "notes": []}\')'],
        [sys.executable, "-S", "-c", "import sys; sys.stdout.buffer.write(bytes([255]))"],
        ["/no/such/program"],
    ],
    ids=["says-so", "exits", "crashes", "other-json", "half-an-answer", "not-text", "absent"],
)
def test_a_driver_that_fails_makes_the_gpus_unknown_and_not_none(
    tmp_path: Path, command: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """FL-D26: unknown is not zero, and detection never raises."""
    have = HostProbe(tmp_path, [], gpus=GpuProbe(command)).capability()

    assert have.gpus is None
    assert len(caplog.records) == 1
    assert not judge(Requirements(gpus=1), have, host="h").eligible
    assert HostProbe(tmp_path, [], gpus=GpuProbe(command)).snapshot().free.gpu_bytes is None


def test_a_driver_that_hangs_does_not_hang_the_worker() -> None:
    """FL-D27."""
    hanging = GpuProbe([sys.executable, "-S", "-c", "import time; time.sleep(600)"], timeout_s=0.2)

    seen = hanging.survey({})

    assert seen.gpus is None
    assert seen.note == "the NVIDIA driver did not answer within 0.2 s"


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("1", [1]),
        ("2, 0", [0, 2]),
        ("1,1", [1]),
        ("0,-1,2", [0]),
        ("7", []),
        ("GPU-2f00", [2]),
        ("GPU-", []),
        ("MIG-abc", None),
    ],
)
def test_only_gpus_that_cuda_would_show_are_reported(visible: str | None, expected: list[int] | None) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}

    assert indexes(found(gpu(0), gpu(1), gpu(2)).survey(environ)) == expected


def test_a_beat_samples_only_the_gpus_of_its_lease_and_leaves_out_what_is_unknown() -> None:
    probe_of_three = found(gpu(0), gpu(1, utilisation=None), gpu(2))

    assert gpu_sample([1, 2], gpus=probe_of_three) == {
        "gpu1_memory_used_bytes": 40 * GIB,
        "gpu2_utilisation": 0.5,
        "gpu2_memory_used_bytes": 40 * GIB,
    }


def test_a_beat_of_many_gpus_holds_no_more_than_a_server_takes() -> None:
    """DEF-02: a beat that is refused costs the lease."""
    many = list(range(40))

    sample = gpu_sample(many, gpus=found(*map(gpu, many)))

    assert BeatRequest(sample={**sample, "ran_s": 1, "rss_bytes": 1, "cpu_s": 1, "processes": 1})
    assert sample["gpu0_utilisation"] == 0.5


def test_a_host_says_how_busy_it_is_and_asks_no_driver_where_there_are_no_gpus(tmp_path: Path) -> None:
    """DEF-02."""
    hot: dict[str, Any] = {"temperature_c": 71, "power_w": 300.5}
    machine = HostProbe(tmp_path, [], gpus=found(gpu(0, **hot), gpu(1)))

    seen = machine.sample(with_gpus=True)

    assert seen.ram_bytes is not None
    assert 0 < (seen.ram_used_bytes or 0) < seen.ram_bytes
    assert 0 <= (seen.cpu or 0) <= 1
    busy: dict[str, Any] = {"utilisation": 0.5, "memory_used_bytes": 40 * GIB, "memory_bytes": 140 * GIB}
    assert seen.gpus == (GpuSample(0, **busy, **hot), GpuSample(1, **busy))
    asks = HostProbe(tmp_path, [], gpus=GpuProbe(["/no/such/program"]))
    assert asks.sample(with_gpus=False).gpus == ()


def test_what_is_reported_is_the_mean_of_what_is_known() -> None:
    """DEF-02."""
    looks = [
        HostSample(0.1, 10, 100, (GpuSample(1, 0.5, 40, 80, None, 100.0), GpuSample(0))),
        HostSample(None, 21, 100, (GpuSample(1, 1.0, 41, 80, 50.0, None),)),
        HostSample(0.3, 30, 100),
    ]

    assert mean_of(looks) == HostSample(0.2, 20, 100, (GpuSample(0), GpuSample(1, 0.75, 40, 80, 50.0, 100.0)))
    assert mean_of([]) == HostSample()


def test_a_beat_without_gpus_starts_no_process() -> None:
    assert gpu_sample([], gpus=GpuProbe(["/no/such/program"])) == {}


class NvmlError(Exception):
    """As pynvml's, the base of the one below."""


class LibraryNotFound(NvmlError):
    pass


def fail(error: type[NvmlError]) -> Any:
    def raising(*_: object) -> None:
        raise error("Not Supported")

    return raising


def driver(**changes: Any) -> SimpleNamespace:
    """In pynvml's shape, with one GPU."""
    calls = {
        "NVMLError": NvmlError,
        "NVMLError_LibraryNotFound": LibraryNotFound,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlSystemGetDriverVersion": lambda: b"580.1",
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda _: "NVIDIA GB10",
        "nvmlDeviceGetUUID": lambda _: "GPU-1",
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=8, free=5, used=3),
        "nvmlDeviceGetCudaComputeCapability": lambda _: (12, 1),
        "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=25),
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlDeviceGetTemperature": lambda _, sensor: 41 + sensor,
        "nvmlDeviceGetPowerUsage": lambda _: 61_250,
    }
    return SimpleNamespace(**(calls | changes))


def test_the_driver_is_asked_for_everything() -> None:
    assert survey(driver())["gpus"] == [
        {
            "index": 0,
            "name": "NVIDIA GB10",
            "uuid": "GPU-1",
            "compute_capability": "12.1",
            "memory_bytes": 8,
            "free_bytes": 5,
            "used_bytes": 3,
            "utilisation": 0.25,
            "temperature_c": 41,
            "power_w": 61.25,
            "driver": "580.1",
        }
    ]


def test_what_the_driver_does_not_say_is_unknown() -> None:
    """FL-D26: GPUs that share the machine's memory report none of their own."""
    (one,) = survey(driver(nvmlDeviceGetMemoryInfo=fail(NvmlError)))["gpus"]

    assert one["memory_bytes"] is None
    assert one["compute_capability"] == "12.1"


def test_a_gpu_without_a_sensor_has_no_temperature_and_no_power() -> None:
    """DEF-02: unknown, not 0."""
    silent = {"nvmlDeviceGetTemperature": fail(NvmlError), "nvmlDeviceGetPowerUsage": fail(NvmlError)}
    (one,) = survey(driver(**silent))["gpus"]

    assert (one["temperature_c"], one["power_w"]) == (None, None)
    assert one["utilisation"] == 0.25


def test_a_gpu_that_fell_off_the_bus_leaves_the_others_usable() -> None:
    def handle(index: int) -> int:
        if index == 0:
            raise NvmlError("GPU is lost")
        return index

    answer = survey(driver(nvmlDeviceGetCount=lambda: 2, nvmlDeviceGetHandleByIndex=handle))

    assert [one["index"] for one in answer["gpus"]] == [1]
    assert answer["notes"] == ["GPU 0 is left out: GPU is lost"]


def test_a_missing_library_and_a_failing_driver_are_told_apart() -> None:
    """FL-D26."""
    assert survey(driver(nvmlInit=fail(LibraryNotFound))) == {"found": False}
    assert "does not start" in survey(driver(nvmlInit=fail(NvmlError)))["error"]
    assert "does not answer" in survey(driver(nvmlDeviceGetCount=fail(NvmlError)))["error"]

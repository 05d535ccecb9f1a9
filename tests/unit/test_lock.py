"""Requirements become the same pins for every host, or an error in uv's own words."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from corral.client.environments.installer import (
    InstallerMissing,
    InstallerResult,
    InstallerTimeout,
)
from corral.client.environments.lock import (
    IndexUnreachable,
    InvalidRequirement,
    Lock,
    PackageNotFound,
    RequirementsConflict,
    resolve,
)


def write_wheel(folder: Path, name: str, version: str, requires: Sequence[str] = ()) -> None:
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {need}\n" for need in requires)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    write_wheel(folder, "hay", "1.0")
    write_wheel(folder, "hay", "2.0")
    write_wheel(folder, "oats", "1.0", requires=["hay==1.0"])
    return folder


@pytest.fixture
def offline(tmp_path: Path) -> dict[str, str]:
    index = tmp_path / "empty-index"
    index.mkdir()
    return {
        "PATH": os.defpath,
        "UV_DEFAULT_INDEX": index.as_uri(),
        "UV_CACHE_DIR": str(tmp_path / "cache"),
    }


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_a_lock_pins_what_the_requirements_need_with_hashes(wheels: Path, offline: dict[str, str]) -> None:
    """MT-D21."""
    lines: list[str] = []

    lock = resolve(["oats"], python="3.11", env=offline, progress=lines.append, find_links=[wheels])

    pins = [line for line in lock.text.splitlines() if not line.startswith(" ")]
    assert pins == ["hay==1.0 \\", "oats==1.0 \\"]
    assert lock.text.count("--hash=sha256:") == 2
    assert any(line.startswith("Resolved 2 packages") for line in lines)


def test_the_order_and_comments_of_requirements_do_not_change_the_digest(
    wheels: Path, offline: dict[str, str]
) -> None:
    one = resolve(["oats", "hay"], python="3.11", env=offline, find_links=[wheels])
    other = resolve(["# feed", "hay", "oats  # daily"], python="3.11", env=offline, find_links=[wheels])

    assert one == other


def test_a_lock_names_neither_index_nor_folder(wheels: Path, offline: dict[str, str]) -> None:
    lock = resolve(["oats"], python="3.11", env=offline, find_links=[wheels])

    assert "://" not in lock.text
    assert str(wheels) not in lock.text


def test_no_requirements_need_no_uv() -> None:
    lock = resolve(["", "# nothing"], python="3.11", env={}, uv=Path("/nonexistent/uv"))

    assert lock.text == ""
    # Hosts keep environments by it: a change of the formula rebuilds every one of them.
    assert lock.digest == "e58c1a4af994454029f8a583fc26976b2a5f4ac65299949f75f715d4ca932116"


def test_the_python_is_part_of_the_digest() -> None:
    assert Lock("hay==1.0\n", "3.11").digest != Lock("hay==1.0\n", "3.12").digest


def test_white_space_and_line_ends_are_not() -> None:
    assert Lock("hay==1.0\r\n\r\n", "3.11") == Lock("hay==1.0", "3.11")


def test_a_requirements_file_may_include_another(
    wheels: Path, offline: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "base.txt").write_text("hay\n")
    (tmp_path / "pins.txt").write_text("hay<2\n")

    lock = resolve(
        ["-r base.txt", "-c pins.txt"], python="3.11", env=offline, find_links=[wheels], folder=tmp_path
    )

    assert lock.text.startswith("hay==1.0 ")


def test_an_unknown_package_is_named_in_the_error(wheels: Path, offline: dict[str, str]) -> None:
    with pytest.raises(PackageNotFound, match="argparse-straw was not found") as caught:
        resolve(["argparse-straw"], python="3.11", env=offline, find_links=[wheels])

    assert "UV_INDEX" in caught.value.hint


def test_an_unknown_version_is_not_called_a_conflict(wheels: Path, offline: dict[str, str]) -> None:
    with pytest.raises(PackageNotFound, match="no version of hay==9"):
        resolve(["hay==9"], python="3.11", env=offline, find_links=[wheels])


def test_conflicting_requirements_are_both_named(wheels: Path, offline: dict[str, str]) -> None:
    with pytest.raises(RequirementsConflict, match=r"(?s)oats.*hay==1\.0.*hay==2\.0"):
        resolve(["oats", "hay==2.0"], python="3.11", env=offline, find_links=[wheels])


def test_a_requirement_with_bad_syntax_is_shown(offline: dict[str, str]) -> None:
    with pytest.raises(InvalidRequirement, match="hay===>1"):
        resolve(["hay===>1"], python="3.11", env=offline)


@pytest.mark.parametrize("python", ["three", "../3.11", "3.11; rm", ""])
def test_a_python_that_is_no_version_is_refused(python: str) -> None:
    with pytest.raises(InvalidRequirement, match=r"environment\.python"):
        resolve([], python=python, env={})


@pytest.mark.parametrize("line", ["--extra-index-url https://packages.example/simple", "-f wheels"])
def test_an_option_that_would_not_reach_the_hosts_is_refused(line: str) -> None:
    with pytest.raises(InvalidRequirement, match="do not reach the hosts"):
        resolve([line, "hay"], python="3.11", env={})


@pytest.mark.parametrize("form", ["{wheel}", "hay @ file://{wheel}"])
def test_a_path_on_the_client_is_refused(form: str, wheels: Path, offline: dict[str, str]) -> None:
    requirement = form.format(wheel=wheels / "hay-1.0-py3-none-any.whl")

    with pytest.raises(InvalidRequirement, match="a host cannot see"):
        resolve([requirement], python="3.11", env=offline)


def test_an_index_that_does_not_answer_is_said_to(offline: dict[str, str]) -> None:
    away = offline | {"UV_DEFAULT_INDEX": "http://user:pass-word@127.0.0.1:9/simple", "UV_HTTP_RETRIES": "0"}

    with pytest.raises(IndexUnreachable, match="Failed to fetch") as caught:
        resolve(["hay"], python="3.11", env=away)

    assert "UV_DEFAULT_INDEX" in caught.value.hint
    assert "pass-word" not in str(caught.value)


def test_a_missing_uv_is_an_error_with_a_hint() -> None:
    with pytest.raises(InstallerMissing) as caught:
        resolve(["hay"], python="3.11", env={}, uv=Path("/nonexistent/uv"))

    assert "pip install uv" in caught.value.hint


def test_a_uv_that_hangs_is_killed_with_all_it_started(tmp_path: Path) -> None:
    hanging = script(tmp_path / "uv", f"sleep 60 & echo $! > {tmp_path}/child; wait")

    with pytest.raises(InstallerTimeout, match=r"within 2 s"):
        resolve(["hay"], python="3.11", env={"PATH": os.defpath}, uv=hanging, timeout_s=2)

    # Killed it is, but on a busy machine the kernel takes its time.
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int((tmp_path / "child").read_text())).wait(30)


def test_uvs_words_are_bounded_and_start_at_its_complaint() -> None:
    finished = InstallerResult(1, ("warning: noise", "error: no hay", *("x" * 300 for _ in range(50))))

    assert finished.words.startswith("error: no hay")
    assert len(finished.words) < 2_100


def test_the_older_form_of_uvs_complaints_is_understood(tmp_path: Path) -> None:
    old = script(
        tmp_path / "uv",
        "echo '  × No solution found when resolving dependencies:' >&2;"
        "echo '  ╰─▶ Because hay was not found in the package registry' >&2; exit 1",
    )

    with pytest.raises(PackageNotFound, match="hay was not found"):
        resolve(["hay"], python="3.11", env={"PATH": os.defpath}, uv=old)

"""The rules for paths in trees and manifests."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.domain.paths import BadPath, check_path, check_paths, why_bad, why_bad_on_windows

GOOD = [
    "a",
    "a/b.txt",
    ".env",
    "..data",
    "a/...",
    "日本語/ファイル.txt",
    "🦙/llama.bin",
    "مرحبا.txt",
    "a b",
    "C:x",
]


@pytest.mark.parametrize("path", GOOD)
def test_plain_names_of_any_script_are_good(path: str) -> None:
    check_path(path)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "empty path"),
        ("/etc/passwd", "absolute"),
        ("../x", "leads out"),
        ("a/../../x", "leads out"),
        ("a/..", "leads out"),
        (".", "`.` part"),
        ("./a", "`.` part"),
        ("a//b", "empty"),
        ("a/", "empty"),
        ("a\\b", "backslash"),
        ("a\x00b", "control character"),
        ("a\nb", "control character"),
        ("a\n", "control character"),
        ("a\x7f", "control character"),
        ("a\x85b", "control character"),
        ("a\u2028b", "control character"),
        ("a\udcffb", "not valid UTF-8"),
        ("x" * 256, "name of 256 bytes"),
        ("é" * 128, "name of 256 bytes"),
        ("/".join(["x" * 200] * 21), "path of 4220 bytes"),
    ],
)
def test_a_bad_path_is_refused_with_its_reason(path: str, reason: str) -> None:
    with pytest.raises(BadPath, match="1 path") as caught:
        check_path(path)
    assert reason in caught.value.message
    assert caught.value.message.isprintable()


def test_names_up_to_the_limits_are_good() -> None:
    check_path("é" * 127)
    check_path("/".join(["x" * 255] * 16))


def test_a_path_cannot_be_listed_twice() -> None:
    with pytest.raises(BadPath, match="a/b: listed twice"):
        check_paths(["a/b", "c", "a/b"])


def test_a_path_cannot_be_a_file_and_a_folder() -> None:
    with pytest.raises(BadPath, match="a/b: both a file and a folder"):
        check_paths(["a/b/c/d", "a/b.txt", "a/b"])


def test_a_name_that_begins_like_a_folder_is_no_conflict() -> None:
    check_paths(["a/b", "a.txt", "a-b/c", "ab"])


def test_only_the_first_ten_are_spelled_out() -> None:
    with pytest.raises(BadPath) as caught:
        check_paths([f"../{n:02}" for n in range(25)])
    assert "../09" in caught.value.message
    assert "../10" not in caught.value.message
    assert caught.value.message.endswith("and 15 more")
    assert len(caught.value.problems) == 25


@pytest.mark.parametrize("path", ["C:/x", "a/b:stream", "nul", "a/COM1.txt", "dot.", "space ", "what?"])
def test_names_that_windows_cannot_write_are_known(path: str) -> None:
    check_path(path)
    assert why_bad_on_windows(path)


def test_ordinary_names_are_good_on_windows() -> None:
    assert why_bad_on_windows("src/console.py") is None


@given(st.text(st.sampled_from("ab./\\\n\x00é"), max_size=12) | st.text(max_size=20))
def test_a_good_path_always_stays_below_its_root(path: str) -> None:
    if why_bad(path) is None:
        pure = PurePosixPath(path)
        assert str(pure) == path
        assert not pure.is_absolute()
        assert ".." not in pure.parts
        assert path.encode()

"""Scanning real folders into trees."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from corral.client.files.digest import FileChanged, digest_file, read_file
from corral.client.files.ignore import BadIgnoreFile, Ignore
from corral.client.files.tree import FileEntry, NotAFolder, SecretInTree, Tree, TreeRefused, scan
from corral.client.files.walk import ListedFile, TreeLimits, TreeTooLarge, walk
from corral.domain.secrets.redact import SecretValues

TOKEN = "hf_Zk3vQ9xLw72pQabcd"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def paths(root: Path, ignore: Ignore | None = None) -> list[str]:
    return [entry.path for entry in scan(root, ignore=ignore).files]


def refusals(root: Path) -> list[str]:
    with pytest.raises(TreeRefused) as caught:
        scan(root, ignore=None)
    assert caught.value.hint
    assert caught.value.message.isprintable()
    return [str(problem) for problem in caught.value.problems]


def only_file(root: Path) -> ListedFile:
    (found,) = walk(root, ignore=None, limits=TreeLimits()).files
    return found


def test_a_tree_lists_sorted_paths_sizes_modes_and_digests(tmp_path: Path) -> None:
    write(tmp_path, {"b/run.sh": "echo", "a.txt": "", "b.txt": "hello"})
    (tmp_path / "b/run.sh").chmod(0o700)
    (tmp_path / "empty").mkdir()

    tree = scan(tmp_path, ignore=None)

    assert tree.files == (
        FileEntry("a.txt", 0, 0o644, hashlib.sha256(b"").hexdigest()),
        FileEntry("b.txt", 5, 0o644, hashlib.sha256(b"hello").hexdigest()),
        FileEntry("b/run.sh", 4, 0o755, hashlib.sha256(b"echo").hexdigest()),
    )
    assert tree.total_bytes == 9


def test_equal_content_has_an_equal_digest(tmp_path: Path) -> None:
    write(tmp_path / "one", {"x": "1", "y/z": "2"})
    write(tmp_path / "two", {"y/z": "2", "x": "1"})
    os.utime(tmp_path / "two/x", (1, 1))
    (tmp_path / "two/x").chmod(0o600)

    one, two = scan(tmp_path / "one", ignore=None), scan(tmp_path / "two", ignore=None)

    assert one.digest == two.digest
    (tmp_path / "two/x").chmod(0o755)
    assert scan(tmp_path / "two", ignore=None).digest != one.digest


def test_the_digest_of_a_known_tree_never_changes() -> None:
    tree = Tree.of([FileEntry("b", 1, 0o755, "22"), FileEntry("a", 0, 0o644, "11")])
    listing = b'[["a","11",0,420],["b","22",1,493]]'
    assert tree.digest == hashlib.sha256(listing).hexdigest()


def test_names_in_any_script_survive(tmp_path: Path) -> None:
    names = ["emoji 🦙🧪.bin", "مرحبا/עברית.txt", "日本語/ファイル.txt", "e\u0301.txt", "\u00e9.txt"]
    write(tmp_path, dict.fromkeys(names, "x"))
    assert paths(tmp_path) == sorted(names)


def test_a_root_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"file": ""})
    for root in (tmp_path / "file", tmp_path / "missing"):
        with pytest.raises(NotAFolder):
            scan(root, ignore=None)


def test_links_inside_the_root_become_what_they_point_to(tmp_path: Path) -> None:
    write(tmp_path / "root", {"data/real.txt": "content"})
    (tmp_path / "root/file").symlink_to("data/real.txt")
    (tmp_path / "root/chain").symlink_to("file")
    (tmp_path / "root/folder").symlink_to("data")
    (tmp_path / "alias").symlink_to("root")

    tree = scan(tmp_path / "alias", ignore=None)

    assert [e.path for e in tree.files] == ["chain", "data/real.txt", "file", "folder/real.txt"]
    assert {e.digest for e in tree.files} == {hashlib.sha256(b"content").hexdigest()}


def test_all_offending_links_are_named_at_once_with_their_targets(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(tmp_path, {"outside.txt": "x", "root-twin/x": "x", "root/sub/ok": "x"})
    (root / "abs").symlink_to("/etc/passwd")
    (root / "dangling").symlink_to("nowhere")
    (root / "rel").symlink_to("../outside.txt")
    (root / "self").symlink_to("self")
    (root / "sub/up").symlink_to("..")
    (root / "twin").symlink_to("../root-twin")

    assert refusals(root) == [
        "abs: link to /etc/passwd, outside the folder",
        "dangling: dangling link to nowhere",
        "rel: link to ../outside.txt, outside the folder",
        "self: dangling link to self",
        "sub/up: link to a folder that contains it",
        "twin: link to ../root-twin, outside the folder",
    ]


def test_only_the_first_ten_offenders_are_spelled_out(tmp_path: Path) -> None:
    for n in range(13):
        (tmp_path / f"l{n:02}").symlink_to("nowhere")
    with pytest.raises(TreeRefused, match="l09: dangling link to nowhere; and 3 more"):
        scan(tmp_path, ignore=None)


def test_pipes_sockets_and_devices_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Socket paths are limited to about a hundred bytes, temporary folders are not.
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("sock")
        assert refusals(tmp_path) == ["pipe: is a named pipe", "sock: is a socket"]


def test_a_folder_of_devices_is_refused() -> None:
    with pytest.raises(TreeRefused, match="null: is a character device") as caught:
        scan(Path("/dev"), ignore=Ignore().enter("", [("patterns", "*\n!null")]))
    assert len(caught.value.problems) == 1


def test_names_that_cannot_be_stored_are_refused(tmp_path: Path) -> None:
    for name in (b"latin\xe9", b"new\nline", b"back\\slash"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(b"")
    assert refusals(tmp_path) == [
        "back\\slash: backslash in the name",
        "latin\\udce9: name is not valid UTF-8",
        "new\\nline: control character in the name",
    ]


def test_an_ignored_offender_is_no_offence(tmp_path: Path) -> None:
    write(tmp_path, {".corralignore": "cache\n", "a": ""})
    (tmp_path / "cache").symlink_to("/nowhere")
    assert paths(tmp_path, Ignore()) == [".corralignore", "a"]


def test_limits_are_errors_that_say_what_to_do(tmp_path: Path) -> None:
    write(tmp_path, {f"d/f{n}": "12345" for n in range(4)})
    with pytest.raises(TreeTooLarge, match="more than 3 files") as caught:
        scan(tmp_path, ignore=None, limits=TreeLimits(max_files=3))
    assert ".corralignore" in caught.value.hint
    with pytest.raises(TreeTooLarge, match="more than 19 bytes"):
        scan(tmp_path, ignore=None, limits=TreeLimits(max_total_bytes=19))
    with pytest.raises(TreeRefused, match="d/f0: path of 4 bytes, at most 3"):
        scan(tmp_path, ignore=None, limits=TreeLimits(max_path_bytes=3))
    assert scan(tmp_path, ignore=None, limits=TreeLimits(4, 20, 4)).total_bytes == 20


def test_folders_that_link_to_each_other_cannot_explode(tmp_path: Path) -> None:
    for n in range(20):
        (tmp_path / f"d{n}").mkdir()
        for side in "ab":
            (tmp_path / f"d{n}" / side).symlink_to(f"../d{n + 1}")
    (tmp_path / "d20").mkdir()
    with pytest.raises(TreeTooLarge, match="more than 500 folders"):
        scan(tmp_path, ignore=None, limits=TreeLimits(max_files=500))


def test_usual_clutter_is_left_out_of_code_only(tmp_path: Path) -> None:
    write(tmp_path, {".git/HEAD": "", "a/__pycache__/m.pyc": "", ".venv/x": "", "m.pyc": "", "a/m.py": ""})
    assert paths(tmp_path, Ignore()) == ["a/m.py"]
    assert len(paths(tmp_path)) == 5


def test_ignore_files_work_at_every_level(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            ".gitignore": "*.log\n/top\nbuild/\n",
            "a.log": "",
            "top": "",
            "sub/top": "",
            "sub/.gitignore": "!keep.log\n/only-here\n",
            "sub/keep.log": "",
            "sub/drop.log": "",
            "sub/only-here": "",
            "sub/deep/only-here": "",
            "sub/build/x": "",
            "sub/deep/build": "a file, not a folder",
        },
    )
    assert paths(tmp_path, Ignore()) == [
        ".gitignore",
        "sub/.gitignore",
        "sub/deep/build",
        "sub/deep/only-here",
        "sub/keep.log",
        "sub/top",
    ]


def test_corralignore_overrules_gitignore(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            ".gitignore": "*.bin\n/data/*\n!/data/keep/\n",
            ".corralignore": "!model.bin\nnotes.md\n!*/\n",
            "model.bin": "",
            "other.bin": "",
            "notes.md": "",
            "data/raw": "",
            "data/keep/x": "",
            ".git/HEAD": "",
        },
    )
    assert paths(tmp_path, Ignore()) == [
        ".corralignore",
        ".gitignore",
        "data/keep/x",
        "model.bin",
    ]


def test_a_negated_folder_does_not_bring_back_what_is_ignored_in_it(tmp_path: Path) -> None:
    write(tmp_path, {".gitignore": "*.txt\n!a\ndata/**\n!data/keep\n", "a/x.txt/y": "", "a/z": ""})
    write(tmp_path, {"data/keep": "", "data/drop": ""})
    assert paths(tmp_path, Ignore()) == [".gitignore", "a/z", "data/keep"]


def test_nothing_below_an_ignored_folder_comes_back(tmp_path: Path) -> None:
    write(tmp_path, {".gitignore": "out/\n!out/keep\n", "out/keep": "", "out/.gitignore": "!keep\n"})
    assert paths(tmp_path, Ignore()) == [".gitignore"]


def test_a_pattern_that_cannot_be_understood_names_its_file(tmp_path: Path) -> None:
    write(tmp_path, {"sub/.corralignore": "!\n"})
    with pytest.raises(BadIgnoreFile, match=r"sub/\.corralignore"):
        scan(tmp_path, ignore=Ignore())


def test_a_secret_in_a_file_is_refused_by_name_and_never_shown(tmp_path: Path) -> None:
    write(tmp_path, {"ok": "x", "conf/env": f"TOKEN={TOKEN}\n", "big": "y" * 2**20 + TOKEN})
    with pytest.raises(SecretInTree) as caught:
        scan(tmp_path, ignore=None, secrets=SecretValues({"HF_TOKEN": TOKEN}))
    assert [str(problem) for problem in caught.value.problems] == [
        "big: contains secret HF_TOKEN",
        "conf/env: contains secret HF_TOKEN",
    ]
    assert TOKEN not in f"{caught.value}{caught.value.hint}"


def test_a_secret_in_a_name_or_a_link_is_never_shown(tmp_path: Path) -> None:
    secrets = SecretValues({"T": TOKEN})
    (tmp_path / "link").symlink_to(f"/{TOKEN}")
    with pytest.raises(TreeRefused, match="dangling link to /\\[secret T\\]"):
        scan(tmp_path, ignore=None, secrets=secrets)
    write(tmp_path, {f"{TOKEN}/file": ""})
    with pytest.raises(SecretInTree, match="\\[secret T\\]/file: is named after secret T") as caught:
        scan(tmp_path, ignore=None, secrets=secrets)
    assert TOKEN not in str(caught.value)


def test_a_file_that_grew_or_shrank_after_the_listing_is_an_error(tmp_path: Path) -> None:
    for text in ("longer than it was", "s"):
        write(tmp_path, {"log": "content"})
        found = only_file(tmp_path)
        write(tmp_path, {"log": text})
        with pytest.raises(FileChanged, match=f"expected 7 bytes, found {len(text)}"):
            digest_file(found, None)


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    for change in ("longer than it was", "CONTENT"):
        write(tmp_path, {"log": "content"})
        os.utime(tmp_path / "log", (1, 1))
        chunks = read_file(only_file(tmp_path))
        next(chunks)
        write(tmp_path, {"log": change})
        with pytest.raises(FileChanged):
            list(chunks)


def test_a_file_swapped_for_something_else_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, {"root/f": "content", "outside": "content"})
    found = only_file(tmp_path / "root")
    path = tmp_path / "root/f"
    path.rename(tmp_path / "kept")
    for put in (
        lambda: path.symlink_to("../outside"),
        lambda: os.mkfifo(path),
        lambda: path.write_text("content"),
        lambda: None,
    ):
        put()
        with pytest.raises(FileChanged):
            digest_file(found, None)
        path.unlink(missing_ok=True)


@dataclass(frozen=True)
class SwapsTheFirstFolder(Ignore):
    """Ignores nothing; when the second folder is looked at, puts another in the place of the first."""

    root: Path = Path()
    swap: Callable[[Path], None] = Path.unlink
    seen: list[str] = field(default_factory=list)

    def excludes_folder(self, path: str) -> bool:
        self.seen.append(path)
        if len(self.seen) == 2:
            first = self.root / self.seen[0]
            first.rename(self.root.parent / "moved away")
            self.swap(first)
        return False


@pytest.mark.parametrize("how", ["link", "folder"])
def test_a_folder_swapped_during_the_walk_is_refused_and_not_followed(tmp_path: Path, how: str) -> None:
    write(tmp_path, {"outside/f": "not ours", "root/d1/f": "x", "root/d2/f": "x"})

    def swap(first: Path) -> None:
        if how == "link":
            first.symlink_to("../outside")
        else:
            (tmp_path / "outside").rename(first)

    root = tmp_path / "root"
    with pytest.raises(TreeRefused, match=r"1 path.* d[12]: cannot be listed"):
        scan(root, ignore=SwapsTheFirstFolder(root=root, swap=swap))


def test_ten_thousand_files_are_listed_whole(tmp_path: Path) -> None:
    for folder in range(100):
        (tmp_path / f"{folder:02}").mkdir()
        for n in range(100):
            (tmp_path / f"{folder:02}/{n:02}").write_bytes(b"%d" % n)

    tree = scan(tmp_path, ignore=Ignore())

    assert len(tree.files) == 10_000
    assert len({entry.digest for entry in tree.files}) == 100


def test_a_part_of_a_tree_is_a_folders_files_or_one_file() -> None:
    paths = ("a", "out/b.txt", "out/deep/c", "output/d")
    tree = Tree.of(FileEntry(path, 1, 0o644, path) for path in paths)

    assert [(file.path, file.digest) for file in tree.part("out").files] == [
        ("b.txt", "out/b.txt"),
        ("deep/c", "out/deep/c"),
    ]
    assert [file.path for file in tree.part("out/deep/c").files] == ["c"]
    assert [file.path for file in tree.part("a").files] == ["a"]
    for lacking in ("ou", "out/deep/", "b.txt", "a/x"):
        with pytest.raises(KeyError):
            tree.part(lacking)


@pytest.mark.parametrize(
    "home",
    [
        {"corral.db": "", "installation.json": "", "key": "k"},
        {"worker.lock": "", "worker/host.json": "{}"},
    ],
)
def test_where_corral_keeps_its_own_things_is_no_code(tmp_path: Path, home: dict[str, str]) -> None:
    """HOUR6-07: the host's folder of the tutorial, below the project, went along as code, key and all."""
    write(
        tmp_path,
        {"train.py": "", "worker/train.py": "", **{f"deep/home/{name}": text for name, text in home.items()}},
    )

    tree = scan(tmp_path, ignore=Ignore())

    assert [entry.path for entry in tree.files] == ["train.py", "worker/train.py"]
    assert tree.homes == ("deep/home",)
    # An input is taken as it is.
    assert len(paths(tmp_path)) == 2 + len(home)

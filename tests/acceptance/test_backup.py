"""Damage, loss and backups of an installation, as an operator meets them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.installation import Installation
from support.postgres import private_postgres
from support.waiting import eventually


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Installation]:
    """A server alone: what is looked at here is what it stores."""
    made = Installation(tmp_path / "home", {}, tmp_path)
    made.home.mkdir()
    yield made
    made.down()


def serve(made: Installation) -> None:
    made._start("server")
    eventually((made.home / "server.json").exists, lambda: made._log("server"))


def submit(made: Installation, count: int = 1) -> list[str]:
    return [made.ok("run", "--detach", "--", "true").strip() for _ in range(count)]


def accepted(made: Installation) -> int:
    return int(json.loads((made.home / "installation.json").read_text())["accepted"])


def stopped_with(made: Installation, count: int) -> list[str]:
    """Runs were accepted, the note says so, and the server is down."""
    serve(made)
    runs = submit(made, count)
    eventually(lambda: accepted(made) == count, "the note to be written")
    made.down()
    return runs


def why_not(made: Installation) -> str:
    """The words with which a server refuses to start."""
    made._start("server")
    eventually(lambda: made._started[-1].poll() is not None, "the server to end")
    assert not (made.home / "server.json").exists()
    return made._log("server")


def test_a_deleted_database_is_said_to_be_gone_and_no_empty_one_begins_in_its_place(
    home: Installation,
) -> None:
    """STO-11: a note beside the database says that there was one, and how many runs it had."""
    stopped_with(home, 2)
    for path in home.home.glob("corral.db*"):
        path.unlink()

    words = why_not(home)

    assert "the database of this home is gone" in words
    assert "2 runs were accepted" in words
    assert "corral restore" in words
    assert not (home.home / "corral.db").exists()
    (home.home / "installation.json").unlink()
    serve(home)


def test_an_older_copy_of_the_database_is_refused_with_how_many_runs_it_lacks(home: Installation) -> None:
    """STO-11: as if its write-ahead log had been deleted with two accepted runs in it."""
    stopped_with(home, 1)
    older = (home.home / "corral.db").read_bytes()
    serve(home)
    submit(home, 2)
    eventually(lambda: accepted(home) == 3, "the note to be written")
    home.down()
    for path in home.home.glob("corral.db*"):
        path.unlink()
    (home.home / "corral.db").write_bytes(older)

    words = why_not(home)

    assert "has lost 2 accepted runs" in words
    assert "hint: " in words


def test_a_second_server_with_another_home_on_the_same_postgres_is_refused(
    home: Installation, tmp_path: Path
) -> None:
    """STO-04: their files would be split between the two; the reason names the home that has them."""
    with private_postgres().fresh() as url:
        home.settings = {"CORRAL_DATABASE": url}
        serve(home)
        other = Installation(tmp_path / "other", home.settings, tmp_path)
        other.home.mkdir()
        try:
            words = why_not(other)
        finally:
            other.down()

        assert f"this database belongs to the server of {home.home}" in words
        assert not (other.home / "operator.token").exists()
        home.down()
        serve(home)
        home.down()


def test_damage_is_called_damage_with_what_to_do(home: Installation) -> None:
    """STO-03: fsck runs the database's own check, commands and the health name damage, not a busy server."""
    stopped_with(home, 3)
    damage_index(home.home / "corral.db", "events_run")
    serve(home)

    checked = home("fsck")

    assert checked.returncode == 1, checked.stdout + checked.stderr
    assert "database: it is damaged: table events" in checked.stdout
    assert "corral restore" in checked.stderr
    status = home("status")
    assert status.returncode == 1
    assert "not ok" in status.stdout
    assert "damaged" in status.stdout


def damage_index(database: Path, index: str) -> None:
    """Overwrite the root page of an index, as a bad disk would."""
    with closing(sqlite3.connect(database)) as raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (page,) = raw.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (index,)).fetchone()
        (size,) = raw.execute("PRAGMA page_size").fetchone()
    with database.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xa5" * size)


def test_a_backup_of_a_running_server_is_restored_as_it_was(home: Installation, tmp_path: Path) -> None:
    """STO-12: consistent while it runs; a second one copies only what is new; nothing is overwritten."""
    serve(home)
    (tmp_path / "in.txt").write_text("an input\n")
    home.ok("volumes", "put", "data", "in.txt")
    first = submit(home)
    to = tmp_path / "backup"

    said = home.ok("backup", str(to))
    assert "1 run and 1 file (9 B) are in" in said
    second = submit(home)
    assert "2 runs and 1 file (9 B)" in home.ok("backup", str(to))
    assert "; nothing was new\n" in home.ok("backup", str(to))

    refused = home("restore", str(to))
    assert "is running" in refused.stderr
    home.down()
    assert "has an installation already" in home("restore", str(to)).stderr
    home.home.rename(tmp_path / "lost")
    home.ok("restore", str(to))
    assert [path.name for path in (to / "home").glob("corral.db*")] == ["corral.db"]
    assert [path.name for path in home.home.glob("corral.db*")] == ["corral.db"]
    serve(home)
    assert {run["id"] for run in home.json("ls")} == {*first, *second}
    assert home("fsck").returncode == 0
    home.ok("volumes", "get", "data", "in.txt", "back.txt")
    assert (tmp_path / "back.txt").read_text() == "an input\n"


def test_a_backup_that_lacks_a_file_changes_nothing(home: Installation, tmp_path: Path) -> None:
    """STO-12: every file of a backup is compared with its digest before anything is replaced."""
    serve(home)
    (tmp_path / "in.txt").write_text("an input\n")
    home.ok("volumes", "put", "data", "in.txt")
    to = tmp_path / "backup"
    home.ok("backup", str(to))
    home.down()
    (blob,) = [path for path in (to / "home" / "blobs").rglob("*") if path.is_file()]
    blob.write_text("something else!!\n")
    before = sorted(path.name for path in home.home.iterdir())

    refused = home("restore", "--replace", str(to))

    assert refused.returncode == 1
    assert "does not match its digest" in refused.stderr
    assert sorted(path.name for path in home.home.iterdir()) == before
    shutil.rmtree(to)
    assert "is no backup" in home("restore", str(to)).stderr


def stopped_with_a_backup(made: Installation, to: Path) -> None:
    serve(made)
    (to.parent / "in.txt").write_text("an input\n")
    made.ok("volumes", "put", "data", "in.txt")
    made.ok("backup", str(to))
    made.down()


def test_a_backup_follows_no_link_and_trusts_no_folder_of_others(home: Installation, tmp_path: Path) -> None:
    """ATK-05: a link that another user left in the folder had the keys written to a file of theirs."""
    to, stolen = tmp_path / "backup", tmp_path / "stolen"
    stopped_with(home, 1)
    (to / "home").mkdir(parents=True)
    stolen.write_text("nothing")
    (to / "home" / "key.part").symlink_to(stolen)

    refused = home("backup", str(to))
    assert refused.returncode == 1
    assert "key.part is a link" in refused.stderr
    (to / "home" / "key.part").unlink()
    (to / "home").chmod(0o777)
    refused = home("backup", str(to))
    assert f"{to / 'home'} can be written to by other users" in refused.stderr
    assert "hint: Name a folder that is yours alone" in refused.stderr
    assert (stolen.read_text(), list((to / "home").iterdir())) == ("nothing", [])

    (to / "home").chmod(0o700)
    if os.geteuid() == 0:
        os.chown(to, 65534, 65534)
        assert "belongs to another user" in home("backup", str(to)).stderr
        os.chown(to, 0, 0)
    home.ok("backup", str(to))
    assert {path.stat().st_mode & 0o777 for path in (to / "home").rglob("*") if path.is_file()} == {0o600}


def test_a_restore_takes_what_a_backup_has_and_nothing_else(home: Installation, tmp_path: Path) -> None:
    """ATK-06: a foreign server.json was put in place, and keys stayed as open as they were in the backup."""
    to = tmp_path / "backup"
    stopped_with_a_backup(home, to)
    for path in to.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (to / "home" / "server.json").write_text('{"url": "https://elsewhere"}')
    home.home.rename(tmp_path / "lost")

    done = home("restore", str(to))

    assert done.returncode == 0
    assert "not restored: server.json is no part of a backup" in done.stderr
    assert not (home.home / "server.json").exists()
    restored = [path for path in home.home.rglob("*") if path.is_file() and path.name != "server.lock"]
    assert {path.stat().st_mode & 0o777 for path in restored} == {0o600}
    assert (home.home / "operator.token").read_text() == (tmp_path / "lost" / "operator.token").read_text()


@pytest.mark.parametrize("name", ["home/key", "home/blobs", "home/tls/server.pem"])
def test_a_backup_with_a_link_in_it_is_refused(home: Installation, tmp_path: Path, name: str) -> None:
    """ATK-06: what the link leads to was restored as a part of the installation."""
    to = tmp_path / "backup"
    stopped_with_a_backup(home, to)
    (to / name).parent.mkdir(exist_ok=True)
    if (to / name).exists():
        (to / name).rename(tmp_path / "elsewhere")
    (to / name).symlink_to(tmp_path / "elsewhere")
    home.home.rename(tmp_path / "lost")

    refused = home("restore", str(to))

    assert refused.returncode == 1
    assert f"{to / name} is a link, and a backup has none" in refused.stderr
    assert not (home.home / "key").exists()


def test_damaged_files_of_a_backup_are_left_out_if_that_is_asked_for(
    home: Installation, tmp_path: Path
) -> None:
    """ATK-06, ATK-04: one changed blob kept the whole backup from being restored."""
    to = tmp_path / "backup"
    serve(home)
    for name in ("one", "two"):
        (tmp_path / name).write_text(f"input {name}\n")
        home.ok("volumes", "put", name, name)
    home.ok("backup", str(to))
    home.down()
    damaged = hashlib.sha256(b"input one\n").hexdigest()
    (to / "home" / "blobs" / damaged[:2] / damaged).write_text("something")
    home.home.rename(tmp_path / "lost")

    refused = home("restore", str(to))
    assert refused.returncode == 1
    assert f"{damaged} is missing or too short" in refused.stderr
    assert "--damaged skip" in refused.stderr
    done = home("restore", "--damaged", "skip", str(to))
    assert done.returncode == 0
    assert f"not restored: blobs/{damaged[:2]}/{damaged} is missing or too short" in done.stderr

    serve(home)
    home.ok("volumes", "get", "two", "two", "back")
    assert (tmp_path / "back").read_text() == "input two\n"
    checked = home("fsck")
    assert checked.returncode != 0
    assert damaged in checked.stdout + checked.stderr

"""A program and its instances are one program: its classes are the same on both sides, and it runs once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.local_cluster import CLEAN, LocalCluster, local_cluster

ROOT = str(Path(__file__).parents[2])

PROGRAM = """
import dataclasses, enum, os, typing
import pydantic
import corral

with open("top-level", "a") as file:
    file.write(f"{os.environ.get('CORRAL_LEASE_ID', 'here')}\\n")
app = corral.App("demo")


class Colour(enum.Enum):
    RED = 1


class Access(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    x: int
    colour: Colour


class Pair(typing.NamedTuple):
    left: Point
    right: int


class Model(pydantic.BaseModel):
    name: str
    points: list[int]


class Box:
    def __init__(self, inner):
        self.inner = inner


class Trouble(Exception):
    def __init__(self, colour, *, place):
        super().__init__(colour)
        self.place = place


@app.cls()
class Checks:
    @corral.method()
    def same(self, colour, access, point, pair, model, box):
        assert colour is Colour.RED
        assert access == Access.READ | Access.WRITE
        assert type(point) is Point and point == Point(1, Colour.RED)
        assert type(pair) is Pair and type(pair.left) is Point
        assert type(model) is Model and model == Model(name="a", points=[1])
        assert type(box) is Box and type(box.inner) is Point
        return [Colour.RED, access, point, pair, model, Box(point), {Colour.RED: {point}}]

    @corral.method()
    def fails(self):
        raise Trouble(Colour.RED, place=Point(3, Colour.RED))

    @corral.method(retries=corral.Retries(2, on=(Trouble,), delay="10ms"))
    def tries(self, path):
        with open(path, "a") as file:
            file.write("x")
        if os.path.getsize(path) < 3:
            raise Trouble(Colour.RED, place=None)
        return os.path.getsize(path)

    @corral.method()
    def stream(self):
        yield Point(1, Colour.RED)


def main():
    point = Point(1, Colour.RED)
    given = [
        Colour.RED, Access.READ | Access.WRITE, point, Pair(point, 2), Model(name="a", points=[1]), Box(point)
    ]
    checks = Checks()
    colour, access, back, pair, model, box, mixed = checks.same.remote(*given)
    assert colour is Colour.RED and access == Access.READ | Access.WRITE
    assert type(back) is Point and back == point
    assert type(pair) is Pair and pair == given[3] and type(pair.left) is Point
    assert type(model) is Model and model == given[4]
    assert type(box) is Box and box.inner == point
    assert mixed == {Colour.RED: {point}}
    try:
        checks.fails.remote()
        raise AssertionError("it raised nothing")
    except Trouble as error:
        assert error.args == (Colour.RED,) and error.place == Point(3, Colour.RED)
    assert checks.tries.remote(os.path.abspath("tries")) == 3
    assert list(checks.stream.stream()) == [point]
    assert list(checks.same.starmap([given]))[0][0] is Colour.RED
    print("all the same")


if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("programs") / "home", lease_s=10.0) as made:
        made.own_worker(slots=40)
        yield made


def run(stack: LocalCluster, folder: Path, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """A program of the user's, in an interpreter of its own."""
    return subprocess.run(
        [sys.executable, *words],
        env={**CLEAN, "CORRAL_HOME": str(stack.home), "PYTHONPATH": os.pathsep.join([ROOT, str(folder)])},
        cwd=folder,
        input=given,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


CALLERS = {
    "script": (["script.py"], {"script.py": PROGRAM}),
    "script with no name for an import": (["my-script.py"], {"my-script.py": PROGRAM}),
    "module of a package": (["-m", "pack.script"], {"pack/__init__.py": "", "pack/script.py": PROGRAM}),
    "package": (["-m", "pack"], {"pack/__init__.py": "", "pack/__main__.py": PROGRAM}),
    "session": (["-"], {}),
}


@pytest.mark.parametrize("caller", CALLERS)
def test_the_classes_of_a_program_are_the_same_on_both_sides(
    stack: LocalCluster, tmp_path: Path, caller: str
) -> None:
    """FNX-02: whichever way it is started; and its top level runs once here, and once in an instance."""
    words, files = CALLERS[caller]
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    done = run(stack, tmp_path, *words, given=PROGRAM if caller == "session" else "")

    assert done.returncode == 0, done.stderr
    assert done.stdout == "all the same\n"
    assert done.stderr == "", "nothing had to be unpickled"
    assert (tmp_path / "top-level").read_text() == "here\n"


PICKLES = """
import os
import corral

app = corral.App("pickles", allow_pickle="--allow" in os.sys.argv)


class Worm:
    def __reduce__(self):
        return os.system, ("touch crawled",)


@app.function()
def infected():
    return [Worm()]


if __name__ == "__main__":
    call = infected.spawn()
    try:
        print(call.result())
    except corral.PickledResult as error:
        print(error.hint)
        print(corral.Call.from_id(call.id, allow_pickle=True).exception())
"""


def test_a_host_runs_no_code_in_the_program_that_calls_it(stack: LocalCluster, tmp_path: Path) -> None:
    """SEC-14: what is no plain data is unpickled only for an app that allows it."""
    (tmp_path / "pickles.py").write_text(PICKLES)

    refused = run(stack, tmp_path, "pickles.py")
    assert refused.returncode == 0, refused.stderr
    assert "allow_pickle=True" in refused.stdout
    assert not (tmp_path / "crawled").exists()

    allowed = run(stack, tmp_path, "pickles.py", "--allow")
    assert allowed.stdout == "[0]\n", allowed.stderr
    assert (tmp_path / "crawled").exists()

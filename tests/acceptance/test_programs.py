"""A program and its instances are one program: its classes are the same on both sides, and it runs once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import forked
from support.local_cluster import CLEAN, LocalCluster, local_cluster
from support.waiting import eventually

from corral.wire.calls import CallView

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


def start(stack: LocalCluster, folder: Path, *words: str) -> subprocess.Popen[str]:
    env = {**CLEAN, "CORRAL_HOME": str(stack.home), "PYTHONPATH": os.pathsep.join([ROOT, str(folder)])}
    command = [sys.executable, *words]
    return subprocess.Popen(
        command, env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


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


BARE = """
import asyncio
import corral

app = corral.App("bare")


@app.function()
def double(x):
    return 2 * x


{calls}
"""


@pytest.mark.parametrize(
    ("calls", "line"),
    [
        ("print(double.remote(21))", 13),
        ("for n in range(3):\n    double.spawn(n)", 14),
        ("asyncio.run(double.aio.remote(21))", 13),
    ],
    ids=["plain", "loop", "async"],
)
def test_a_call_without_a_guard_is_refused_before_anything_is_sent(
    stack: LocalCluster, tmp_path: Path, calls: str, line: int
) -> None:
    """NEW-02, FNX-04: the error names the line and the guard."""
    (tmp_path / "bare.py").write_text(BARE.format(calls=calls))

    done = run(stack, tmp_path, "bare.py")

    assert f"bare.py, line {line}, makes a call" in done.stderr
    assert '`if __name__ == "__main__":`' in done.stderr
    assert done.returncode == 1
    assert not [one for one in stack.client().endpoints.all() if ".bare." in one.name]


def test_an_instance_that_imports_a_file_never_calls_back(stack: LocalCluster, tmp_path: Path) -> None:
    """NEW-02: a condition may hold here and there; then the instance says which line it is."""
    calls = "if len(app.name) == 4:\n    print(double.remote(21))"
    (tmp_path / "bare.py").write_text(BARE.format(calls=calls))

    done = run(stack, tmp_path, "bare.py")

    assert "CannotStart" in done.stderr
    assert "bare.py, line 14, makes a call" in done.stderr
    made = stack.client().calls.page(endpoint="live.bare.double").items
    assert [one.parent for one in made] == [None], "there was this call and no other"


def test_checking_a_file_makes_no_calls(stack: LocalCluster, tmp_path: Path) -> None:
    """NEW-02."""
    (tmp_path / "bare.py").write_text(BARE.format(calls="double.remote(21)").replace('"bare"', '"checked"'))
    env = {**CLEAN, "CORRAL_HOME": str(stack.home)}

    done = forked.run(["fn", "check", "bare.py"], env, cwd=tmp_path)

    assert done.returncode == 1
    assert "bare.py, line 13, makes a call" in done.stderr
    assert not [one for one in stack.client().endpoints.all() if ".checked." in one.name]


CLASSES = """
import asyncio
import sys
import corral

app = corral.App("classes")


@app.cls(idle="1s")
class Room:
    def __init__(self, size=3, name="no name", *, colours=(), **more):
        self.known = [size, name, list(colours), sorted(more.items())]

    @corral.method()
    def show(self):
        return self.known


@app.cls()
class Suite(Room):
    def __init__(self, rooms):
        super().__init__(rooms * 2)

    @corral.method()
    def show(self):
        return self.known


@app.cls()
class Odd:
    def __init__(self, *sizes):
        self.sizes = sizes

    @corral.method()
    def show(self):
        return self.sizes


@app.cls(idle="1s")
class Later:
    log: str = corral.parameter()

    @corral.enter()
    async def open(self):
        await asyncio.sleep(0)
        self.loop = asyncio.get_running_loop()
        self.lock = asyncio.Lock()

    @corral.method()
    async def one(self):
        async with self.lock:
            return self.loop is asyncio.get_running_loop()

    @corral.method(batch=corral.Batch(4, "1ms"))
    async def many(self, items):
        async with self.lock:
            return [self.loop is asyncio.get_running_loop() for _ in items]

    @corral.exit()
    async def close(self):
        await asyncio.sleep(0)
        with open(self.log, "w") as file:
            file.write("closed")


if __name__ == "__main__":
    print(Room(5, "mine").show.remote(), Room(5, name="mine").known)
    print(Room(colours=("red",), floor=2).show.remote(), Room().show.remote())
    print(Suite(4).show.remote())
    print(Odd().show.remote())
    try:
        print(Odd(1, 2).sizes)
        Odd(1, 2).show.remote()
    except TypeError as error:
        print(error)
    try:
        Later("log")
    except TypeError as error:
        print(error)
    later = Later(log=sys.argv[1])
    print(later.one.remote(), later.many.remote(1))
"""


def test_a_class_gets_what_it_is_given_and_its_async_hooks_are_awaited(
    stack: LocalCluster, tmp_path: Path
) -> None:
    """FNX-08, FNX-09: constructor arguments are passed on, or refused by name."""
    (tmp_path / "classes.py").write_text(CLASSES)
    log = tmp_path / "log"

    done = run(stack, tmp_path, "classes.py", str(log))

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[5, 'mine', [], []] [5, 'mine', [], []]",
        "[3, 'no name', ['red'], [('floor', 2)]] [3, 'no name', [], []]",
        "[8, 'no name', [], []]",
        "()",
        "(1, 2)",
        "Odd() was given sizes by place only, and instances on the fleet are made by name; "
        "write its __init__ with named parameters",
        "Later() was given 'log' without a name; it takes its parameters by name: Later(log=...)",
        "True True",
    ]
    eventually(lambda: log.exists() and log.read_text() == "closed", "its exit hook")


def test_a_deploy_is_the_whole_app(stack: LocalCluster, tmp_path: Path) -> None:
    """DEF-03, RF-D51: what is gone from the file is stopped, and said; others are left alone."""
    function = "@app.function()\ndef {0}(): ...\n"
    head = "import corral\napp = corral.App('{0}')\n"

    def deploy(app: str, *names: str, only: str = "") -> str:
        text = head.format(app) + "".join(function.format(name) for name in names)
        (tmp_path / "whole.py").write_text(text)
        env = {**CLEAN, "CORRAL_HOME": str(stack.home)}
        done = forked.run(["fn", "deploy", f"whole.py{only}"], env, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def serving() -> set[str]:
        found = stack.client().endpoints.all()
        return {one.name for one in found if one.name.startswith("whole.") and not one.stopped}

    deploy("whole.other", "kept")
    deploy("whole", "one", "two", "three")
    deploy("whole", "one", only="::one")
    assert serving() == {"whole.one", "whole.two", "whole.three", "whole.other.kept"}

    said = deploy("whole", "one", "four")

    assert "whole.two: stopped; whole.py has it no more\n" in said
    assert "whole.three: stopped; whole.py has it no more\n" in said
    assert serving() == {"whole.one", "whole.four", "whole.other.kept"}
    assert "stopped" not in deploy("whole", "one", "four", "two")
    assert serving() == {"whole.one", "whole.two", "whole.four", "whole.other.kept"}


INTERRUPTED = """
import time
import corral

app = corral.App("{name}")


@app.function(max_instances=1, concurrency=3)
def rest(n):
    time.sleep(600 if n else 0)


@app.function(max_instances=1)
def tell(n):
    yield n
    time.sleep(600)


if __name__ == "__main__":
    {does}
"""


def calls_of(stack: LocalCluster, app: str) -> list[CallView]:
    return [one for one in stack.client().calls.page().items if f".{app}." in one.endpoint]


@pytest.mark.parametrize(
    ("does", "count"),
    [
        ("rest.remote(1)", 1),
        ("list(rest.map([1, 2, 3]))", 3),
        ("for _ in rest.map([0, 2, 3]): time.sleep(600)", 3),
        ("list(tell.stream(1))", 1),
    ],
    ids=["remote", "map", "map-body", "stream"],
)
def test_an_interrupt_cancels_the_calls_that_were_waited_for(
    stack: LocalCluster, tmp_path: Path, does: str, count: int, request: pytest.FixtureRequest
) -> None:
    """HOUR-01, NEW-17: also those whose ids had not come yet; the traceback has no frames of the wait."""
    name = request.node.callspec.id
    (tmp_path / "waits.py").write_text(INTERRUPTED.format(name=name, does=does))
    program = start(stack, tmp_path, "waits.py")

    def calls() -> list[CallView]:
        return calls_of(stack, name)

    if name == "map-body":
        eventually(lambda: any(one.state == "succeeded" for one in calls()), "the first result")
    eventually(lambda: len(calls()) == count, "the calls")
    program.send_signal(signal.SIGINT)
    _, said = program.communicate(timeout=60)

    ended = {one.id for one in calls() if one.state == "cancelled"}
    assert len(ended) == count - (name == "map-body")
    assert "KeyboardInterrupt" in said
    assert said.count("File ") <= 3, said
    if name != "map-body":
        assert sum(one in said for one in ended) == count


def test_a_call_that_no_host_can_take_soon_says_why(stack: LocalCluster, tmp_path: Path) -> None:
    """HOUR-10: one line on stderr, with the reason itself."""
    text = INTERRUPTED.format(name="nowhere", does="rest.remote(1)").replace("(max_inst", "(gpu=64, max_inst")
    (tmp_path / "waits.py").write_text(text)
    program = start(stack, tmp_path, "waits.py")
    assert program.stderr is not None

    said = program.stderr.readline()

    program.send_signal(signal.SIGINT)
    program.communicate(timeout=60)
    (call,) = calls_of(stack, "nowhere")
    assert f"call {call.id}" in said
    assert "needs 64 GPUs" in said


def test_an_interrupt_leaves_what_was_spawned(stack: LocalCluster, tmp_path: Path) -> None:
    """HOUR-01."""
    does = "rest.spawn(1).result()"
    (tmp_path / "waits.py").write_text(INTERRUPTED.format(name="spawned", does=does))
    program = start(stack, tmp_path, "waits.py")
    client = stack.client()
    (call,) = eventually(lambda: calls_of(stack, "spawned"), "the call")

    program.send_signal(signal.SIGINT)
    program.communicate(timeout=60)

    assert client.calls.get(call.id).state in ("queued", "assigned")
    client.calls.cancel(call.id)


def test_a_named_map_that_was_interrupted_goes_on_later(stack: LocalCluster, tmp_path: Path) -> None:
    """HOUR-01: its cancelled calls have no result, and are made again."""
    does = "print(list(rest.map([0, 0, {last}], resume='mine')))"
    (tmp_path / "waits.py").write_text(
        INTERRUPTED.format(name="named", does=does.format(last="open('n').read()"))
    )
    (tmp_path / "n").write_text("x")
    program = start(stack, tmp_path, "waits.py")
    eventually(lambda: len(calls_of(stack, "named")) == 3, "the calls")
    program.send_signal(signal.SIGINT)
    program.communicate(timeout=60)
    text = (tmp_path / "waits.py").read_text()
    (tmp_path / "waits.py").write_text(text.replace("600 if n else 0", "0"))

    done = run(stack, tmp_path, "waits.py")

    assert done.stdout.strip() == "[None, None, None]", done.stderr

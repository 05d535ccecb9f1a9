"""What cannot work is told where it was written, before anything is sent where that can be."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import forked
from support.local_cluster import CLEAN
from support.waiting import eventually

import corral
from calls import functions_for_tests as pier
from calls.conftest import Scene
from corral.functions import backend
from corral.functions import serialize as codec
from corral.functions.packaging.package import pack
from corral.instance.load import CannotLoad, load

pytestmark = pytest.mark.timeout(300)


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("it holds a lock")
        self.lock = threading.Lock()


@pytest.fixture(scope="module", autouse=True)
def scene(one_host: Scene) -> Iterator[Scene]:
    one_host.use()
    yield one_host
    backend.set_backend(None)


def made(scene: Scene) -> int:
    return len(scene.stack.client().calls.page(limit=1000).items)


def test_arguments_that_cannot_be_pickled_are_named_and_nothing_is_sent(scene: Scene) -> None:
    before = made(scene)

    with pytest.raises(
        codec.CannotEncode, match=r"an argument of give_back\(\).*\['x'\]\[1\] is a _thread.lock"
    ):
        pier.give_back.remote({"x": [1, threading.Lock()]})
    with pytest.raises(codec.CannotEncode, match="generator"):
        pier.give_back.remote(n for n in range(3))

    assert made(scene) == before


def test_wrong_arguments_are_told_and_nothing_is_sent(scene: Scene) -> None:
    before = made(scene)
    work: Any = pier.work

    with pytest.raises(TypeError, match=r"work\(\): missing a required argument: 'name'"):
        work.remote("x")
    with pytest.raises(TypeError, match="nmae"):
        work.spawn("x", "y", nmae="z")
    with pytest.raises(TypeError, match="too many"):
        list(work.map([1], [2], [3], [4]))
    with pytest.raises(TypeError, match="brths"):
        pier.Harbour(brths=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="no option retry"):
        pier.give_back.with_options(retry=3)

    assert made(scene) == before


def test_results_and_exceptions_that_cannot_be_pickled_are_named() -> None:
    """RF-D22."""
    app = corral.App("unpicklable")

    @app.function()
    def gives() -> Any:
        print("so far so good")
        return {"lock": threading.Lock()}

    @app.function()
    def raises() -> None:
        raise Unpicklable

    call = gives.spawn()
    with pytest.raises(Exception, match=r"the result of gives\(\).*\['lock'\] is a _thread.lock"):
        call.result(60)
    assert eventually(lambda: list(call.logs()), "its output") == ["so far so good"]
    with pytest.raises(Exception, match="it holds a lock") as caught:
        raises.spawn().result(60)
    assert isinstance(caught.value, Unpicklable | corral.RemoteError)
    assert "raise Unpicklable" in str(caught.value.__cause__)


def test_what_a_function_captures_and_cannot_travel_is_named() -> None:
    lock = threading.Lock()
    app = corral.App("captures")

    with pytest.raises(codec.CannotEncode, match="lock"):
        app.function()(lambda: lock).remote()


def test_a_function_that_cannot_be_imported_by_name_travels_by_value_or_says_why(tmp_path: Path) -> None:
    """RF-D01: from a file whose name is no module, from `__main__`, and from stdin."""
    code = (
        "import corral\napp = corral.App('odd')\nFACTOR = 3\n"
        "@app.function()\ndef f(x): return x * FACTOR\n"
        "if __name__ == '__main__': print(f.remote(2))\n"
    )
    odd = tmp_path / "not-a-module.py"
    odd.write_text(code)
    named = tmp_path / "named.py"
    named.write_text(code.replace("'odd'", "'even'"))
    for argv, given in (([str(odd)], None), ([str(named)], None), (["-"], code)):
        done = _run([sys.executable, *argv], given)
        assert done.stdout.strip() == "6", done.stderr


def _run(argv: list[str], given: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {**CLEAN, "CORRAL_HOME": str(_HOME[0])}
    return subprocess.run(argv, input=given, env=env, capture_output=True, text=True, check=False)


def _corral(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run(arguments, {**CLEAN, "CORRAL_HOME": str(_HOME[0])})


_HOME: list[Path] = []


@pytest.fixture(scope="module", autouse=True)
def _home(scene: Scene) -> None:
    _HOME[:] = [scene.stack.home]


def test_the_shell_says_what_is_wrong_with_a_file(tmp_path: Path) -> None:
    """RF-C01, RF-D03: an option that does not exist is named, with the one that does."""
    (tmp_path / "no_app.py").write_text("x = 1\n")
    (tmp_path / "typo.py").write_text(
        "import corral\napp = corral.App('typo')\n@app.function(timout=3)\ndef f(): ...\n"
    )
    (tmp_path / "fine.py").write_text(
        "import corral\napp = corral.App('fine')\n@app.function()\ndef f(x): return x\n"
    )
    for target, words in (
        ("nowhere.py", "is not a file"),
        ("no_app.py", "has no app"),
        ("typo.py", "timout"),
        ("fine.py::g", "has no g; it has: f"),
        ("fine.py::f", "missing a required argument: 'x'"),
        ("fine.nothing", "no endpoint"),
    ):
        file, colons, name = target.partition("::")
        path = str(tmp_path / file) if file.endswith(".py") else file
        done = _corral("fn", "run", f"{path}{colons}{name}")
        assert done.returncode == 1, target
        assert words in done.stderr, done.stderr
        assert "Traceback" not in done.stderr.replace("Traceback (most recent call last)", "")


def test_the_shell_shows_what_a_call_printed_before_it_failed_or_gave_something(tmp_path: Path) -> None:
    """RF-D31: also where it ended sooner than its host sends what was printed."""
    (tmp_path / "says.py").write_text(
        "import corral\napp = corral.App('says')\n@app.function()\n"
        "def f(x):\n    print('it was', x)\n    return 10 // x\n"
    )
    for x, printed in ((5, "2"), (0, ""), (2, "5")):
        done = _corral("fn", "run", f"{tmp_path / 'says.py'}::f", "--arg", str(x))
        assert f"it was {x}" in done.stderr, done.stderr
        assert done.stdout.strip() == printed
        assert ("ZeroDivisionError" in done.stderr) == (x == 0)


def test_recursion_has_a_bottom() -> None:
    """RF-D37: a function that calls itself for ever is refused at a depth, and says so."""
    app = corral.App("recursive")

    @app.function(max_instances=40, queue_delay="50ms", idle="2s", concurrency=40)
    def deeper(n: int) -> int:
        return int(corral.function("recursive.deeper").remote(n + 1))

    scene_backend = backend.backend()
    member = deeper.member
    request = scene_backend.request(member, "default", live=False)  # type: ignore[attr-defined]
    scene_backend.corral.endpoints.deploy(request)  # type: ignore[attr-defined]

    with pytest.raises(corral.FunctionError, match="32 deep"):
        corral.function("recursive.deeper").spawn(0).result(150)


def test_a_to_b_to_a_ends() -> None:
    """RF-D37: with one instance each. Who waits for the call that waits for him gets one more."""
    app = corral.App("pingpong")

    @app.function(queue_delay="200ms")
    def ping(n: int) -> str:
        return "ping " + (corral.function("pingpong.pong").remote(n - 1) if n else "end")

    @app.function(queue_delay="200ms")
    def pong(n: int) -> str:
        return "pong " + (corral.function("pingpong.ping").remote(n - 1) if n else "end")

    made = backend.backend()
    for member in (ping.member, pong.member):
        made.corral.endpoints.deploy(made.request(member, "default", live=False))  # type: ignore[attr-defined]

    assert corral.function("pingpong.ping").spawn(4).result(100) == "ping pong ping pong ping end"


def test_a_version_of_python_that_does_not_fit_is_told_before_the_call() -> None:
    """RF-D70: what is pickled is for one Python; another refuses to load it, and says what to do."""
    app = corral.App("pickled")
    package = pack(app.function(name="lam")(lambda: 1).member)
    assert package.entry["python"] == f"{sys.version_info.major}.{sys.version_info.minor}"

    with pytest.raises(CannotLoad, match=r'pickled by Python 3\.8 .*python_version="3\.8"'):
        load({**package.entry, "python": "3.8"}, None)


def test_nothing_is_called_before_a_server_is_there(tmp_path: Path) -> None:
    """RF-D54: a wrong credential or no server at all ends the command, with an exit code."""
    (tmp_path / "fine.py").write_text(
        "import corral\napp = corral.App('fine')\n@app.function()\ndef f(x): return x\n"
    )
    argv = ["fn", "deploy", str(tmp_path / "fine.py")]
    home = str(tmp_path / "elsewhere")
    nobody = forked.run(argv, {**CLEAN, "CORRAL_HOME": home})
    assert nobody.returncode != 0
    assert "corral up" in nobody.stderr
    wrong = {**CLEAN, "CORRAL_HOME": str(_HOME[0]), "CORRAL_TOKEN": "wrong"}
    refused = forked.run(argv, wrong)
    assert refused.returncode != 0
    assert "token" in refused.stderr

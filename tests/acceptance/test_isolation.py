"""What a run sees of its host: its own folders, and nothing that is the worker's or others'."""

from __future__ import annotations

import json
import os
import resource
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import httpx
import pytest
from support.installation import Installation, installed
from support.waiting import eventually

from corral.domain.errors import InvalidInput
from corral.wire.spec.run_file import BuiltEnvironment
from corral.worker.child import view
from corral.worker.child.command import Command
from corral.worker.child.process import Child
from corral.worker.child.shim import prctl
from corral.worker.host.isolation import Isolation, try_it
from corral.worker.prepare.preparation import Preparation, PreparationFailed

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's"),
    pytest.mark.skipif(try_it() is not None, reason="this machine allows no namespaces"),
]

PR_SET_DUMPABLE = 4
# Prints what it could read, by the name of the way.
SPY = """
import json, os, pathlib, subprocess, sys
home = pathlib.Path(sys.argv[1])
def pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]
def roots():
    yield "", pathlib.Path("/")
    for pid in pids():
        if pid != os.getpid():
            yield f"/proc/{pid}/root", pathlib.Path(f"/proc/{pid}/root")
own = pathlib.Path(os.environ["CORRAL_SPEC"]).parent
seen = []
def look(way):
    for label, root in roots():
        base = root / home.relative_to("/")
        for pattern in ("operator.token", "key", "corral.db", "worker/token", "worker/host.json",
                        "worker/cache/blobs/*", "worker/leases/*/job.json", "worker/leases/*/run/work/*"):
            try:
                for path in base.glob(pattern):
                    if label or own not in path.parents or path.name == "job.json":
                        if path.read_bytes():
                            seen.append(f"{way} {label} {pattern}")
            except OSError:
                pass
look("plainly")
for command in (["umount", "-l", str(home)], ["unshare", "-Urm", "umount", "-l", str(home)]):
    subprocess.run(command, capture_output=True)
look("uncovered")
print(json.dumps(sorted(set(seen))))
"""


@pytest.fixture(scope="module")
def isolated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("work")
    settings = {"CORRAL_ISOLATION": "require", "CORRAL_WORKER_SLOTS": "2"}
    with installed(tmp_path_factory.mktemp("home"), folder=folder, **settings) as made:
        yield made


def run_beside_another(corral: Installation, tmp_path: Path) -> str:
    """Another project's run, with an input, that is there for as long as its file."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "private.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(600)\n")
    run = corral.ok(
        "run", "--detach", "--project", "other", "--code", str(code), "--", "python", "private.py"
    )
    return run.strip()


def test_a_run_reads_no_token_no_key_no_other_runs_folder_and_nothing_of_the_cache(
    isolated: Installation, tmp_path: Path
) -> None:
    """MT-D01, MT-D02, MT-D04: not plainly, not through other processes, not by taking the cover away."""
    other = run_beside_another(isolated, tmp_path)
    eventually(lambda: "here" in isolated.ok("logs", other), "the other run to be there")
    worker = isolated.home / "worker"
    assert list((worker / "cache" / "blobs").iterdir()), "there is something to be seen"

    done = isolated.ok("run", "--", sys.executable, "-c", SPY, str(isolated.home))

    isolated("cancel", other)
    assert json.loads(done) == []
    (host,) = isolated.json("hosts", "ls")
    assert host["capability"]["isolated"] is True
    assert "each run sees only its own files" in isolated.ok("hosts", "show", host["name"])


def test_an_isolated_run_moves_its_files_about_as_any_program_does(isolated: Installation) -> None:
    """From its own folder to its output, and the output folder itself is made anew."""
    code = (
        "import os, pathlib, shutil\n"
        "out = pathlib.Path(os.environ['CORRAL_OUTPUT_DIR'])\n"
        "shutil.rmtree(out); out.mkdir()\n"
        "pathlib.Path('here').write_text('1'); os.replace('here', out / 'moved')\n"
        "os.link(out / 'moved', 'linked')\n"
    )
    done = isolated.python(code)

    assert done.returncode == 0, done.stderr
    assert isolated.show()["artifact_id"] is not None


def test_a_run_that_is_isolated_has_all_that_it_was_promised(isolated: Installation, tmp_path: Path) -> None:
    """Code, inputs that cannot be changed, output, checkpoints, events, /tmp and its own folder for files."""
    assert isolated.folder is not None
    (isolated.folder / "data").mkdir(exist_ok=True)
    (isolated.folder / "data" / "rows").write_text("1 2 3")
    shared = tmp_path / "shared"
    isolated.write(
        "main.py",
        "import json, os, pathlib, sys\n"
        "e = os.environ\n"
        "rows = pathlib.Path(e['CORRAL_INPUT_DIR'], 'data', 'rows')\n"
        "try: rows.write_text('changed'); print('changed')\n"
        "except OSError: print('read only')\n"
        "print(rows.read_text(), json.load(open(e['CORRAL_SPEC']))['name'])\n"
        "pathlib.Path(e['CORRAL_OUTPUT_DIR'], 'result').write_text('made')\n"
        "step = pathlib.Path(e['CORRAL_CHECKPOINT_DIR'], 'step'); step.mkdir()\n"
        "(step / 'w').write_text('1')\n"
        "open(e['CORRAL_EVENTS'], 'a').write(json.dumps({'checkpoint': 'step', 'step': 1}) + '\\n')\n"
        "pathlib.Path('beside').write_text('x')\n"
        f"pathlib.Path({str(shared)!r}).write_text('outside')\n",
    )
    isolated.write(
        "run.toml", 'name = "whole"\nargv = ["python", "main.py"]\ncode = "."\n[inputs]\ndata = "data"\n'
    )

    done = isolated("submit", "run.toml", "--follow")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "read only\n1 2 3 whole\n" in done.stdout
    run = isolated.show()
    assert run["artifact_id"] is not None
    events = isolated.ok("events", run["id"])
    assert "checkpoint" in events
    assert "not kept" not in events
    assert shared.read_text() == "outside"


def test_where_it_is_turned_off_the_host_says_so(tmp_path: Path) -> None:
    """security.md, last paragraph: `corral hosts show` says "runs share this host's user"."""
    with installed(tmp_path / "home", CORRAL_ISOLATION="off") as made:
        seen = json.loads(made.ok("run", "--", sys.executable, "-c", SPY, str(made.home)))
        assert {"plainly  operator.token", "plainly  key", "plainly  worker/token"} <= {*seen}
        (host,) = made.json("hosts", "ls")
        shown = made.ok("hosts", "show", host["name"])
        assert "runs share this host's user: CORRAL_ISOLATION is off" in shown


@pytest.fixture
def folder_of_all() -> Iterator[Path]:
    """One that other users reach; those of pytest lie below one that they do not."""
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_without_powers_can_isolate_its_runs_too(folder_of_all: Path) -> None:
    """As a service does, whose user is not root."""
    hidden, mine = folder_of_all / "hidden", folder_of_all / "hidden" / "mine"
    mine.mkdir(parents=True)
    (hidden / "secret").write_text("x")
    (mine / "file").write_text("y")
    os.chown(hidden, 65534, 65534)

    def tried() -> bool:
        view.enter(([str(hidden)], [(str(mine), True)], False))
        return [*hidden.iterdir()] == [mine] and (mine / "file").read_text() == "y"

    assert as_nobody(tried)


def test_what_lies_in_the_hidden_home_of_the_workers_user_is_shared_as_before(tmp_path: Path) -> None:
    """A service's home is its user's too: caches are there, and programs write to it."""
    home = tmp_path / "corral"
    home.mkdir()
    env = {"HOME": str(home), "HF_HOME": str(home / "models"), "TORCH_HOME": str(tmp_path / "elsewhere")}
    made = Isolation.of("auto", [home, home / "worker"], env)

    shown = made.view(mine=[home / "worker" / "leases" / "l" / "work"], given=[home / "env"])

    assert shown is not None
    hidden, paths, writable = shown
    assert (hidden, writable) == ([str(home)], True)
    assert {path: write for path, write in paths if Path(path).is_relative_to(home)} == {
        str(home / ".cache"): True,
        str(home / ".nv"): True,
        str(home / ".triton"): True,
        str(home / "env"): False,
        str(home / "models"): True,
        str(home / "worker" / "leases" / "l" / "work"): True,
    }
    assert (home / "models").is_dir()


def test_what_a_run_sets_for_itself_opens_nothing_of_the_hosts(isolated: Installation) -> None:
    """ATK-02: the caches that are shown are those of the worker's own environment."""
    home = isolated.home
    names = ("HF_HOME", "TORCH_HOME", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "XDG_CACHE_HOME", "TMPDIR")
    folders = ("worker", "blobs", "segments", "logs", "up", "partial")
    env = "".join(f"{name} = {str(home / folder)!r}\n" for name, folder in zip(names, folders, strict=True))
    look = (
        "import os, sys\n"
        "seen = [n for n in sys.argv[2:] if os.path.exists(os.path.join(sys.argv[1], n, '.'))]\n"
        "print('sees', seen, os.path.exists(sys.argv[1] + '/worker/token'))\n"
    )
    isolated.write("look.py", look)
    argv = [sys.executable, "look.py", str(home), *folders]
    isolated.write("run.toml", f'name = "open"\nargv = {json.dumps(argv)}\ncode = "."\n[env]\n{env}')

    done = isolated("submit", "run.toml", "--follow")

    # Its own folder is in the worker's, of which it sees nothing else.
    assert "sees ['worker'] False" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("place", ["", "worker", "worker/leases", "blobs/deep", "..", "link"])
def test_no_cache_that_runs_share_opens_a_folder_of_corrals(tmp_path: Path, place: str) -> None:
    """ATK-02: not one that is Corral's home, holds it or lies in what Corral keeps there, links followed."""
    home = tmp_path / "user" / "corral"
    (home / "worker").mkdir(parents=True)
    (home / "link").symlink_to(home / "worker")
    env = {"HOME": str(tmp_path / "other"), "HF_HOME": str(home / place)}

    made = Isolation.of("auto", [home], env)

    of_the_test = {path for path in made.shared if path.is_relative_to(tmp_path)}
    assert of_the_test == {tmp_path / "other" / name for name in (".cache", ".nv", ".triton")}


def test_a_link_that_a_run_leaves_in_a_cache_is_not_followed_by_the_worker(tmp_path: Path) -> None:
    """ATK-02: the next start of the worker shows the cache, and not what the link leads to."""
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    (home / ".cache").mkdir(parents=True)
    elsewhere.mkdir()
    (home / ".cache" / "huggingface").symlink_to(elsewhere)

    made = Isolation.of(
        "auto", [home / ".corral"], {"HOME": str(home), "HF_HOME": str(home / ".cache" / "huggingface")}
    )

    assert elsewhere not in made.shared
    assert home / ".cache" in made.shared


def test_a_link_in_a_folder_that_the_operator_opened_is_not_followed_either(tmp_path: Path) -> None:
    """ATK-25: a cache that lies in it, however deep, is shown with it."""
    home, scratch, elsewhere = tmp_path / "home", tmp_path / "scratch", tmp_path / "elsewhere"
    for folder in (home, scratch / "models", elsewhere):
        folder.mkdir(parents=True)
    (scratch / "models" / "hf").symlink_to(elsewhere)
    env = {"HOME": str(home), "HF_HOME": str(scratch / "models" / "hf")}

    made = Isolation.of("auto", [home / ".corral"], env, allowed=[scratch])

    assert elsewhere not in made.shared
    assert scratch in made.shared


def test_nothing_that_corral_trusts_lies_where_runs_may_write(tmp_path: Path) -> None:
    """ATK-21: a run could rename the folder around it, and put a link in its place for the next run."""
    home = tmp_path / "home"
    (home / ".cache" / "corral").mkdir(parents=True)
    (home / ".corral").mkdir()
    (home / ".corral" / "operator.token").write_text("the operator's")
    (home / ".cache" / "corral" / "git").symlink_to(home / ".corral" / "operator.token")
    made = Isolation.of("auto", [home / ".corral"], {"HOME": str(home)})

    shown = made.view(mine=[], given=[])

    assert shown is not None
    assert [path for path, _ in shown[1] if Path(path).is_relative_to(home / ".corral")] == []
    writable = [Path(path) for path, write in shown[1] if write and Path(path).is_relative_to(home)]
    read_only = [Path(path) for path, write in shown[1] if not write]
    assert [path for path in read_only if any(path.is_relative_to(one) for one in writable)] == []


# Prints what it could change, by the name of the way.
VANDAL = """
import ctypes, json, os, pathlib, subprocess, sys
changed = []
def change(way):
    changed.extend(f"{way} {place}" for place in sys.argv[1:] if os.access(place, os.W_OK))
change("plainly")
folders = sorted({str(p if p.is_dir() else p.parent) for p in map(pathlib.Path, sys.argv[1:])})
for folder in [*folders, "/"]:
    subprocess.run(["mount", "-o", "remount,bind,rw", folder], capture_output=True)
change("remounted")
if os.environ.get("DEEPER") is None:
    env = {**os.environ, "DEEPER": "1"}
    again = [sys.executable, __file__, *sys.argv[1:]]
    done = subprocess.run(["unshare", "-Urm", *again], env=env, capture_output=True, text=True)
    changed += ["deeper " + one for one in json.loads(done.stdout or "[]")]
with open("/proc/self/status") as status:
    gains = [line.split()[1] for line in status if line.startswith("NoNewPrivs")]
if gains != ["1"]:
    changed.append("gains rights")
for folder in ("/tmp", "/dev/shm", "."):
    (pathlib.Path(folder) / f"own-{os.getpid()}").write_text("x")
    (pathlib.Path(folder) / f"own-{os.getpid()}").unlink()
open("/dev/null", "w").write("x")
print(json.dumps(changed))
"""


def test_a_run_changes_nothing_outside_but_what_all_may_write_to(isolated: Installation) -> None:
    """ATK-03: not Corral's own code, not the home of its user, not by mounting anew; it gains no rights."""
    isolated.write("vandal.py", VANDAL)
    code = Path(view.__file__)
    own = [code, code.parent, Path(sys.prefix), Path(sys.base_prefix), Path.home()]
    places = [
        *map(str, own),
        "/etc",
        "/etc/passwd",
        "/usr",
        "/var",
        "/dev",
        "/",
        "/proc/sys/kernel/core_pattern",
    ]

    done = isolated.ok("run", "--code", ".", "--", sys.executable, "vandal.py", *places)

    assert json.loads(done) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_user_without_powers_is_kept_from_writing_too(
    folder_of_all: Path, one_by_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ATK-03: to what its user owns; also on a system that lacks the newer calls."""
    if one_by_one:
        monkeypatch.setattr(view, "_has_tree_calls", lambda _: False)
    outside, mine, hidden = (folder_of_all / name for name in ("outside", "mine", "hidden"))
    for path in (outside, mine, hidden):
        path.mkdir()
        os.chown(path, 65534, 65534)
    (outside / "given").mkdir()
    (mine / "given").mkdir()
    (hidden / "secret").write_text("x")
    for path in (outside / "given", mine / "given"):
        os.chown(path, 65534, 65534)

    def writes(path: Path) -> bool:
        try:
            (path / "planted").write_text("x")
        except OSError:
            return False
        return True

    def tried() -> bool:
        shown = [(str(mine), True), (str(mine / "given"), False), (str(hidden / "deep"), True)]
        view.enter(([str(hidden)], shown, False))
        kept = (outside, outside / "given", mine / "given", hidden, folder_of_all)
        return writes(mine) and not any(map(writes, kept)) and not [*hidden.iterdir()]

    assert as_nobody(tried)
    assert (mine / "planted").exists()


@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_mount_in_what_can_only_be_read_can_only_be_read(
    tmp_path: Path, one_by_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ATK-03: the mounts below a folder are as it is."""
    if one_by_one:
        monkeypatch.setattr(view, "_has_tree_calls", lambda _: False)

    def tried() -> bool:
        view.enter(([], [("/dev/shm", False)], False))
        return not os.access("/dev/shm", os.W_OK) and not os.access("/sys/fs/cgroup", os.W_OK)

    assert in_a_process(tried)


def in_a_process(act: Callable[[], bool]) -> bool:
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if act() else 3)
        finally:
            os._exit(4)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def as_nobody(act: Callable[[], bool]) -> bool:
    def become() -> bool:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        # As after an exec: who has changed its user may else not write to its own /proc.
        prctl(PR_SET_DUMPABLE, 1)
        return act()

    return in_a_process(become)


def test_an_operator_may_let_runs_write_to_more_and_the_host_says_so(tmp_path: Path) -> None:
    """ATK-03: CORRAL_WRITABLE, with what lies in a home that runs cannot write to."""
    home, data = tmp_path / "user", tmp_path / "user" / "data"
    data.mkdir(parents=True)
    with installed(
        tmp_path / "home", HOME=str(home), CORRAL_WRITABLE=str(data), CORRAL_ISOLATION="require"
    ) as made:
        assert made.python(f"open({str(data / 'rows')!r}, 'w').write('x')").returncode == 0
        refused = made.python(f"open({str(home / '.bashrc')!r}, 'w').write('x')")
        (host,) = made.json("hosts", "ls")
        shown = made.ok("hosts", "show", host["name"])

    assert "Read-only file system" in refused.stdout + refused.stderr
    assert (data / "rows").read_text() == "x"
    assert not (home / ".bashrc").exists()
    assert f"all may write to {data}" in shown


@pytest.mark.parametrize("named", ["user", "user/corral", "user/corral/worker"])
def test_a_folder_that_would_let_runs_out_is_not_theirs_to_write_to(tmp_path: Path, named: str) -> None:
    """ATK-03: one that holds the home of the worker's user, is Corral's or lies in what Corral keeps."""
    home = tmp_path / "user"
    (home / "corral" / "worker").mkdir(parents=True)

    with pytest.raises(InvalidInput, match=r"CORRAL_WRITABLE names .*: runs could leave"):
        Isolation.of("auto", [home / "corral"], {"HOME": str(home)}, allowed=[tmp_path / named])


def write_hostile_wheel(folder: Path, secret: Path, loot: Path) -> None:
    """It acts whenever Python starts with it."""
    act = (
        f"import os; os.path.exists({str(secret)!r})"
        f" and open({str(loot)!r}, 'a').write(open('/proc/self/cmdline').read())"
    )
    files = {
        "hostile.pth": f"{act}\n",
        "hostile/__init__.py": "",
        "hostile-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: hostile\nVersion: 1.0\n",
        "hostile-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in (*files, "hostile-1.0.dist-info/RECORD"))
    with zipfile.ZipFile(folder / "hostile-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in (*files.items(), ("hostile-1.0.dist-info/RECORD", record)):
            wheel.writestr(name, text)


def test_packages_are_installed_without_a_way_to_the_hosts_files(
    isolated: Installation, tmp_path: Path
) -> None:
    """ATK-01: while an environment is built, and when it is used, a package's own code sees no token."""
    wheels, loot = tmp_path / "wheels", tmp_path / "loot"
    wheels.mkdir()
    write_hostile_wheel(wheels, isolated.home / "operator.token", loot)
    isolated.write(
        "run.toml",
        'name = "hostile"\nargv = ["true"]\n'
        f'[environment]\nrequirements = ["hostile"]\nwheels = "{wheels}"\n',
    )

    done = isolated("submit", "run.toml", "--follow")

    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = (isolated.home / "worker" / "environments" / "envs").iterdir()
    assert [*made.glob("lib/python*/site-packages/hostile/__pycache__/*.pyc")], "it is compiled for all"
    assert not loot.exists()


def test_the_python_that_was_built_is_asked_as_the_run_would_be(tmp_path: Path) -> None:
    """ATK-01: whether it can train is found out where its packages see no token."""
    home, work = tmp_path / "home", tmp_path / "home" / "work"
    work.mkdir(parents=True)
    (home / "operator.token").write_text("x")
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\ntest -e {home}/operator.token && echo sees-the-token\ntrue\n")
    python.chmod(0o755)
    context = SimpleNamespace(
        isolation=Isolation.of("require", [home], {"HOME": str(tmp_path)}),
        base_env={"PATH": "/usr/bin:/bin"},
        home=home / "worker",
    )
    workspace = SimpleNamespace(work=work, own=work, given=())

    Preparation(context, None, workspace, None)._check_engine(python)  # type: ignore[arg-type]


def test_a_host_does_not_believe_a_lock_that_makes_it_read_a_file(tmp_path: Path) -> None:
    """ATK-01: also where a server of another version let it through, and no word of the file is told."""
    secret = tmp_path / "token"
    secret.write_text("corral_secret")
    built = BuiltEnvironment(python="3.11", lock=f"-r {secret}\n", digest="0" * 64)
    context = SimpleNamespace(isolation=Isolation.of("off", [tmp_path], {}), base_env={}, home=tmp_path)
    session = SimpleNamespace(lease=SimpleNamespace(spec=SimpleNamespace(environment=built)), control=None)

    with pytest.raises(PreparationFailed) as caught:
        Preparation(context, session, None, None)._python()  # type: ignore[arg-type]

    assert "the lock has the line" in caught.value.detail
    assert "corral_secret" not in caught.value.detail


def test_a_server_takes_no_lock_that_makes_a_host_read_or_run_anything(isolated: Installation) -> None:
    """ATK-01: it is refused when it is submitted."""
    token = (isolated.home / "operator.token").read_text().strip()
    url = json.loads((isolated.home / "server.json").read_text())["url"]
    environment = {"python": "3.11", "lock": "evil @ file:///tmp/evil\n", "digest": "0" * 64}
    run = {"name": "evil", "project": "default", "argv": ["true"], "environment": environment}

    answer = httpx.post(
        f"{url}/v1/runs",
        json={"request_id": "a" * 24, "runs": [run]},
        headers={"Authorization": f"Bearer {token}"},
    )

    assert answer.status_code in {400, 422}, answer.text
    assert "not an exact version with its hash" in answer.text


@pytest.fixture
def few_handles() -> Iterator[int]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    yield 1024
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_run_that_cannot_be_isolated_any_more_is_not_executed(tmp_path: Path, few_handles: int) -> None:
    """STO-01: it is the host's fault, and the program is never started without its cover."""
    marker = tmp_path / "ran"
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    command = Command(
        (sys.executable, "-S", "-c", f"open({str(marker)!r}, 'w')"),
        tmp_path,
        {"PATH": "/usr/bin:/bin"},
        view=([str(hidden)], [(str(hidden), True)] * few_handles, False),
    )
    with Child(command) as child:
        ended = child.wait(60)

    assert ended is not None
    assert ended.hosts_fault
    assert "cannot be kept from the host's files: Too many open files" in (ended.error or "")
    assert not marker.exists()

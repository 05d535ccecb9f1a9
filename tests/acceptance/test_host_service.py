"""The worker as a service: its files, a real systemd that runs it, and the script for Windows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.installation import CORRAL
from support.local_cluster import CLEAN, local_cluster
from support.remote_machine import RemoteMachine

from acceptance.test_hosts import join_token
from corral.cli.hosts.service.systemd import ServiceFailed, SystemdUnit, windows_script
from corral.cli.server.processes import Role
from corral.domain.errors import InvalidInput
from corral.wire.spec.run_file import RunFile

SYSTEMD = Path("/lib/systemd/systemd")
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")


def a_unit(root: Path, *, system: bool, role: Role = "worker") -> SystemdUnit:
    home = Path("/var/lib/corral")
    python = Path("/usr/bin/python3")
    config_home = Path("/home/ada/.config")
    return SystemdUnit(home, python, system=system, root=root, config_home=config_home, role=role)


def settings_of(unit: SystemdUnit) -> dict[str, list[str]]:
    """A unit may name a key more than once, which an INI file may not."""
    pairs = re.findall(r"^([A-Z][A-Za-z]+)=(.*)$", unit.text(), re.MULTILINE)
    return {key: [value for name, value in pairs if name == key] for key, _ in pairs}


@needs_systemd
@pytest.mark.parametrize("role", ["worker", "server"])
@pytest.mark.parametrize("system", [True, False], ids=["system", "user"])
def test_systemd_finds_nothing_wrong_with_the_unit(system: bool, role: Role, tmp_path: Path) -> None:
    """FL-C10."""
    unit = a_unit(tmp_path, system=system, role=role)
    unit.install()
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit.path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_system_unit_runs_as_its_own_user_and_may_little(tmp_path: Path) -> None:
    has = settings_of(a_unit(tmp_path, system=True))
    assert has["User"] == ["corral"]
    assert has["NoNewPrivileges"] == ["yes"]
    assert has["ProtectSystem"] == ["strict"]
    assert has["ReadWritePaths"] == ['"/var/lib/corral"']
    assert has["CapabilityBoundingSet"] == [""]
    assert has["Restart"] == ["always"]
    assert has["KillMode"] == ["mixed"]
    assert has["OOMPolicy"] == ["continue"]
    # These would hide the GPUs from the runs.
    assert not {"PrivateDevices", "DeviceAllow", "ProtectClock"} & set(has)
    grace_s = RunFile.model_fields["grace"].default
    assert int(has["TimeoutStopSec"][0]) >= 2 * grace_s


def test_the_files_go_below_a_root_and_are_gone_after_an_uninstall(tmp_path: Path) -> None:
    for system in (True, False):
        unit = a_unit(tmp_path, system=system)
        wrote = unit.install()
        assert unit.installed
        assert all(path.is_file() for path in wrote)
        assert len(wrote) == (2 if system else 1)
        assert sorted(unit.uninstall()) == sorted(wrote)
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
        assert unit.uninstall() == []


@pytest.mark.skipif(
    shutil.which("systemd-sysusers") is None or os.geteuid() != 0, reason="needs root and systemd"
)
def test_its_user_is_made_by_systemd(tmp_path: Path) -> None:
    unit = a_unit(tmp_path, system=True)
    unit.install()
    subprocess.run(["systemd-sysusers", f"--root={tmp_path}"], check=True, capture_output=True, timeout=60)
    made = (tmp_path / "etc" / "passwd").read_text()
    assert re.search(
        r"^corral:x:\d+:\d+:Corral worker:/var/lib/corral:/usr/sbin/nologin$", made, re.MULTILINE
    )


def test_a_path_that_a_unit_cannot_hold_is_refused(tmp_path: Path) -> None:
    for bad in ('/var/lib/a b"c', "/var/%h", "relative", "/a\nExecStart=/bin/sh"):
        unit = SystemdUnit(Path(bad), Path("/usr/bin/python3"), system=False, root=tmp_path)
        with pytest.raises(InvalidInput, match="cannot be written into a unit"):
            unit.install()
    spaced = SystemdUnit(Path("/var/lib/my corral"), Path("/usr/bin/python3"), system=False, root=tmp_path)
    assert '"CORRAL_HOME=/var/lib/my corral"' in spaced.text()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_python_that_its_user_cannot_start_is_refused(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "python").touch()
    unit = SystemdUnit(tmp_path / "home", closed / "python", system=True, root=tmp_path / "root")
    with pytest.raises(ServiceFailed, match="which other users cannot enter") as caught:
        unit.install()
    assert "/opt/corral" in caught.value.hint


def test_a_server_and_its_worker_are_services_that_are_started_again(tmp_path: Path) -> None:
    """NEW-19: what `up --detach` does not do, a service does; both are of one home."""
    machine = RemoteMachine(tmp_path / "home")
    root = tmp_path / "root"
    machine.ok("service", "install", "--user", "--home", "/srv/corral", "--root", str(root))

    for role in ("server", "worker"):
        (unit,) = root.rglob(f"systemd/user/corral-{role}.service")
        text = unit.read_text()
        assert f"-m corral.{role}" in text
        assert "Restart=always" in text
        assert 'Environment="CORRAL_HOME=/srv/corral"' in text
    assert "removed" in machine.ok("service", "uninstall", "--user", "--root", str(root))
    assert [path for path in root.rglob("*") if path.is_file()] == []


def test_only_an_enrolled_host_is_installed(tmp_path: Path) -> None:
    machine = RemoteMachine(tmp_path / "home")
    done = machine.corral("host", "service", "install", "--user", "--root", str(tmp_path / "root"))
    assert (done.returncode, "is not enrolled" in done.stderr) == (1, True)
    assert not (tmp_path / "root").exists()
    assert "ExecStart=" in machine.ok("host", "service", "show", "--user")


# In a mount namespace of its own, in which systemd believes that it has booted the machine.
IN_NAMESPACE = """
set -eu
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system "$XDG_RUNTIME_DIR"
chmod 700 "$XDG_RUNTIME_DIR"
/lib/systemd/systemd --user --unit=basic.target &
manager=$!
trap 'kill $manager; wait $manager' EXIT
until [ -S "$XDG_RUNTIME_DIR/systemd/private" ]; do kill -0 $manager; sleep 0.1; done
pid() { systemctl --user show -P MainPID corral-worker.service; }
# Waits for another process than the one given, and names it; asked once a turn, since 0 is between two.
another() {
    now=$1
    until [ "$now" != 0 ] && [ "$now" != "$1" ]; do sleep 0.1; now=$(pid); done
    echo "$now"
}
seen() { until corral host status --json | grep -q '"alive": true'; do sleep 0.2; done; }

corral host service install --user
first=$(another 0)
seen
echo "active $(systemctl --user is-active corral-worker.service)"
kill -9 "$first"
second=$(another "$first")
echo "restarted"
corral host service uninstall --user
for _ in $(seq 200); do kill -0 "$second" 2>/dev/null || break; sleep 0.1; done
if kill -0 "$second" 2>/dev/null; then echo "still there"; else echo "gone"; fi
echo "left $(systemctl --user list-unit-files corral-worker.service --no-legend | wc -l)"
"""


def can_run_systemd() -> bool:
    if os.geteuid() != 0 or not SYSTEMD.exists() or shutil.which("unshare") is None:
        return False
    tried = subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/run"],
        capture_output=True,
        check=False,
        timeout=20,
    )
    return tried.returncode == 0


@pytest.mark.skipif(not can_run_systemd(), reason="a systemd of our own cannot be started here")
def test_a_real_systemd_starts_restarts_and_stops_the_worker(tmp_path: Path) -> None:
    """FL-C10, FL-D09: a user's own manager; the unit that is installed is the one that runs."""
    with local_cluster(tmp_path / "server", lease_s=2.0, CORRAL_TLS="on") as server:
        home = tmp_path / "user"
        machine = RemoteMachine(tmp_path / "host")
        machine.ok("host", "enroll", server.url, "--token", join_token(server.client(), "box"), "--no-start")
        env = {
            **CLEAN,
            "HOME": str(home),
            "CORRAL_HOME": str(machine.home),
            "XDG_RUNTIME_DIR": "/run/user-of-test",
            "PATH": f"{Path(CORRAL).parent}:{CLEAN['PATH']}",
        }
        env.pop("XDG_CONFIG_HOME", None)
        home.mkdir()
        done = subprocess.run(
            ["unshare", "-m", "bash", "-c", IN_NAMESPACE],
            env=env,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )

        assert done.returncode == 0, done.stdout + done.stderr
        said = done.stdout.splitlines()
        wanted = ["active active", "restarted", "gone", "left 0"]
        assert [line for line in said if line in wanted] == wanted, done.stdout + done.stderr
        assert server.client().hosts.get("box").last_seen_at is not None


@pytest.fixture(scope="module")
def script() -> str:
    return windows_script()


def test_the_windows_script_is_powershell(script: str) -> None:
    """FL-C10: read by the grammar of tree-sitter; no Windows was at hand."""
    language = pytest.importorskip("tree_sitter_powershell")
    tree_sitter = pytest.importorskip("tree_sitter")
    parser = tree_sitter.Parser(tree_sitter.Language(language.language()))
    root = parser.parse(script.encode()).root_node
    assert not root.has_error
    # The parser does find faults: without this the line above would prove nothing.
    assert parser.parse(script.replace("function", "function {", 1).encode()).root_node.has_error
    commands = set()
    pending = [root]
    while pending:
        node = pending.pop()
        if node.type == "command_name":
            commands.add(node.text.decode())
        pending.extend(node.children)
    ours = {"Stop-IfMissing", "Get-WslArguments"}
    assert commands - ours == {
        "Set-StrictMode",
        "Get-Command",
        "Get-ScheduledTask",
        "Stop-ScheduledTask",
        "Unregister-ScheduledTask",
        "Write-Output",
        "wsl.exe",
        "New-ScheduledTaskAction",
        "New-ScheduledTaskTrigger",
        "New-ScheduledTaskSettingsSet",
        "New-TimeSpan",
        "New-ScheduledTaskPrincipal",
        "Register-ScheduledTask",
        "Out-Null",
        "Start-ScheduledTask",
    }


def test_the_windows_script_tests_before_it_registers_and_can_uninstall(script: str) -> None:
    steps = ("& wsl.exe @selfTest", "the host is not ready", "\nRegister-ScheduledTask")
    assert sorted(script.index(step) for step in steps) == [script.index(step) for step in steps]
    assert "Unregister-ScheduledTask -TaskName $TaskName -Confirm:$false" in script
    assert "$ErrorActionPreference = 'Stop'" in script
    assert script.isascii()


def test_show_prints_the_script(tmp_path: Path, script: str) -> None:
    assert RemoteMachine(tmp_path / "home").ok("host", "service", "show", "--windows") == script

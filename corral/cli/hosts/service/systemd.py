"""A worker or a server as a service of systemd: its files, and what installs and removes them."""

from __future__ import annotations

import importlib.resources
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

from corral.cli.server.processes import Role
from corral.domain.errors import CorralError, InvalidInput

if sys.platform != "win32":
    import pwd

USER = "corral"
SYSTEM_HOME = Path("/var/lib/corral")
# Of a worker: the runs' grace is 30 s unless they say otherwise; then their outcomes are reported.
_STOP_S: Mapping[Role, int] = {"worker": 120, "server": 30}
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_HOMES = ("/home", "/root", "/run/user")


def is_root() -> bool:
    return sys.platform != "win32" and os.geteuid() == 0


class ServiceFailed(CorralError):
    code = "service_failed"


@dataclass(frozen=True)
class SystemdUnit:
    """`system`: started with the machine, as a user of its own; else with its user, as that user.

    Files go below `root`; only where that is the real one is systemd told of them.
    """

    home: Path
    python: Path = field(default_factory=lambda: Path(sys.executable))
    system: bool = field(default_factory=is_root)
    root: Path = Path("/")
    config_home: Path = field(default_factory=lambda: Path("~/.config").expanduser())
    role: Role = "worker"

    @property
    def name(self) -> str:
        return f"corral-{self.role}.service"

    @property
    def path(self) -> Path:
        folder = Path("/etc/systemd/system") if self.system else self.config_home / "systemd" / "user"
        return self._below(folder / self.name)

    @property
    def sysusers(self) -> Path:
        return self._below(Path(f"/etc/sysusers.d/corral-{self.role}.conf"))

    def files(self) -> dict[Path, str]:
        self._check()
        made = {self.path: self.text()}
        if self.system:
            made[self.sysusers] = _rendered("sysusers.conf", user=USER, home=str(self.home))
        return made

    def text(self) -> str:
        protect = "read-only" if _is_below(self.home, self.python) else "yes"
        more = ""
        if self.system:
            more = _rendered("hardening.conf", user=USER, home=str(self.home), protect_home=protect)
        return _rendered(
            f"{self.role}.service",
            home=str(self.home),
            python=str(self.python),
            path=f"{self.python.parent}:{_PATH}",
            stop_s=str(_STOP_S[self.role]),
            more=more,
            target="multi-user.target" if self.system else "default.target",
        )

    def install(self) -> list[Path]:
        made = self.files()
        if self.system:
            self._check_reachable()
        for path, text in made.items():
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            except OSError as error:
                raise ServiceFailed(
                    f"{path} cannot be written: {error.strerror}", hint="Install a system service as root."
                ) from error
        if self._is_real:
            if self.system:
                _run("systemd-sysusers", str(self.sysusers))
                self._hand_over()
            self._systemctl("daemon-reload")
            self._systemctl("enable", "--now", self.name)
        return list(made)

    def uninstall(self) -> list[Path]:
        """It is stopped first; a worker gives its runs back. Its user and home stay."""
        if self._is_real and self.path.exists():
            self._systemctl("disable", "--now", self.name)
        gone = [path for path in (self.path, self.sysusers) if path.exists()]
        for path in gone:
            path.unlink()
        if self._is_real and gone:
            self._systemctl("daemon-reload")
        return gone

    @property
    def installed(self) -> bool:
        return self.path.exists()

    @property
    def _is_real(self) -> bool:
        return self.root == Path("/")

    def _below(self, path: Path) -> Path:
        return self.root / path.relative_to("/")

    def _check(self) -> None:
        for path in (self.home, self.python):
            if not path.is_absolute() or any(c in str(path) for c in '"\\%$\n'):
                raise InvalidInput(
                    f"{str(path)!r} cannot be written into a unit", hint="Choose a path of ordinary letters."
                )

    def _check_reachable(self) -> None:
        """Its own user must be able to start this Python."""
        for folder in self.python.resolve().parents:
            if not folder.stat().st_mode & 0o001:
                raise ServiceFailed(
                    f"{self.python} lies below {folder}, which other users cannot enter",
                    hint="Install corral where all can read it, as with `python3 -m venv /opt/corral`.",
                )

    def _hand_over(self) -> None:
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if sys.platform != "win32":
            owner = pwd.getpwnam(USER)
            for folder, _, names in os.walk(self.home):
                for path in (folder, *(os.path.join(folder, name) for name in names)):
                    os.chown(path, owner.pw_uid, owner.pw_gid, follow_symlinks=False)

    def _systemctl(self, *arguments: str) -> None:
        _run("systemctl", *(() if self.system else ("--user",)), *arguments)


def windows_script() -> str:
    return _template("windows-task.ps1")


def _rendered(name: str, **values: str) -> str:
    return Template(_template(name)).substitute(values)


def _template(name: str) -> str:
    return importlib.resources.files("corral.cli.hosts.service").joinpath(name).read_text(encoding="utf-8")


def _is_below(home: Path, python: Path) -> bool:
    return any(str(path).startswith(f"{folder}/") for path in (home, python) for folder in _HOMES)


def _run(*argv: str) -> None:
    if shutil.which(argv[0]) is None:
        raise ServiceFailed(
            f"{argv[0]} was not found: this machine has no systemd",
            hint="Start it with `corral up --detach` or `corral host start`, or as other services are.",
        )
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=180)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise ServiceFailed(
            f"`{' '.join(argv)}` failed: {said}",
            hint="`journalctl -u corral-worker -u corral-server` may say more.",
        )

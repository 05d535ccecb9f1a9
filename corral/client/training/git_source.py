"""An environment by its git reference: pinned to a commit at submit, fetched here, and shipped like a folder.

`git+https://host/repository@reference#folder`. The host that runs it needs neither git nor the repository.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit, urlunsplit

from corral.client.submit.run_file import wrong_field
from corral.domain.errors import InvalidInput
from corral.domain.paths import printable

PREFIX = "git+"
_PLACE = "train.environment"
_SCHEMES = ("https", "ssh", "file")
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_REFERENCE = re.compile(r"[A-Za-z0-9_][\w./+-]*")
_PATIENCE_S = 300.0
_HINT = 'Write it as "git+https://HOST/REPOSITORY@REFERENCE#FOLDER"; `git ls-remote` shows the references.'


@dataclass(frozen=True)
class GitReference:
    """`reference` is a branch, a tag or a commit; `folder` is below the repository's top, "" for that."""

    url: str
    reference: str
    folder: str

    @classmethod
    def parse(cls, text: str) -> GitReference:
        parts = urlsplit(text.removeprefix(PREFIX))
        path, at, reference = parts.path.rpartition("@")
        if not at:
            path, reference = parts.path, "HEAD"
        folder = unquote(parts.fragment).removeprefix("subdirectory=").strip("/")
        if parts.scheme not in _SCHEMES:
            raise _wrong(f"{printable(text)} is neither of {', '.join(PREFIX + s for s in _SCHEMES)}")
        if parts.password is not None or (parts.username and parts.scheme == "https"):
            raise _wrong(
                "the address holds a name or a password, which the run would show; use git's own store"
            )
        if not _REFERENCE.fullmatch(reference) or ".." in reference or ".." in PurePosixPath(folder).parts:
            raise _wrong(f"{printable(text)} is not the address of a repository, a reference and a folder")
        return cls(urlunsplit((parts.scheme, parts.netloc, path, "", "")), reference, folder)

    def pinned(self, commit: str) -> str:
        """The same, by its commit."""
        return f"{PREFIX}{self.url}@{commit}" + (f"#{self.folder}" if self.folder else "")


@dataclass(frozen=True)
class GitCheckout:
    """A folder of a commit. `pinned` names it for good."""

    folder: Path
    pinned: str


def check_out(text: str, environ: Mapping[str, str]) -> GitCheckout:
    """InvalidInput where git cannot do it. What was fetched once is kept, by its commit."""
    wanted = GitReference.parse(text)
    git = _Git(wanted.url, environ)
    commit = git.commit_of(wanted.reference)
    repository = git.fetched(commit, _cache(environ) / hashlib.sha256(wanted.url.encode()).hexdigest()[:16])
    folder = repository / wanted.folder
    if not folder.resolve().is_relative_to(repository.resolve()) or not folder.exists():
        raise _wrong(f"{printable(wanted.url)} has no {printable(wanted.folder)} at {commit}")
    return GitCheckout(folder, wanted.pinned(commit))


@dataclass(frozen=True)
class _Git:
    url: str
    environ: Mapping[str, str]

    def commit_of(self, reference: str) -> str:
        if _COMMIT.fullmatch(reference):
            return reference
        lines = (line.partition("\t") for line in self._run(["ls-remote", "--", self.url]).splitlines())
        found = {name: commit for commit, _, name in lines}
        # A tag with a message of its own leads to its commit under a second name.
        names = ("refs/heads/{}", "refs/tags/{}^{{}}", "refs/tags/{}", "{}")
        for name in names:
            if (commit := found.get(name.format(reference))) is not None:
                return commit
        raise _wrong(f"{printable(self.url)} has no branch or tag {reference}")

    def fetched(self, commit: str, cache: Path) -> Path:
        kept = cache / commit
        if kept.is_dir():
            return kept
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".part-") as part:
            made = Path(part, "tree")
            self._run(["init", "--quiet", str(made)])
            try:
                self._run(["fetch", "--quiet", "--depth", "1", "--", self.url, commit], at=made)
            except InvalidInput:
                # Some servers give out what has a name alone; then all of it is fetched.
                self._run(
                    ["fetch", "--quiet", "--tags", "--", self.url, "+refs/heads/*:refs/heads/*"], at=made
                )
            self._run(["checkout", "--quiet", "--detach", commit], at=made)
            try:
                made.rename(kept)
            except OSError:
                # Another submit was quicker.
                if not kept.is_dir():
                    raise
        return kept

    def _run(self, words: Sequence[str], at: Path | None = None) -> str:
        environ = {
            **self.environ,
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ALLOW_PROTOCOL": ":".join(_SCHEMES),
            "LC_ALL": "C",
        }
        try:
            done = subprocess.run(
                ["git", *words],
                cwd=at,
                env=environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_PATIENCE_S,
                check=False,
            )
        except FileNotFoundError:
            raise _wrong("git is not installed here", hint="Install git, or name a folder.") from None
        except subprocess.TimeoutExpired:
            raise _wrong(f"{printable(self.url)} did not answer within {_PATIENCE_S:g} s") from None
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["git said nothing"])[-1]
            raise _wrong(f"{printable(self.url)} cannot be fetched: {printable(said)}")
        return done.stdout


def _cache(environ: Mapping[str, str]) -> Path:
    """In Corral's home: a cache that runs of this machine share could be changed by any of them."""
    return Path(environ.get("CORRAL_HOME") or "~/.corral").expanduser() / "git"


def _wrong(message: str, *, hint: str = _HINT) -> InvalidInput:
    return wrong_field(_PLACE, message, hint=hint)

"""Calls over HTTP, from a program to a server. What is called for the first time is deployed first."""

from __future__ import annotations

import atexit
import hashlib
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from corral.client.corral import Corral
from corral.client.environments.lock import Lock, resolve
from corral.client.environments.lock_cache import LockCache, LockRequest
from corral.client.files.tree import scan
from corral.client.files.upload import upload
from corral.client.volumes import volumes
from corral.client.volumes.folder import VolumeFolder
from corral.domain.calls import INLINE_BYTES
from corral.domain.endpoints import LIVE, prefixed
from corral.domain.errors import BlobMissing, DigestMismatch, InvalidInput, NotFound
from corral.functions.backend import CallStatus, EndpointTarget, OutgoingCall, Payload, VolumeFile
from corral.functions.connect import connect
from corral.functions.errors import EndpointGone, ResultLost
from corral.functions.importing import refuse_unguarded
from corral.functions.member import Member, endpoint_name
from corral.functions.packaging.package import Package, pack
from corral.functions.program import share_main
from corral.functions.serialize import Pieces, as_text, from_text, whole
from corral.functions.web.routes import route_problems
from corral.settings import process_environment, read_settings
from corral.wire.base import explain
from corral.wire.calls import CallView
from corral.wire.endpoints import DeployRequest, FunctionTable, Scaling
from corral.wire.payloads import PayloadBody
from corral.wire.spec.run_file import BuiltEnvironment, RunSpec, ServiceTable
from corral.wire.spec.tables import PlacementTable, Resources, RetryBudgets

T = TypeVar("T")


class HttpBackend:
    """Safe to use from several threads."""

    def __init__(self, corral: Corral, project: str, *, locks: LockCache | None = None) -> None:
        self.corral = corral
        # From here on, results may name classes of the script.
        share_main()
        self._has_answered = False
        self._project = project
        self._found: dict[Member, EndpointTarget] = {}
        self._lock = threading.Lock()
        self._local = LocalVolumes()
        self._locks: dict[str, Lock] = {}
        self._lock_of_locks = threading.Lock()
        self._kept = locks

    @classmethod
    def from_settings(cls) -> HttpBackend:
        settings = read_settings()
        corral = connect(settings)
        project = corral.tokens.own_project() if settings.project_is_open else None
        return cls(corral, project or settings.project, locks=LockCache(settings.home / "locks"))

    def find(self, member: Member) -> EndpointTarget:
        with self._lock:
            if member not in self._found:
                refuse_unguarded(member)
                # All of the app's: one may call another, and finds it there then.
                for one in dict.fromkeys([member, *member.app.members.values()]):
                    self._found[one] = self._patiently(partial(self._made_ready, one))
            return self._found[member]

    def look_up(self, project: str | None, name: str) -> tuple[EndpointTarget, dict[str, Any], str]:
        project = project or self._project
        head, _, method = name.rpartition(".")
        try:
            view, method = self.corral.endpoints.get(project, endpoint_name(name)), ""
        except NotFound as error:
            try:
                view = self.corral.endpoints.get(project, endpoint_name(head))
            except NotFound:
                raise EndpointGone(f"{error.message}; `corral fn ls` lists what is deployed") from None
        tables = {key: table.model_dump() for key, table in view.functions.items()}
        return EndpointTarget(project, view.name, module=view.module), tables, method

    def _made_ready(self, member: Member) -> EndpointTarget:
        project = member.app.project or self._project
        view = self.corral.endpoints.deploy(self.request(member, project, live=True))
        return EndpointTarget(project, view.name, view.versions[0].version if view.versions else view.current)

    def request(self, member: Member, project: str, *, live: bool) -> DeployRequest:
        """What deploys the member; its code is uploaded. InvalidInput if it is a route that cannot work."""
        if problems := [] if live else route_problems(member):
            raise InvalidInput("; ".join(problems), hint="Correct it, and deploy it again.")
        try:
            return self._request(member, project, live=live)
        except ValidationError as error:
            what = f"what {member.name} of the app {member.app.name} asks for"
            hint = "Correct the options of its decorator, or those of the app."
            raise explain(RunSpec, error, what=what, hint=hint) from None

    def _request(self, member: Member, project: str, *, live: bool) -> DeployRequest:
        package = pack(member)
        code, digest = self._ship(package, project)
        settings = member.settings
        name = prefixed(LIVE, member.endpoint) if live else member.endpoint
        spec = RunSpec(
            name=name,
            project=project,
            kind="service",
            service=ServiceTable.model_validate(
                {
                    "entry": {**package.entry, "app": member.app.name},
                    "volumes": dict(settings.volumes),
                    "max_memory": settings.max_memory,
                }
            ),
            code=code,
            code_digest=digest,
            environment=self._environment(member, anew=not live),
            resources=Resources.model_validate(settings.resources.table()),
            placement=PlacementTable(executors=list(settings.executors)),
            secrets=list(settings.secrets),
            env=dict(settings.env),
            # Another instance is made where one is lost; the run itself is not tried again.
            retries=RetryBudgets(infrastructure=0, memory=0),
            grace=10,
        )
        return DeployRequest(
            project=project,
            name=name,
            spec=spec,
            functions={key: FunctionTable.model_validate(table) for key, table in member.functions().items()},
            scaling=Scaling.model_validate(settings.scale.table()),
            live=live,
        )

    def _ship(self, package: Package, project: str) -> tuple[str, str]:
        with tempfile.TemporaryDirectory(prefix="corral-code-") as folder:
            for path, content in package.files.items():
                target = Path(folder, path)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content if isinstance(content, bytes) else content.read_bytes())
            tree = scan(Path(folder), ignore=None)
            upload(tree, Path(folder), self.corral.sink(project))
            made = self.corral.artifacts.commit(project, kind="code", tree=tree)
        return made.id, made.digest

    def _resolved(self, question: LockRequest, *, anew: bool) -> Lock:
        """Once for all functions of a program that ask the same; where it may, from what is remembered."""
        with self._lock_of_locks:
            found = self._locks.get(question.digest)
            if found is None and self._kept is not None and not anew:
                found = self._kept.find(question)
            if found is None:
                found = resolve(
                    question.requirements,
                    python=question.python,
                    env=question.env,
                    find_links=[question.wheels] if question.wheels else [],
                    no_index=question.no_index,
                    folder=Path.cwd(),
                )
                if self._kept is not None:
                    self._kept.keep(question, found)
            self._locks[question.digest] = found
            return found

    def _environment(self, member: Member, *, anew: bool) -> BuiltEnvironment | None:
        wanted = member.settings.environment
        if wanted.is_host:
            return None
        python = wanted.version or f"{sys.version_info.major}.{sys.version_info.minor}"
        folder = wanted.find_links or wanted.wheels
        links = Path(folder).expanduser().absolute() if folder else None
        question = LockRequest(wanted.python, python, links, wanted.wheels is not None, process_environment())
        lock = self._resolved(question, anew=anew)
        return BuiltEnvironment(
            python=lock.python,
            lock=lock.text,
            digest=lock.digest,
            find_links=str(links) if links else None,
            no_index=wanted.wheels is not None,
        )

    def forget(self, target: EndpointTarget) -> None:
        """It is gone: nobody called it for long. The next call makes it ready again."""
        with self._lock:
            self._found = {member: one for member, one in self._found.items() if one != target}

    def make(self, target: EndpointTarget, asks: Sequence[OutgoingCall], wait_s: float) -> list[CallStatus]:
        request = {
            "project": target.project,
            "endpoint": target.endpoint,
            "version": target.version,
            "calls": [self._call(target.project, ask) for ask in asks],
            "wait_s": wait_s,
        }
        try:
            made = self._patiently(lambda: self.corral.calls.make(request))
            return [self._seen(view) for view in made]
        except NotFound as error:
            raise EndpointGone(error.message) from error

    def _call(self, project: str, ask: OutgoingCall) -> dict[str, Any]:
        """What `CallAsk` reads: there may be thousands a second, and the server looks at each anyway."""
        return {
            "function": ask.function,
            "args": self._payload(project, ask.format, ask.args),
            "params": None if ask.params is None else _inline(*ask.params),
            "key": ask.key,
            "priority": ask.priority,
            "options": ask.options,
        }

    def _payload(self, project: str, form: str, data: bytes | Pieces) -> dict[str, Any]:
        if len(data) <= INLINE_BYTES:
            return _inline(form, whole(data))
        return self._patiently(lambda: self._stored(project, form, data))

    def _stored(self, project: str, form: str, data: bytes | Pieces) -> dict[str, Any]:
        """On the server, as what is too large for a request."""
        sink = self.corral.sink(project)
        stored = sink.hand_over(data.parts if isinstance(data, Pieces) else [data])
        if stored is not None:
            return {"format": form, "blob": stored.sha256, "size": stored.size}
        sent = whole(data)
        digest = hashlib.sha256(sent).hexdigest()
        sink.keep(digest, sent)
        return {"format": form, "blob": digest, "size": len(data)}

    def collect(self, call_ids: Sequence[str], wait_s: float) -> list[CallStatus]:
        found = self._patiently(lambda: self.corral.calls.collect(call_ids, wait_s))
        return [self._seen(view) for view in found]

    def get(self, call_id: str, wait_s: float, within_s: float | None = None) -> CallStatus:
        ask = partial(self.corral.calls.get, call_id, wait_s)
        return self._seen(self.corral.transport.persistently(ask, within_s=within_s))

    def _patiently(self, attempt: Callable[[], T]) -> T:
        """The server may go away in the midst of a program, but is there when the program begins."""
        if not self._has_answered:
            value = attempt()
            self._has_answered = True
            return value
        return self.corral.transport.persistently(attempt)

    def chunks(
        self, call_id: str, after: int, wait_s: float
    ) -> tuple[dict[int, Payload], bool, dict[str, Any] | None]:
        page = self._patiently(lambda: self.corral.calls.chunks(call_id, after=after, wait_s=wait_s))
        project = None
        given: dict[int, Payload] = {}
        for one in page.chunks:
            if one.payload.blob is not None and project is None:
                project = self.corral.calls.get(call_id).project
            given[one.n] = one.payload.format, self._bytes(project or "", one.payload)
        return given, page.ended, page.error

    def cancel(self, call_id: str) -> None:
        self.corral.calls.cancel(call_id)

    def logs(self, call_id: str) -> Iterator[str]:
        call = self.corral.calls.get(call_id)
        if call.run is None:
            return
        for line in self.corral.runs.iter_logs(call.run):
            if line.call == call_id:
                yield line.text

    def volume(self, name: str, project: str | None, what: str, given: dict[str, Any]) -> dict[str, Any]:
        return self._local.do(self.corral, project or self._project, name, what, given)

    def _seen(self, view: CallView) -> CallStatus:
        result, error = None, view.error
        if view.result is not None:
            try:
                result = (view.result.format, self._bytes(view.project, view.result))
            except ResultLost as lost:
                # Of this call alone: the others that were asked for have theirs.
                error = {"type": "ResultLost", "message": f"call {view.id}: {lost}"}
        return CallStatus(view.id, view.state, result, error, view.waiting)

    def _bytes(self, project: str, payload: PayloadBody) -> bytes | memoryview:
        if payload.body is not None:
            return from_text(payload.body)
        assert payload.blob is not None
        try:
            return self._patiently(partial(self._read, project, payload.blob))
        except (BlobMissing, DigestMismatch) as error:
            raise ResultLost(error.message) from error

    def _read(self, project: str, blob: str) -> bytes | memoryview:
        source = self.corral.source(project)
        return source.in_place(blob) or source.whole(blob)


def _inline(form: str, data: bytes) -> dict[str, Any]:
    return {"format": form, "body": as_text(data), "size": len(data)}


class LocalVolumes:
    """Volumes of a program: on the server, and as folders that go when the process ends."""

    def __init__(self) -> None:
        self._folders: dict[tuple[str, str], VolumeFolder] = {}
        self._lock = threading.Lock()

    def do(self, corral: Corral, project: str, name: str, what: str, given: dict[str, Any]) -> dict[str, Any]:
        remote = corral.volumes.remote(project, name)
        match what:
            case "put":
                made = volumes.put(remote, Path(given["source"]).expanduser(), given["target"])
                return {"version": made.version}
            case "get":
                volumes.get(remote, given["path"], Path(given["target"]).expanduser())
                return {}
            case "rm":
                return {"version": volumes.remove(remote, given["path"]).version}
            case "ls":
                found = volumes.below(remote.tree(remote.head()), given["path"])
                return {"files": [VolumeFile(one.path, one.size, one.digest) for one in found.files]}
        folder = self._folder(remote, project, name)
        if what == "path":
            return {"path": str(folder.root)}
        return {"version": folder.commit() if what == "commit" else folder.reload(discard=given["discard"])}

    def _folder(self, remote: volumes.RemoteVolume, project: str, name: str) -> VolumeFolder:
        with self._lock:
            found = self._folders.get((project, name))
            if found is None:
                scratch = tempfile.mkdtemp(prefix="corral-volume-")
                atexit.register(shutil.rmtree, scratch, ignore_errors=True)
                found = VolumeFolder(Path(scratch, name), remote)
                found.fill()
                self._folders[project, name] = found
            return found

"""The service that Modal's client speaks to, with the few calls that sandboxes need."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from grpclib import GRPCError, Status
from grpclib.const import Cardinality, Handler
from grpclib.server import Server, Stream
from modal_proto import api_pb2

from support.modal_server.sandboxes import LocalSandbox, Sandboxes

TOKEN = ("ak-corral", "as-secret-of-the-token")
_SERVICE = "modal.client.ModalClient"


class ModalServer:
    """`requests` counts calls by name. A call in `lost` is carried out and not answered."""

    def __init__(self, folder: Path, **room: int) -> None:
        self.sandboxes = Sandboxes(folder, **room)
        self.requests: Counter[str] = Counter()
        self.lost: set[str] = set()
        self.secrets: dict[str, dict[str, str]] = {}
        self.apps: dict[str, str] = {}
        self.images: dict[str, list[str]] = {}
        self._port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server: _Server | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._run(self._start())

    async def _start(self) -> None:
        self._server = _Server([_Service(self)])
        await self._server.start("127.0.0.1", self._port)
        listening: Any = self._server._server
        self._port = listening.sockets[0].getsockname()[1]

    def stop(self) -> None:
        """Nobody answers any more; what runs goes on."""
        self._run(self._stop())

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()
        for protocol in self._server.protocols:
            if (transport := getattr(protocol.connection, "_transport", None)) is not None:
                transport.abort()
        # The transports close in the next round of the loop.
        await asyncio.sleep(0)

    def close(self) -> None:
        self.sandboxes.close()
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)


class _Server(Server):
    """Knows its connections, which grpclib leaves open when it stops to listen."""

    def __init__(self, services: list[Any]) -> None:
        super().__init__(services)
        self.protocols: list[Any] = []

    def _protocol_factory(self) -> Any:
        made = super()._protocol_factory()
        self.protocols.append(made)
        return made


class _Service:
    """A call is answered by the method of its name, in a thread: starting processes takes its time."""

    def __init__(self, modal: ModalServer) -> None:
        self._modal = modal
        self._sandboxes = modal.sandboxes

    def __mapping__(self) -> dict[str, Handler]:
        found = {}
        for method in api_pb2.DESCRIPTOR.services_by_name["ModalClient"].methods:
            answer = getattr(self, method.name, None)
            if answer is not None:
                kinds = [getattr(api_pb2, one.name, None) for one in (method.input_type, method.output_type)]
                given, told = (kind or method.input_type._concrete_class for kind in kinds)
                handler = self._handler(method.name, answer)
                found[f"/{_SERVICE}/{method.name}"] = Handler(handler, Cardinality.UNARY_UNARY, given, told)
        return found

    def _handler(self, name: str, answer: Callable[[Any], Any]) -> Any:
        async def handle(stream: Stream[Any, Any]) -> None:
            request = await stream.recv_message()
            self._modal.requests[name] += 1
            self._check_token(name, stream.metadata)
            try:
                told = await asyncio.to_thread(answer, request)
            finally:
                if name in self._modal.lost:
                    raise GRPCError(Status.UNAVAILABLE, "the connection was lost")
            await stream.send_message(told)

        return handle

    def _check_token(self, name: str, metadata: Any) -> None:
        if (metadata.get("x-modal-token-id"), metadata.get("x-modal-token-secret")) != TOKEN:
            raise GRPCError(Status.UNAUTHENTICATED, "Token validation failed")
        if name.endswith("V2") and not metadata.get("x-modal-auth-token"):
            raise GRPCError(Status.UNAUTHENTICATED, "no auth token")

    def ClientHello(self, request: Any) -> api_pb2.ClientHelloResponse:
        return api_pb2.ClientHelloResponse(image_builder_version="2025.06")

    def AuthTokenGet(self, request: Any) -> api_pb2.AuthTokenGetResponse:
        claims = json.dumps({"exp": int(time.time()) + 3600}).encode()
        return api_pb2.AuthTokenGetResponse(
            token=f"h.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.s"
        )

    def EnvironmentGetOrCreate(self, request: Any) -> api_pb2.EnvironmentGetOrCreateResponse:
        settings = api_pb2.EnvironmentSettings(image_builder_version="2025.06")
        metadata = api_pb2.EnvironmentMetadata(name="main", settings=settings)
        return api_pb2.EnvironmentGetOrCreateResponse(environment_id="en-main", metadata=metadata)

    def AppGetOrCreate(self, request: api_pb2.AppGetOrCreateRequest) -> api_pb2.AppGetOrCreateResponse:
        apps = self._modal.apps
        if request.app_name not in apps:
            if request.object_creation_type != api_pb2.OBJECT_CREATION_TYPE_CREATE_IF_MISSING:
                raise GRPCError(Status.NOT_FOUND, f"App {request.app_name!r} not found")
            apps[request.app_name] = f"ap-{len(apps)}"
        return api_pb2.AppGetOrCreateResponse(app_id=apps[request.app_name])

    def ImageGetOrCreate(self, request: api_pb2.ImageGetOrCreateRequest) -> api_pb2.ImageGetOrCreateResponse:
        commands = list(request.image.dockerfile_commands)
        first = next((line for line in commands if line.startswith("FROM ")), "")
        if "missing" in first:
            failed = api_pb2.GenericResult.GENERIC_STATUS_FAILURE
            result = api_pb2.GenericResult(status=failed, exception=f"{first}: manifest unknown")
            return api_pb2.ImageGetOrCreateResponse(image_id="im-missing", result=result)
        image_id = f"im-{len(self._modal.images)}"
        self._modal.images[image_id] = commands
        result = api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS)
        return api_pb2.ImageGetOrCreateResponse(image_id=image_id, result=result)

    def SecretGetOrCreate(
        self, request: api_pb2.SecretGetOrCreateRequest
    ) -> api_pb2.SecretGetOrCreateResponse:
        if request.deployment_name:
            raise GRPCError(Status.NOT_FOUND, f"Secret {request.deployment_name!r} not found")
        secret_id = f"st-{len(self._modal.secrets)}"
        self._modal.secrets[secret_id] = dict(request.env_dict)
        metadata = api_pb2.SecretMetadata(keys=list(request.env_dict))
        return api_pb2.SecretGetOrCreateResponse(secret_id=secret_id, metadata=metadata)

    def SandboxCreate(self, request: api_pb2.SandboxCreateRequest) -> api_pb2.SandboxCreateResponse:
        environ: dict[str, str] = {}
        for secret_id in request.definition.secret_ids:
            environ |= self._modal.secrets[secret_id]
        made = self._create(request, environ, first=True)
        return api_pb2.SandboxCreateResponse(sandbox_id=made.id, metadata=made.metadata())

    def SandboxCreateV2(self, request: api_pb2.SandboxCreateV2Request) -> api_pb2.SandboxCreateV2Response:
        environ: dict[str, str] = {}
        for source in request.secret_sources:
            environ |= (
                dict(source.env.contents) if source.HasField("env") else self._modal.secrets[source.secret_id]
            )
        made = self._create(request, environ, first=False)
        return api_pb2.SandboxCreateV2Response(
            sandbox_id=made.id, task_id=made.task_id, metadata=made.metadata()
        )

    def _create(self, request: Any, environ: dict[str, str], *, first: bool) -> LocalSandbox:
        if request.app_id not in self._modal.apps.values():
            raise GRPCError(Status.NOT_FOUND, f"App {request.app_id} not found")
        if request.definition.image_id not in self._modal.images:
            raise GRPCError(Status.NOT_FOUND, f"Image {request.definition.image_id} not found")
        tags = {tag.tag_name: tag.tag_value for tag in request.tags}
        return self._sandboxes.create(request.definition, request.app_id, tags, environ, first=first)

    def SandboxList(self, request: api_pb2.SandboxListRequest) -> api_pb2.SandboxListResponse:
        wanted = {tag.tag_name: tag.tag_value for tag in request.tags}
        found = [
            one
            for one in self._sandboxes.all.values()
            if (one.lives or request.include_finished)
            and wanted.items() <= one.tags.items()
            and request.app_id in ("", one.app_id)
            and (not request.before_timestamp or one.created_at < request.before_timestamp)
        ]
        found.sort(key=lambda one: one.created_at, reverse=True)
        return api_pb2.SandboxListResponse(sandboxes=[one.info() for one in found[:100]])

    SandboxListV2 = SandboxList

    def SandboxGetFromNameV2(
        self, request: api_pb2.SandboxGetFromNameRequest
    ) -> api_pb2.SandboxGetFromNameResponse:
        return self._by_name(request, first=False)

    def SandboxGetFromName(
        self, request: api_pb2.SandboxGetFromNameRequest
    ) -> api_pb2.SandboxGetFromNameResponse:
        return self._by_name(request, first=True)

    def _by_name(self, request: Any, *, first: bool) -> api_pb2.SandboxGetFromNameResponse:
        """Of its kind alone, as the SDK's documentation says."""
        found = [
            one
            for one in self._sandboxes.all.values()
            if one.name == request.sandbox_name and one.first is first
        ]
        chosen = [one for one in found if one.lives] or (found[-1:] if request.include_terminated else [])
        if not chosen:
            raise GRPCError(Status.NOT_FOUND, f"Sandbox {request.sandbox_name!r} not found")
        return api_pb2.SandboxGetFromNameResponse(sandbox_id=chosen[0].id, metadata=chosen[0].metadata())

    def SandboxWait(self, request: api_pb2.SandboxWaitRequest) -> api_pb2.SandboxWaitResponse:
        one = self._sandboxes.find(request.sandbox_id)
        return api_pb2.SandboxWaitResponse(result=one.result(), metadata=one.metadata())

    SandboxWaitV2 = SandboxWait

    def SandboxGetTaskId(self, request: api_pb2.SandboxGetTaskIdRequest) -> api_pb2.SandboxGetTaskIdResponse:
        one = self._sandboxes.find(request.sandbox_id)
        if one.process is None and one.ended_as is not None:
            return api_pb2.SandboxGetTaskIdResponse(task_result=one.result())
        return api_pb2.SandboxGetTaskIdResponse(task_id=one.task_id if one.process else "")

    SandboxGetTaskIdV2 = SandboxGetTaskId

    def SandboxTagsGet(self, request: api_pb2.SandboxTagsGetRequest) -> api_pb2.SandboxTagsGetResponse:
        return api_pb2.SandboxTagsGetResponse(tags=self._sandboxes.find(request.sandbox_id).info().tags)

    SandboxTagsGetV2 = SandboxTagsGet

    def SandboxTerminate(self, request: api_pb2.SandboxTerminateRequest) -> api_pb2.SandboxTerminateResponse:
        one = self._sandboxes.find(request.sandbox_id)
        before = one.result()
        self._sandboxes.terminate(one)
        return api_pb2.SandboxTerminateResponse(existing_result=before)

    SandboxTerminateV2 = SandboxTerminate

    def AppFetchLogs(self, request: api_pb2.AppFetchLogsRequest) -> api_pb2.AppFetchLogsResponse:
        found = next((one for one in self._sandboxes.all.values() if one.task_id == request.task_id), None)
        lines = found.log()[-request.limit :] if found else []
        items = [
            api_pb2.TaskLogs(data=line, file_descriptor=api_pb2.FILE_DESCRIPTOR_STDOUT, timestamp=time.time())
            for line in lines
        ]
        batch = api_pb2.TaskLogsBatch(task_id=request.task_id, items=items)
        return api_pb2.AppFetchLogsResponse(batches=[batch] if items else [])

"""One address for all services: what a request means, whether it is right, and what goes wrong on purpose."""

from __future__ import annotations

import json
import threading
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from support.aws_server import permissions, services
from support.aws_server.schema import (
    SERVICES,
    AwsError,
    check_answer,
    check_request,
    service_model,
    targets,
)
from support.aws_server.training_jobs import TrainingJobs

Json = dict[str, Any]
Operation = Callable[[Json], Json]
REGION = "us-east-1"
# The server's own user, and the role that jobs act as.
USER = Credentials("AKIAUSER", "secret-of-the-user")
ROLE = Credentials("ASIAROLE", "secret-of-the-role", "session-of-the-role")


class AwsServer:
    """`requests` counts those of the user, by operation. An operation in `lost` is carried out and not
    answered, one in `denied` is forbidden, one in `throttled` is refused so often."""

    def __init__(self, folder: Path, *, room: int = 16) -> None:
        self.requests: Counter[str] = Counter()
        self.lost: set[str] = set()
        self.denied: set[str] = set()
        self.throttled: Counter[str] = Counter()
        self.jobs = TrainingJobs(folder, self._container_environ, room)
        self.secrets = services.SecretBox()
        self.quotas = services.ServiceQuotas()
        self._operations = self._table()
        self._http: _HttpServer | None = None
        self._port = 0
        self.start()

    def _table(self) -> dict[str, Operation]:
        logs = services.CloudWatchLogs(self.jobs)
        return {
            "CreateTrainingJob": self.jobs.create,
            "DescribeTrainingJob": self.jobs.describe,
            "ListTrainingJobs": self.jobs.list,
            "StopTrainingJob": self.jobs.stop,
            "CreateSecret": self.secrets.create,
            "PutSecretValue": self.secrets.put,
            "GetSecretValue": self.secrets.get,
            "DescribeSecret": self.secrets.describe,
            "DeleteSecret": self.secrets.delete,
            "DescribeLogStreams": logs.streams,
            "GetLogEvents": logs.events,
            "DescribeImages": services.images,
            "ListServiceQuotas": self.quotas.list,
            "GetCallerIdentity": services.caller,
            "GetRole": services.role,
        }

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._http = _HttpServer(("127.0.0.1", self._port), _Handler)
        self._http.aws = self
        self._port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        """Nobody answers any more; what runs goes on."""
        assert self._http is not None
        self._http.shutdown()
        self._http.close_all()

    def close(self) -> None:
        self.jobs.close()
        self.stop()

    @contextmanager
    def full(self) -> Iterator[None]:
        with self.jobs.changed:
            room, self.jobs.room = self.jobs.room, 0
        try:
            yield
        finally:
            with self.jobs.changed:
                self.jobs.room = room
                self.jobs.changed.notify_all()

    def _container_environ(self) -> Json:
        return {
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{self.url}/role",
        }

    def answer(self, request: AWSRequest, body: bytes) -> tuple[str, str, Json]:
        """The protocol, the operation and what it answers."""
        service, name, given = _parsed(request.headers, body)
        model = service_model(service)
        if name not in self._operations or name not in model.operation_names:
            raise AwsError("UnknownOperationException", f"no {name} here")
        caller = _caller(request, service)
        if caller is USER:
            self.requests[name] += 1
        if self.throttled[name] > 0:
            self.throttled[name] -= 1
            raise AwsError("ThrottlingException", "Rate exceeded")
        if name in self.denied:
            told = f"User: corral is not authorized to perform: {service}:{name}"
            raise AwsError("AccessDeniedException", told, 400)
        operation = model.operation_model(name)
        check_request(operation, given)
        server, _, worker = permissions.policies()
        if action := permissions.missing(server if caller is USER else worker, service, name, given):
            raise AwsError(
                "AccessDeniedException", f"{caller.access_key} is not authorized to perform: {action}"
            )
        try:
            with self.jobs.changed:
                answer = self._operations[name](given)
        except AwsError:
            if name in self.lost:
                raise ConnectionAbortedError from None
            raise
        check_answer(operation, answer)
        if name in self.lost:
            raise ConnectionAbortedError
        return model.metadata["protocol"], name, answer


class _HttpServer(ThreadingHTTPServer):
    aws: AwsServer
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *given: Any) -> None:
        self._open: set[Any] = set()
        super().__init__(*given)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def close_all(self) -> None:
        self.server_close()
        for connection in list(self._open):
            self.shutdown_request(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that was closed on purpose; anything else is an answer of its own."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _HttpServer

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_GET(self) -> None:
        """The role's credentials, as containers get them."""
        about = {"AccessKeyId": ROLE.access_key, "SecretAccessKey": ROLE.secret_key, "Token": ROLE.token}
        self._reply(200, "application/json", json.dumps(about).encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        url = f"http://{self.headers['Host']}{self.path}"
        request = AWSRequest("POST", url, headers=dict(self.headers.items()), data=body)
        try:
            protocol, name, answer = self.server.aws.answer(request, body)
        except ConnectionAbortedError:
            self.close_connection = True
            return
        except AwsError as error:
            self._refuse(error, is_json="X-Amz-Target" in self.headers)
            return
        if protocol == "json":
            self._reply(200, "application/x-amz-json-1.1", json.dumps(answer).encode())
        else:
            text = f"<{name}Response><{name}Result>{_xml(answer)}</{name}Result></{name}Response>"
            self._reply(200, "text/xml", text.encode())

    def _refuse(self, error: AwsError, *, is_json: bool) -> None:
        if is_json:
            told = json.dumps({"__type": error.code, "message": str(error)})
            self._reply(error.status, "application/x-amz-json-1.1", told.encode())
            return
        about = _xml({"Type": "Sender", "Code": error.code, "Message": str(error)})
        self._reply(
            error.status, "text/xml", f"<ErrorResponse><Error>{about}</Error></ErrorResponse>".encode()
        )

    def _reply(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _parsed(headers: Any, body: bytes) -> tuple[str, str, Json]:
    """The service, the operation and its parameters."""
    if target := headers.get("X-Amz-Target"):
        prefix, _, name = target.partition(".")
        if prefix not in targets():
            raise AwsError("UnknownOperationException", f"no service {prefix}")
        return targets()[prefix], name, json.loads(body)
    given = dict(urllib.parse.parse_qsl(body.decode()))
    name, version = given.pop("Action"), given.pop("Version")
    service = next(one for one in SERVICES if service_model(one).api_version == version)
    return service, name, given


def _caller(request: AWSRequest, service: str) -> Credentials:
    """By botocore's own calculation of the signature."""
    told = dict(
        part.strip().split("=", 1) for part in request.headers["Authorization"].partition(" ")[2].split(",")
    )
    key_id, _, region, signed_for, _ = told["Credential"].split("/")
    caller = next((one for one in (USER, ROLE) if one.access_key == key_id), None)
    if caller is None:
        raise AwsError(
            "UnrecognizedClientException", "The security token included in the request is invalid."
        )
    names = told["SignedHeaders"].split(";")
    headers = {name: request.headers[name] for name in names}
    same = AWSRequest(request.method, request.url, headers=headers, data=request.data)
    same.context["timestamp"] = request.headers["X-Amz-Date"]
    auth = SigV4Auth(caller, signed_for, region)
    expected = auth.signature(auth.string_to_sign(same, auth.canonical_request(same)), same)
    if expected != told["Signature"] or signed_for != (service_model(service).signing_name):
        raise AwsError("InvalidSignatureException", "The request signature we calculated does not match.")
    return caller


def _xml(value: Any) -> str:
    if isinstance(value, dict):
        return "".join(f"<{name}>{_xml(one)}</{name}>" for name, one in value.items())
    return escape(str(value))

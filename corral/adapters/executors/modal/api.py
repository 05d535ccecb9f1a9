"""Calls to Modal over its own SDK, with errors in the words of the port."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from corral.adapters.executors.modal.options import ModalOptions
from corral.adapters.executors.modal.sandboxes import SandboxRequest
from corral.adapters.executors.modal.sightings import SandboxEnd
from corral.domain.errors import CorralError
from corral.ports.executor import ExecutorUnreachable

INSTALL = "pip install 'corral[modal]'"
_STATUS = "GENERIC_STATUS_"


class ModalRefusal(CorralError):
    """Modal understood a request and said no."""

    code = "modal_refused"
    hint = "`corral executors check NAME` says what is missing."


class NoRoom(ModalRefusal):
    """The workspace has as much as it may have, or Modal has nothing left."""

    code = "modal_no_room"
    hint = "Wait, or raise the workspace's limits on modal.com/settings."


class ModalDenied(ExecutorUnreachable):
    """Modal does not accept our token, or does not allow this with it."""

    code = "modal_denied"
    hint = "Run `modal token new` as the server's user, or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET for it."


class ModalSdkMissing(ExecutorUnreachable):
    """The SDK of Modal is not installed where the server runs."""

    code = "modal_sdk_missing"
    hint = f"Install it where the server runs: {INSTALL}."


class ModalApi:
    """From any thread. Connections are the SDK's own, which it shares within a process."""

    def __init__(self, options: ModalOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._app: Any = None
        self._images: dict[str, Any] = {}

    def hello(self) -> None:
        with _translated():
            _modal().Client.from_env().hello()

    def has_app(self) -> bool:
        """Looks, and makes none."""
        modal = _modal()
        with _translated():
            try:
                modal.App.lookup(self._options.app, environment_name=self._options.environment)
            except modal.exception.NotFoundError:
                return False
        return True

    def app(self) -> Any:
        with self._lock, _translated():
            if self._app is None:
                where = {"environment_name": self._options.environment, "create_if_missing": True}
                self._app = _modal().App.lookup(self._options.app, **where)
            return self._app

    def create(self, request: SandboxRequest) -> str | None:
        """The id; None if one of this name runs already. Where a GPU is asked for, the SDK waits until there
        is one, for up to 21 minutes."""
        modal, options, app = _modal(), self._options, self.app()
        image = self._image(request.image)
        with _translated():
            try:
                made = modal.Sandbox.create(
                    *request.args,
                    app=app,
                    name=request.name,
                    tags=dict(request.tags),
                    image=image,
                    env=dict(request.environ),
                    secrets=[modal.Secret.from_dict(dict(request.secret))],
                    timeout=request.timeout_s,
                    cpu=request.cores,
                    # The second is the limit: a rank that takes more is ended, and not others beside it.
                    memory=(request.ram_mib, request.ram_mib),
                    gpu=request.gpu,
                    region=options.region,
                    cloud=options.cloud,
                )
            except modal.exception.AlreadyExistsError:
                return None
            return str(made.object_id)

    def _image(self, name: str) -> Any:
        modal = _modal()
        with self._lock, _translated():
            if name not in self._images:
                named = self._options.registry_secret
                secret = modal.Secret.from_name(named) if named else None
                self._images[name] = modal.Image.from_registry(name, secret=secret)
            return self._images[name]

    def running(self, tags: Mapping[str, str]) -> list[str]:
        """Those that have not ended, also if they have not started."""
        app = self.app()
        with _translated():
            found = _modal().Sandbox.list(app_id=app.app_id, tags=dict(tags))
            return [str(one.object_id) for one in found]

    def find(self, name: str) -> str | None:
        """Also one that has ended, as far as Modal knows it by name: those with a GPU it does not."""
        modal = _modal()
        about = {"environment_name": self._options.environment, "include_terminated": True}
        with _translated():
            try:
                return str(modal.Sandbox.from_name(self._options.app, name, **about).object_id)
            except modal.exception.NotFoundError:
                return None

    def tags(self, sandbox: str) -> dict[str, str]:
        with _translated():
            found: dict[str, str] = _modal().Sandbox.from_id(sandbox).get_tags()
        return found

    def has_started(self, sandbox: str) -> bool:
        """One that waits for a machine has no logs to be asked for, and the SDK says so."""
        modal = _modal()
        with _translated():
            try:
                list(modal.Sandbox.from_id(sandbox).logs.tail(1))
            except modal.exception.ExecutionError:
                return False
            except modal.exception.NotFoundError:
                return False
        return True

    def end_of(self, sandbox: str) -> SandboxEnd | None:
        """None while it has not ended. KeyError if Modal does not know it."""
        modal = _modal()
        with _translated():
            try:
                found = modal.Sandbox.from_id(sandbox)
                code = found.poll()
            except modal.exception.NotFoundError:
                raise KeyError(sandbox) from None
        if code is None:
            return None
        status, words = _result(found)
        return SandboxEnd(status, code, words)

    def logs(self, sandbox: str, lines: int) -> str:
        modal = _modal()
        with _translated():
            try:
                return "".join(one.message for one in modal.Sandbox.from_id(sandbox).logs.tail(lines))
            except (modal.exception.ExecutionError, modal.exception.NotFoundError):
                return ""

    def terminate(self, sandbox: str) -> None:
        modal = _modal()
        with _translated():
            try:
                modal.Sandbox.from_id(sandbox).terminate()
            except modal.exception.NotFoundError:
                return


def _result(sandbox: Any) -> tuple[str, str]:
    """Modal's word for an end, and what else it says. The SDK shows only a number that it makes of them;
    where its inside is another one day, that number is all that is told."""
    inner = next((value for value in vars(sandbox).values() if hasattr(value, "_impl")), None)
    result = getattr(getattr(inner, "_impl", None), "result", None)
    if result is None:
        return "", ""
    named = type(result).DESCRIPTOR.fields_by_name["status"].enum_type.values_by_number.get(result.status)
    return (named.name.removeprefix(_STATUS) if named else ""), str(result.exception)


@contextmanager
def _translated() -> Iterator[None]:
    kinds = _modal().exception
    try:
        yield
    except (kinds.AuthError, kinds.PermissionDeniedError) as error:
        raise ModalDenied(f"Modal does not accept our token: {error}") from error
    except kinds.ResourceExhaustedError as error:
        raise NoRoom(f"Modal has no room: {error}") from error
    except (
        kinds.InvalidError,
        kinds.NotFoundError,
        kinds.ImageBuildError,
        kinds.UnimplementedError,
    ) as error:
        raise ModalRefusal(str(error)) from error
    except (kinds.Error, OSError, TimeoutError) as error:
        raise ExecutorUnreachable(f"Modal does not answer: {type(error).__name__}: {error}") from error


def _modal() -> Any:
    # Only whoever has this executor pays for the library, which takes most of a second to load.
    try:
        return importlib.import_module("modal")
    except ImportError as error:
        raise ModalSdkMissing("the SDK of Modal is not installed") from error

"""`python -m corral.worker`: one worker for one home, until SIGTERM drains it."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from functools import partial
from types import FrameType

import psutil

import corral.lean_imports  # noqa: F401 - before anything that imports httpx

# isort: split
from corral.domain.errors import CorralError, InvalidInput, ServerUnreachable
from corral.domain.hosts.capability import lacks
from corral.domain.ids import is_name
from corral.files.atomic import write_whole
from corral.files.locks import exclusive
from corral.files.private import keep_files_private, private_folder
from corral.settings import Settings, process_environment, read_settings
from corral.worker.agent import Agent, default_slots
from corral.worker.child.system import become_subreaper
from corral.worker.child.variables import base_environment, engine_environment
from corral.worker.context import WorkerContext
from corral.worker.credential import CredentialRotation, WorkerCredential, wait_for_identity
from corral.worker.host.address import own_address
from corral.worker.host.gpus import CUDA, GpuProbe
from corral.worker.host.health import HostHealth
from corral.worker.host.isolation import Isolation
from corral.worker.host.probe import HostProbe
from corral.worker.host.sampler import HostSampler
from corral.worker.prepare.cache import InputCache
from corral.worker.report.outbox import Outbox
from corral.worker.server_link import ServerLink

BEAT_TIMEOUT_S = 10.0

logger = logging.getLogger("corral.worker")


def listen_to_signals() -> threading.Event:
    """Set by the first signal, to ask for a drain; the second ends at once, and shims kill the children."""
    asked = threading.Event()

    def heard(number: int, _: FrameType | None) -> None:
        if asked.is_set():
            os._exit(128 + number)
        asked.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, heard)
    return asked


def main() -> int:
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # One line per request is no news.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        return run(read_settings())
    except CorralError as error:
        logger.error("%s %s", error.message, error.hint)
        return 1


def run(settings: Settings) -> int:
    home = settings.home
    child_umask = keep_files_private()
    private_folder(settings.worker_home)
    with exclusive(home / "worker.lock") as held:
        if not held:
            logger.error("another worker runs on %s already; `corral down` ends it", home)
            return 1
        pid_file = home / "worker.pid"
        # With its start time, so that nobody takes a later process of the same number for this one.
        described = {"pid": os.getpid(), "create_time": psutil.Process().create_time()}
        write_whole(pid_file, json.dumps(described))
        try:
            return work(settings, child_umask)
        finally:
            pid_file.unlink(missing_ok=True)


def work(settings: Settings, child_umask: int) -> int:
    drain_asked = listen_to_signals()
    own_labels = _labels(settings.worker_labels)
    become_subreaper()
    identity = wait_for_identity(settings.worker_home, drain_asked.wait)
    if identity is None:
        return 0
    credential = WorkerCredential(settings.home, identity, url=settings.url)
    link = partial(ServerLink, credential)
    labels = sorted({*own_labels, *identity.labels})
    environ = process_environment()
    isolation = Isolation.of(
        settings.isolation, settings.hidden_from_runs, environ, allowed=settings.writable_by_runs
    )
    if isolation.why_not is not None:
        logger.warning("runs share this host's user: %s", isolation.why_not)
    gpus = GpuProbe(cuda=CUDA if settings.gpu_check == "on" else None)
    address = partial(_address, settings, credential)
    machine = HostProbe(
        settings.worker_home, labels, environ, gpus=gpus, isolation=isolation, address=address
    )
    capability = machine.capability()
    for missing in lacks(capability.os):
        logger.warning("this host does without %s", missing)
    slots = settings.worker_slots or identity.slots or default_slots(capability)
    host = WorkerContext(
        home=settings.worker_home,
        link=link(),
        outbox=Outbox(),
        cache=InputCache(settings.worker_home / "cache"),
        base_env=base_environment(environ),
        # If it is not known whether there are GPUs, a child that was granted none must see none.
        has_gpus=capability.gpus != (),
        snapshot=machine.snapshot,
        health=HostHealth(settings.worker_home),
        engine_env=engine_environment(environ),
        child_umask=child_umask,
        isolation=isolation,
        address=address,
    )
    agent = Agent(
        host,
        claims=link(),
        beats=link(timeout_s=BEAT_TIMEOUT_S),
        slots=slots,
        capability=capability,
        probe=machine.capability,
        ram_free=machine.ram_free,
    )
    logger.info("worker of host %s (%s) with %d slots", identity.name, identity.host_id, slots)
    CredentialRotation(credential).start()
    agent.start()
    # A host that surely has no GPUs asks no driver.
    HostSampler(lambda: machine.sample(with_gpus=agent.capability.gpus != ()), host.link).start()
    drain_asked.wait()
    logger.info("draining; a second signal ends at once")
    agent.drain()
    logger.info("drained")
    return 0


def _address(settings: Settings, credential: WorkerCredential) -> str:
    if settings.worker_address is not None:
        return settings.worker_address
    try:
        return own_address(credential.url())
    except ServerUnreachable:
        return own_address(None)


def _labels(text: str) -> list[str]:
    labels = [label.strip() for label in text.split(",") if label.strip()]
    if bad := [label for label in labels if not is_name(label)]:
        raise InvalidInput(
            f"CORRAL_WORKER_LABELS holds {', '.join(map(repr, bad))}, which are not names",
            hint="Use letters, digits, `.`, `_` and `-`, with commas between.",
        )
    return labels


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    # Threads may still wait for a server that is away; all that they have to report is on disk.
    os._exit(status)

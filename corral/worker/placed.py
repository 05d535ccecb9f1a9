"""`python -m corral.worker.placed`: the worker of one rank, which an executor brought up for one run.

It finds its token where the executor put it, keeps a home of its own, and ends when the run is over.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path

import corral.lean_imports  # noqa: F401 - before anything that imports httpx

# isort: split
from corral.client.corral import Corral
from corral.client.hosts.identity import CA, HostIdentity, write_identity
from corral.client.http.discovery import tls_for
from corral.client.http.transport import Backoff
from corral.domain.errors import CorralError, Forbidden, InvalidInput, Unauthenticated
from corral.files.atomic import write_private
from corral.files.private import FOLDER_MODE, private_folder, why_not_ours
from corral.settings import Settings, read_settings
from corral.worker.__main__ import run

# How often it asks whether it is still wanted.
_LOOK_S = 15.0
_TIMEOUT_S = 30.0

logger = logging.getLogger("corral.worker")


def main() -> int:
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        settings = read_settings()
        token = own_token(settings.placed_tokens, settings.placed_rank)
        home = Path(tempfile.mkdtemp(prefix=f"{settings.placed_rank}-", dir=shared_folder()))
    except CorralError as error:
        logger.error("%s %s", error.message, error.hint)
        return 2
    try:
        return _work(settings.model_copy(update={"home": home}), token)
    except (Unauthenticated, Forbidden) as error:
        logger.info("nobody waits for this worker any more: %s", error.message)
        return 0
    except CorralError as error:
        logger.error("%s %s", error.message, error.hint)
        return 1
    finally:
        shutil.rmtree(home, ignore_errors=True)


def own_token(place: Path | None, rank: int) -> str:
    """Of a file the line of its rank; of a folder the file of its rank."""
    if place is None:
        raise InvalidInput("CORRAL_PLACED_TOKENS is not set", hint="An executor sets it; nobody else should.")
    try:
        if place.is_dir():
            return (place / str(rank)).read_text(encoding="utf-8").strip()
        return place.read_text(encoding="utf-8").splitlines()[rank].strip()
    except (OSError, IndexError) as error:
        raise InvalidInput(f"{place} has no token for rank {rank}: {error}") from None


def shared_folder() -> Path:
    """Where all placed workers of this user on this machine have their homes: their runs see none of it but
    their own. InvalidInput if others could have laid something there."""
    if sys.platform == "win32":  # No cluster places workers on it.
        raise InvalidInput("workers are placed on Linux alone")
    folder = Path(tempfile.gettempdir()) / f"corral-{os.geteuid()}"
    folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
    if (why := why_not_ours(folder.lstat())) is not None:
        raise InvalidInput(f"{folder} {why}", hint="Remove it, or set TMPDIR to a folder of this user's own.")
    private_folder(folder)
    return folder


def _work(settings: Settings, token: str) -> int:
    if settings.url is None:
        raise InvalidInput("CORRAL_URL is not set", hint="The executor's options say where the server is.")
    tls = tls_for(settings.url, settings.placed_ca, None)
    # A server that is away for a while is waited for: the cluster gave this worker its place.
    backoff = Backoff(tries=60, most_s=10.0)
    server = Corral(settings.url, token, timeout_s=_TIMEOUT_S, backoff=backoff, tls=tls)
    me = server.own_host.get()
    private_folder(settings.worker_home)
    if settings.placed_ca is not None:
        write_private(settings.worker_home / CA, settings.placed_ca)
    identity = HostIdentity(host_id=me.id, name=me.name, token=token, url=settings.url, slots=1)
    write_identity(settings.worker_home, identity, client_pem=None)
    over = threading.Event()
    threading.Thread(target=_while_wanted, args=(server, over), name="corral-wanted", daemon=True).start()
    status = run(settings)
    # A cluster takes 0 for a rank that has done its work, and would not start it again.
    return status if status or over.is_set() else 128 + signal.SIGTERM


def _while_wanted(server: Corral, over: threading.Event) -> None:
    """Until its token is refused: the run has ended, or other workers have its place."""
    pause = threading.Event()
    while not pause.wait(_LOOK_S):
        try:
            server.own_host.get()
        except (Unauthenticated, Forbidden):
            logger.info("the run is over, or others have taken this worker's place")
            over.set()
            os.kill(os.getpid(), signal.SIGTERM)
            return
        except CorralError as error:
            logger.info("the server does not answer: %s", error.message)


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    os._exit(status)

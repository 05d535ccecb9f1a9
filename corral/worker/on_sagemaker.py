"""`python3 -m corral.worker.on_sagemaker`: what a container of a SageMaker training job starts.

It finds which rank it is, reads what it is to start from the job's secret, hands a rank its own token in a
file, and stays beside it: signals are passed on, and how the rank ended is left where SageMaker looks for the
reason of a failure. The standard library only: an image needs Corral, and nothing of AWS.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

SECRET = "CORRAL_SAGEMAKER_SECRET"
FIRST_RANK = "CORRAL_SAGEMAKER_FIRST_RANK"
TOKENS = "CORRAL_PLACED_TOKENS"
RANK = "CORRAL_PLACED_RANK"
# Where containers of AWS get the credentials of their role.
_CREDENTIALS_HOST = "http://169.254.170.2"
# The secret is made just after its job, which takes longer to start.
_WAIT_S = 600.0
_PAUSE_S = 2.0
_TIMEOUT_S = 10.0


class RoleCredentials(NamedTuple):
    key_id: str
    secret: str
    token: str


def main(wait_s: float = _WAIT_S) -> int:
    environ = os.environ
    base = Path(environ.get("SAGEMAKER_BASE_DIR", "/opt/ml"))
    rank = int(environ[FIRST_RANK]) + own_instance(base)
    asked_to_end: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked_to_end.append(number))
    try:
        order = _wait_for_order(environ, asked_to_end, wait_s)
    except (urllib.error.URLError, OSError) as error:
        _blame(base, f"rank {rank} cannot read the secret {environ[SECRET]}: {_words(error)}")
        return 1
    if order is None:
        return 0
    folder = Path(tempfile.mkdtemp(prefix="corral-token-"))
    try:
        return _run(order, rank, folder, base, asked_to_end)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def own_instance(base: Path) -> int:
    """Which of the job's instances this is; the hosts of a job are the same for all of them."""
    told = json.loads((base / "input/config/resourceconfig.json").read_text(encoding="utf-8"))
    # algo-10 comes after algo-9.
    hosts = sorted(told["hosts"], key=lambda name: (len(name), name))
    return hosts.index(told["current_host"])


def _wait_for_order(
    environ: Mapping[str, str], asked_to_end: list[int], wait_s: float
) -> dict[str, Any] | None:
    """None if it was told to end meanwhile."""
    until = time.monotonic() + wait_s
    while not asked_to_end:
        try:
            return read_secret(environ, environ[SECRET])
        except (urllib.error.URLError, OSError) as error:
            if time.monotonic() >= until:
                raise
            print(f"corral: waiting for {environ[SECRET]}: {_words(error)}", file=sys.stderr, flush=True)  # noqa: T201
        time.sleep(_PAUSE_S)
    return None


def _words(error: Exception) -> str:
    told = error.read().decode(errors="replace")[:300] if isinstance(error, urllib.error.HTTPError) else ""
    return f"{error} {told}".strip()


def _run(order: dict[str, Any], rank: int, folder: Path, base: Path, asked_to_end: list[int]) -> int:
    own = folder / str(rank)
    own.touch(mode=0o600)
    own.write_text(order["tokens"][rank], encoding="utf-8")
    environ = {**os.environ, **order["environ"], TOKENS: str(folder), RANK: str(rank)}
    if asked_to_end:
        return 0
    with subprocess.Popen(order["command"], env=environ) as child:
        # What came before the child was there is passed on as well.
        def pass_on(number: int, _: object) -> None:
            asked_to_end.append(number)
            child.send_signal(number)

        signal.signal(signal.SIGTERM, pass_on)
        if asked_to_end:
            child.send_signal(signal.SIGTERM)
        status = child.wait()
    if status and not asked_to_end:
        how = f"exited with {status}" if status > 0 else f"was killed by signal {-status}"
        _blame(base, f"rank {rank} {how}")
    return status if status >= 0 else 128 - status


def _blame(base: Path, why: str) -> None:
    """Where SageMaker takes the reason of a failure from."""
    (base / "output").mkdir(parents=True, exist_ok=True)
    (base / "output/failure").write_text(f"corral: {why}", encoding="utf-8")


def read_secret(environ: Mapping[str, str], name: str) -> dict[str, Any]:
    region = environ.get("AWS_REGION") or environ["AWS_DEFAULT_REGION"]
    url = (
        environ.get("AWS_ENDPOINT_URL_SECRETS_MANAGER")
        or environ.get("AWS_ENDPOINT_URL")
        or f"https://secretsmanager.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"
    )
    body = json.dumps({"SecretId": name}).encode()
    headers = {
        "content-type": "application/x-amz-json-1.1",
        "host": urllib.parse.urlsplit(url).netloc,
        "x-amz-target": "secretsmanager.GetSecretValue",
    }
    signed = _signed(headers, body, region, _credentials(environ), datetime.datetime.now(datetime.UTC))
    request = urllib.request.Request(f"{url}/", data=body, headers=signed, method="POST")
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
        order: dict[str, Any] = json.loads(json.load(answer)["SecretString"])
    return order


def _credentials(environ: Mapping[str, str]) -> RoleCredentials:
    if (key_id := environ.get("AWS_ACCESS_KEY_ID")) is not None:
        token = environ.get("AWS_SESSION_TOKEN", "")
        return RoleCredentials(key_id, environ["AWS_SECRET_ACCESS_KEY"], token)
    place = environ.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
    url = f"{_CREDENTIALS_HOST}{place}" if place else environ["AWS_CONTAINER_CREDENTIALS_FULL_URI"]
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
        told = json.load(answer)
    return RoleCredentials(told["AccessKeyId"], told["SecretAccessKey"], told.get("Token", ""))


def _signed(
    headers: Mapping[str, str], body: bytes, region: str, role: RoleCredentials, now: datetime.datetime
) -> dict[str, str]:
    """AWS Signature Version 4 of a POST to `/`."""
    moment, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    sent = {**headers, "x-amz-date": moment}
    if role.token:
        sent["x-amz-security-token"] = role.token
    names = ";".join(sorted(sent))
    lines = "".join(f"{name}:{sent[name]}\n" for name in sorted(sent))
    request = f"POST\n/\n\n{lines}\n{names}\n{hashlib.sha256(body).hexdigest()}"
    scope = f"{day}/{region}/secretsmanager/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = f"AWS4{role.secret}".encode()
    for part in (day, region, "secretsmanager", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    granted = f"Credential={role.key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {**sent, "authorization": f"AWS4-HMAC-SHA256 {granted}"}


if __name__ == "__main__":
    sys.exit(main())

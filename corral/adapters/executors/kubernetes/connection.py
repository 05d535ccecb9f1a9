"""How the API server is found and who we are there: the pod that we run in, or a kubeconfig."""

from __future__ import annotations

import importlib
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple

from corral.adapters.executors.kubernetes.options import KubernetesOptions
from corral.ports.executor import ExecutorUnreachable

INSTALL = "pip install 'corral[kubernetes]'"


class ClusterConnection(NamedTuple):
    """The client library's own, with what it does not keep."""

    client: Any
    namespace: str
    # For people: where the address and the credentials came from.
    origin: str
    # What the library raises when there was no answer.
    failures: tuple[type[Exception], ...]


class ClientMissing(ExecutorUnreachable):
    """The client library of Kubernetes is not installed where the server runs."""

    code = "executor_client_missing"
    hint = f"Install it where the server runs: {INSTALL}."


def connect(options: KubernetesOptions) -> ClusterConnection:
    """ExecutorUnreachable if there is no configuration, or one that cannot be read."""
    library, config = _library("kubernetes.client"), _library("kubernetes.config")
    # The class itself: the library's default may have been set by others in this process.
    settings = type.__call__(library.Configuration)
    # Whoever repeats a request must know what became of it.
    settings.retries = False
    settings.connection_pool_maxsize = 8
    try:
        namespace, origin = _load(config, settings, options)
    except (config.ConfigException, OSError, ValueError, TypeError, KeyError) as error:
        where = options.kubeconfig or "the kubeconfig"
        raise ExecutorUnreachable(
            f"{where} cannot be used: {error}",
            hint="`kubectl config get-contexts` shows what there is; name one with the option `context`.",
        ) from error
    urllib3 = _library("urllib3.exceptions")
    failures = (OSError, HTTPException, library.exceptions.OpenApiException, urllib3.HTTPError)
    return ClusterConnection(library.ApiClient(settings), options.namespace or namespace, origin, failures)


def _library(name: str) -> Any:
    # Only whoever has this executor pays for the library, which takes most of a second to load.
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ClientMissing("the client of Kubernetes is not installed") from error


def _load(config: Any, settings: Any, options: KubernetesOptions) -> tuple[str, str]:
    if not options.context and not options.kubeconfig:
        folder = Path(options.service_account_folder)
        loader = config.incluster_config.InClusterConfigLoader(
            token_filename=str(folder / "token"), cert_filename=str(folder / "ca.crt")
        )
        try:
            loader.load_and_set(settings)
        except config.ConfigException:
            # We are in no pod.
            pass
        else:
            return (folder / "namespace").read_text(encoding="utf-8").strip(), "the pod's service account"
    config.load_kube_config(
        options.kubeconfig, context=options.context, client_configuration=settings, persist_config=False
    )
    contexts, current = config.list_kube_config_contexts(options.kubeconfig)
    name = options.context or current["name"]
    chosen = next(one for one in contexts if one["name"] == name)
    return chosen["context"].get("namespace") or "default", f"the context {name}"

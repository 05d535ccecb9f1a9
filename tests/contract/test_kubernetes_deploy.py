"""What deploy/ ships: manifests that the API server takes, no more permissions than are used, and images."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from support.executor_contract import SAYS_WHO, STAYS, has_ended, running, said, sighted
from support.kubernetes_harness import NODES, KubernetesHarness
from support.kubernetes_server import KubernetesCluster
from support.kubernetes_server.access import Rule, rules_of_manifest
from support.kubernetes_server.cluster import IMAGE
from support.kubernetes_server.resources import resource_of_kind

from corral.adapters.executors.kubernetes.options import KubernetesOptions
from corral.adapters.executors.kubernetes.preflight import NEEDED
from corral.version import __version__

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
Json = dict[str, Any]


def objects(name: str) -> list[Json]:
    text = (DEPLOY / "kubernetes" / name).read_text(encoding="utf-8")
    return [found for found in yaml.safe_load_all(text) if found]


def only(name: str, kind: str) -> Json:
    (found,) = [one for one in objects(name) if one["kind"] == kind]
    return found


@pytest.fixture(scope="module")
def kubernetes() -> Iterator[KubernetesCluster]:
    """With all that the manifests make."""
    with KubernetesCluster(NODES) as started:
        for name in ("control-plane.yaml", "workers.yaml", "nodes.yaml"):
            for found in objects(name):
                resource = resource_of_kind(found["apiVersion"], found["kind"])
                assert resource is not None
                started.registry.create(resource, found["metadata"].get("namespace", ""), found)
        yield started


@pytest.fixture
def cluster(kubernetes: KubernetesCluster) -> Iterator[KubernetesHarness]:
    made = KubernetesHarness(kubernetes)
    yield made
    made.clean()


def server_rules(*, nodes: bool) -> list[Rule]:
    role = only("workers.yaml", "Role")
    rules = rules_of_manifest(role["rules"], role["metadata"]["namespace"])
    return rules + (rules_of_manifest(only("nodes.yaml", "ClusterRole")["rules"]) if nodes else [])


@pytest.mark.parametrize("nodes", [True, False])
def test_the_roles_are_enough_for_all_that_we_do(cluster: KubernetesHarness, *, nodes: bool) -> None:
    """DL-D32: launch, look, read, cancel and sweep, as the service account of the manifests."""
    token = cluster.cluster.add_user("system:serviceaccount:corral:corral-server", server_rules(nodes=nodes))
    config = cluster.cluster.kubeconfig(token, namespace="corral-workers")
    executor = cluster.executor(kubeconfig=str(config), service_account="corral-worker")
    order = cluster.order(cluster.key(), 2, STAYS)
    before = len(cluster.cluster.server.seen)

    assert [check for check in executor.preflight() if not check.ok] == []
    handle = running(cluster, executor, order)
    executor.launch(order)
    said(executor, handle, 1, "up 1")
    assert [one.key for one in executor.launched(cluster.installation)] == [order.key]
    broken = executor.launch(cluster.order(cluster.key(), 1, SAYS_WHO, image="corral/none:1"))
    sighted(executor, broken, lambda seen: "not found" in seen.ranks[0].detail, "an event to be read")
    executor.cancel(handle)
    executor.cancel(broken)

    refused = {
        one.target.partition("?")[0] for one in cluster.cluster.server.seen[before:] if one.code == 403
    }
    assert refused == (set() if nodes else {"/api/v1/nodes"})


def test_no_permission_is_there_that_is_not_used() -> None:
    """DL-D32: in the namespace of the workers alone, no Secret is read, and nothing is a wildcard."""
    rules = only("workers.yaml", "Role")["rules"]
    given = {
        (group, resource): set(rule["verbs"])
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    used = {
        (one.group, f"{one.resource}/{one.subresource}" if one.subresource else one.resource): set(one.verbs)
        for one in NEEDED
    }
    checks = {
        ("", "namespaces"): {"get"},
        ("", "serviceaccounts"): {"get"},
        ("", "resourcequotas"): {"list"},
        ("kueue.x-k8s.io", "localqueues"): {"get"},
    }

    assert given == used | checks
    assert given["", "secrets"] == {"create", "patch"}
    assert {verb for one in only("nodes.yaml", "ClusterRole")["rules"] for verb in one["verbs"]} == {
        "get",
        "list",
    }


def test_the_workers_may_do_nothing_in_the_cluster() -> None:
    """DL-D20, DL-D21: they have no token of the API, and nobody gives them a role."""
    account = only("workers.yaml", "ServiceAccount")
    subjects = [
        subject["name"]
        for name in ("workers.yaml", "nodes.yaml")
        for one in objects(name)
        if one["kind"].endswith("Binding")
        for subject in one["subjects"]
    ]

    assert account["automountServiceAccountToken"] is False
    assert set(subjects) == {"corral-server"}


def test_the_control_plane_runs_once_and_as_nobody() -> None:
    deployment = only("control-plane.yaml", "Deployment")["spec"]
    pod = deployment["template"]["spec"]
    (container,) = pod["containers"]

    assert (deployment["replicas"], deployment["strategy"]["type"]) == (1, "Recreate")
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["image"] == f"corral/server:{__version__}"
    for name in ("control-plane.yaml", "workers.yaml"):
        labels = only(name, "Namespace")["metadata"]["labels"]
        assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


# The images, as far as they can be judged without a container engine.


def stages() -> dict[str, list[str]]:
    """The instructions of each stage, with continued lines joined."""
    found: dict[str, list[str]] = {}
    lines = re.sub(r"\\\n\s*", "", DOCKERFILE).splitlines()
    for line in lines:
        if not line or line.startswith("#"):
            continue
        if line.startswith("FROM "):
            found[line.rpartition(" AS ")[2]] = [line]
        else:
            found[list(found)[-1]].append(line)
    return found


def test_images_are_pinned() -> None:
    """DL-D32: base, Corral and torch; nothing is fetched by a name that moves."""
    bases = [lines[0].split()[1] for lines in stages().values()]

    assert {base for base in bases if base != "base"} == {"python:3.12.12-slim-bookworm"}
    assert set(re.findall(r"^ARG VERSION=(.+)$", DOCKERFILE, re.MULTILINE)) == {__version__}
    assert set(re.findall(r"corral/\w+:([\w.]+)", DOCKERFILE)) == {__version__}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.findall(r"torch==[\d.]+", DOCKERFILE) == re.findall(
        r"^TORCH \?= (torch==[\d.]+)", makefile, re.MULTILINE
    )
    assert not re.search(r"\bADD\b|curl|wget|:latest", DOCKERFILE)


@pytest.mark.parametrize("name", ["worker", "worker-cuda", "server"])
def test_images_run_as_the_user_that_pods_have(name: str) -> None:
    """DL-D32: so that `runAsNonRoot` holds, and the files of the image are that user's."""
    user = KubernetesOptions().user
    lines = stages()[name]

    assert lines[0] == f"FROM base AS {name}"
    assert [line for line in lines if line.startswith("USER ")] == [f"USER {user}:{user}"]
    # Nothing is written as root after that.
    assert not any(line.startswith("RUN") for line in lines[lines.index(f"USER {user}:{user}") :])
    assert f"--uid {user}" in " ".join(stages()["base"])


def test_images_keep_nothing_that_is_not_needed() -> None:
    """Small: no caches, no compilers, no lists of packages; and CUDA only where it was asked for."""
    everything = stages()

    for lines in everything.values():
        for line in lines:
            assert "pip install" not in line or ("--no-cache-dir" in line and "rm -rf /wheels" in line)
            assert "apt-get install" not in line or (
                "--no-install-recommends" in line and "rm -rf /var/lib/apt/lists/*" in line
            )
    assert "torch" not in " ".join(everything["worker"] + everything["base"])
    assert "[train]" in " ".join(everything["worker-cuda"])
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in " ".join(everything["worker-cuda"])


def test_what_is_copied_into_images_is_there_and_nothing_else() -> None:
    copied = [word for line in stages()["build"] if line.startswith("COPY ") for word in line.split()[1:-1]]
    allowed = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").split()

    assert all((ROOT / word).exists() for word in copied)
    assert {f"!{word}" for word in copied} == {word for word in allowed if word.startswith("!")}
    assert allowed[0] == "**"


def test_the_program_of_each_image_is_there() -> None:
    """DL-D26."""
    programs = re.findall(r'^CMD \["python", "-m", "([\w.]+)"\]$', DOCKERFILE, re.MULTILINE)

    assert programs == ["corral.worker", "corral.worker", "corral.server"]
    assert all((ROOT / one.replace(".", "/") / "__main__.py").exists() for one in programs)


def test_without_the_extra_the_command_that_installs_it_is_told() -> None:
    """DL-C02, DL-D47: and nothing but this executor needs it."""
    script = (
        "import sys; sys.modules['kubernetes'] = None\n"
        "from corral.adapters.executors.kubernetes.executor import KubernetesExecutor\n"
        "from corral.adapters.executors.kubernetes.options import KubernetesOptions\n"
        "(check,) = KubernetesExecutor(KubernetesOptions()).preflight()\n"
        "print(check.ok, check.fix)"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )

    assert done.stdout == "False pip install 'corral[kubernetes]'\n"


def test_the_executor_is_loaded_without_the_library() -> None:
    """MT-C06: whoever has no Kubernetes does not wait for its client."""
    script = (
        "import sys, corral.adapters.executors.kubernetes.executor\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('kubernetes', 'urllib3', 'yaml')])"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )

    assert done.stdout == "[]\n"


def test_a_worker_of_the_manifests_runs_to_its_end(cluster: KubernetesHarness) -> None:
    """DL-D26: the account, the image's user and the restricted namespace are no obstacle."""
    executor = cluster.executor(namespace="corral-workers", service_account="corral-worker")
    handle = executor.launch(cluster.order(cluster.key(), 2, SAYS_WHO, image=IMAGE))

    assert not sighted(executor, handle, has_ended, "the end").detail.startswith("Failed")


def test_the_page_names_every_option_and_what_is_not_done() -> None:
    """DL-D19, DL-D20, DL-D32: what is not supported is said, and claims about Kubernetes carry a link."""
    page = (ROOT / "docs" / "howto" / "kubernetes.md").read_text(encoding="utf-8")

    assert [one.name for one in fields(KubernetesOptions) if f"`{one.name}`" not in page] == []
    assert "does not isolate the network" in page
    assert "docs/concepts/workloads/controllers/job/#pod-failure-policy" in page
    assert all(one.shown in page for one in NEEDED)

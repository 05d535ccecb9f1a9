"""The scheduler: puts pods onto nodes with room, or says in its own words why it cannot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from decimal import Decimal

from support.kubernetes_server.events import record
from support.kubernetes_server.job_pods import is_terminal
from support.kubernetes_server.objects import Json, is_being_deleted, name_of, set_condition
from support.kubernetes_server.registry import Registry
from support.kubernetes_server.resources import resource_of
from support.kubernetes_server.selectors import Requirement
from support.kubernetes_server.syntax import parse_quantity

_COMPONENT = "default-scheduler"
_PODS = resource_of("pods")
_NODES = resource_of("nodes")
_AFFINITY = "node(s) didn't match Pod's node affinity/selector"
_OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent"}

Amounts = dict[str, Decimal]


def requests_of(pod: Json) -> Amounts:
    """What a pod takes of a node: the sum of its containers, and one place for a pod."""
    total: Amounts = {"pods": Decimal(1)}
    for container in pod["spec"]["containers"]:
        for name, text in container.get("resources", {}).get("requests", {}).items():
            total[name] = total.get(name, Decimal(0)) + parse_quantity(text)
    return total


def _tolerates(tolerations: list[Json], taint: Json) -> bool:
    for one in tolerations:
        if one.get("effect") not in (None, "", taint["effect"]):
            continue
        if not one.get("key"):
            return True
        same_value = one.get("operator") == "Exists" or one.get("value", "") == taint.get("value", "")
        if one["key"] == taint["key"] and same_value:
            return True
    return False


def _fits_term(term: Json, node: Json) -> bool:
    labels: Mapping[str, str] = node["metadata"].get("labels", {})
    for expression in term.get("matchExpressions", ()):
        operator, values = expression["operator"], expression.get("values", [])
        if operator in ("Gt", "Lt"):
            found = labels.get(expression["key"], "")
            if not found.isdigit():
                return False
            if (int(found) > int(values[0])) is not (operator == "Gt") or int(found) == int(values[0]):
                return False
        elif not Requirement(expression["key"], _OPERATORS[operator], frozenset(values)).holds(labels):
            return False
    return all(name_of(node) in field.get("values", ()) for field in term.get("matchFields", ()))


def _fits_affinity(pod: Json, node: Json) -> bool:
    labels = node["metadata"].get("labels", {})
    if any(labels.get(key) != value for key, value in pod["spec"].get("nodeSelector", {}).items()):
        return False
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    strict = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return strict is None or any(_fits_term(term, node) for term in strict["nodeSelectorTerms"])


class Scheduler:
    """Looks at all pods without a node, the most important first, whenever something has changed."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._storage = registry.storage
        self._placed: dict[str, list[Json]] = {}

    def sync(self) -> None:
        self._placed = {}
        for pod in self._storage.all(_PODS):
            if (node := pod["spec"].get("nodeName")) and not is_terminal(pod):
                self._placed.setdefault(node, []).append(pod)
        waiting = [pod for pod in self._storage.all(_PODS) if self._is_mine(pod)]
        for pod in sorted(waiting, key=_queue_key):
            self._schedule(pod)

    def _is_mine(self, pod: Json) -> bool:
        spec = pod["spec"]
        if spec.get("nodeName") or is_terminal(pod) or is_being_deleted(pod):
            return False
        return bool(spec["schedulerName"] == _COMPONENT)

    def _schedule(self, pod: Json) -> None:
        if pod["spec"].get("schedulingGates"):
            said = "Scheduling is blocked due to non-empty scheduling gates"
            self._set_scheduled(pod, "False", "SchedulingGated", said)
            return
        nodes = self._storage.all(_NODES)
        reasons = {name_of(node): self._refusals(pod, node) for node in nodes}
        fitting = [node for node in nodes if not reasons[name_of(node)]]
        if fitting:
            self._bind(pod, max(fitting, key=lambda node: (self._free_share(node), name_of(node))))
            return
        victims = self._preempt(pod, [node for node in nodes if _is_a_matter_of_room(reasons[name_of(node)])])
        self._say_unschedulable(pod, reasons, preempting=victims)

    def _refusals(self, pod: Json, node: Json, without: frozenset[str] = frozenset()) -> list[str]:
        """Why a node does not take a pod; `without` are pods that would be gone."""
        if node["spec"].get("unschedulable"):
            return ["node(s) were unschedulable"]
        if not _fits_affinity(pod, node):
            return [_AFFINITY]
        for taint in node["spec"].get("taints", ()):
            if taint["effect"] != "PreferNoSchedule" and not _tolerates(
                pod["spec"].get("tolerations", []), taint
            ):
                return [f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"]
        free = self._free(node, without)
        short = [name for name, amount in requests_of(pod).items() if amount > free.get(name, Decimal(0))]
        return ["Too many pods" if name == "pods" else f"Insufficient {name}" for name in sorted(short)]

    def _on(self, node: Json) -> list[Json]:
        return self._placed.get(name_of(node), [])

    def _free(self, node: Json, without: frozenset[str] = frozenset()) -> Amounts:
        free = {name: parse_quantity(text) for name, text in node["status"]["allocatable"].items()}
        for pod in self._on(node):
            if pod["metadata"]["uid"] not in without:
                for name, amount in requests_of(pod).items():
                    free[name] = free.get(name, Decimal(0)) - amount
        return free

    def _free_share(self, node: Json) -> Decimal:
        """How empty a node is: pods are spread."""
        total = node["status"]["allocatable"]
        free = self._free(node)
        shares = [free[name] / parse_quantity(text) for name, text in total.items() if parse_quantity(text)]
        return sum(shares, Decimal(0)) / len(shares)

    def _bind(self, pod: Json, node: Json) -> None:
        now = self._registry.clock.now()

        def change(new: Json) -> None:
            new["spec"]["nodeName"] = name_of(node)
            new["status"].pop("nominatedNodeName", None)
            set_condition(new, "PodScheduled", "True", now=now, reason="", message="")

        bound = self._storage.edit(_PODS, pod, change)
        if bound is not None:
            self._placed.setdefault(name_of(node), []).append(bound)
        said = f"Successfully assigned {pod['metadata']['namespace']}/{name_of(pod)} to {name_of(node)}"
        record(self._storage, pod, "Normal", "Scheduled", said, component=_COMPONENT)

    def _preempt(self, pod: Json, nodes: list[Json]) -> bool:
        """Ends less important pods on a node, if that makes room; whether somebody leaves for this pod."""
        if nominated := pod["status"].get("nominatedNodeName"):
            leaving = (one for node in nodes if name_of(node) == nominated for one in self._on(node))
            if any(is_being_deleted(one) for one in leaving):
                return True
        if pod["spec"].get("preemptionPolicy") == "Never":
            return False
        for node in nodes:
            victims = self._victims(pod, node)
            if victims:
                for victim in victims:
                    said = f"{_COMPONENT}: preempting to accommodate a higher priority pod"
                    self._registry.evict(victim, reason="PreemptionByScheduler", message=said)
                    record(self._storage, victim, "Normal", "Preempted", said, component=_COMPONENT)
                self._nominate(pod, name_of(node))
                return True
        return False

    def _nominate(self, pod: Json, node: str) -> None:
        def change(new: Json) -> None:
            new["status"]["nominatedNodeName"] = node

        self._storage.edit(_PODS, pod, change)

    def _victims(self, pod: Json, node: Json) -> list[Json]:
        """As few of the least important pods as it takes."""
        priority = pod["spec"].get("priority", 0)
        lower = [one for one in self._on(node) if one["spec"].get("priority", 0) < priority]
        lower.sort(key=lambda one: one["spec"].get("priority", 0))
        for count in range(1, len(lower) + 1):
            gone = frozenset(one["metadata"]["uid"] for one in lower[:count])
            if not self._refusals(pod, node, gone):
                return lower[:count]
        return []

    def _say_unschedulable(self, pod: Json, reasons: Mapping[str, list[str]], *, preempting: bool) -> None:
        total = len(reasons)
        counts = Counter(reason for found in reasons.values() for reason in found)
        said = ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items()))
        message = (
            f"0/{total} nodes are available: {said}." if total else "no nodes available to schedule pods"
        )
        if total and not preempting:
            room = sum(_is_a_matter_of_room(found) for found in reasons.values())
            parts = [f"{room} No preemption victims found for incoming pod"] if room else []
            parts += [f"{total - room} Preemption is not helpful for scheduling"] if total > room else []
            message += f" preemption: 0/{total} nodes are available: {', '.join(sorted(parts))}."
        if self._set_scheduled(pod, "False", "Unschedulable", message):
            record(self._storage, pod, "Warning", "FailedScheduling", message, component=_COMPONENT)

    def _set_scheduled(self, pod: Json, status: str, reason: str, message: str) -> bool:
        now = self._registry.clock.now()
        changed = []

        def change(new: Json) -> None:
            changed.append(
                set_condition(new, "PodScheduled", status, now=now, reason=reason, message=message)
            )

        self._storage.edit(_PODS, pod, change)
        return any(changed)


def _queue_key(pod: Json) -> tuple[int, str]:
    """The most important first, and of equals whoever came first."""
    return -pod["spec"].get("priority", 0), pod["metadata"]["creationTimestamp"]


def _is_a_matter_of_room(reasons: list[str]) -> bool:
    return bool(reasons) and all(one.startswith(("Insufficient", "Too many")) for one in reasons)

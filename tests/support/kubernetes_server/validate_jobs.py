"""The rules for Jobs, at creation and at change."""

from __future__ import annotations

from collections.abc import Iterator

from support.kubernetes_server.errors import (
    FieldError,
    forbidden_field,
    invalid_value,
    not_supported,
    required,
)
from support.kubernetes_server.indexes import parsed, wrong_indexes
from support.kubernetes_server.objects import Json, clone, name_of
from support.kubernetes_server.selectors import label_selector_matches
from support.kubernetes_server.syntax import wrong_label, wrong_qualified_name, wrong_subdomain
from support.kubernetes_server.validate_pods import pod_spec_errors

_NOT_NEGATIVE = (
    "parallelism",
    "completions",
    "activeDeadlineSeconds",
    "backoffLimit",
    "backoffLimitPerIndex",
    "maxFailedIndexes",
    "ttlSecondsAfterFinished",
)
_IMMUTABLE = (
    "selector",
    "completionMode",
    "podFailurePolicy",
    "backoffLimitPerIndex",
    "managedBy",
    "successPolicy",
)
_MOST_RULES = 20
_MOST_PARALLEL = 100_000
# What a queue such as Kueue may set in the template before a suspended Job starts.
_SCHEDULING_DIRECTIVES = ("nodeSelector", "tolerations", "schedulingGates", "affinity")

Errors = Iterator[FieldError]


def job_errors(job: Json) -> Errors:
    spec = job["spec"]
    for name in _NOT_NEGATIVE:
        if spec.get(name, 0) < 0:
            yield invalid_value(f"spec.{name}", spec[name], "must be greater than or equal to 0")
    yield from _mode_errors(job)
    yield from _template_errors(spec)
    yield from _selector_errors(job)
    yield from _per_index_errors(spec)
    if "podFailurePolicy" in spec:
        yield from _failure_policy_errors(spec)
    if "successPolicy" in spec:
        yield from _success_policy_errors(spec)
    yield from _replacement_errors(spec)
    yield from _managed_by_errors(spec)


def _mode_errors(job: Json) -> Errors:
    spec = job["spec"]
    mode = spec["completionMode"]
    if mode not in ("NonIndexed", "Indexed"):
        yield not_supported("spec.completionMode", mode, ("NonIndexed", "Indexed"))
    if mode != "Indexed":
        return
    if "completions" not in spec:
        yield required("spec.completions", f"when completion mode is {mode}")
        return
    if spec["parallelism"] > _MOST_PARALLEL:
        detail = f"must be less than or equal to {_MOST_PARALLEL} when completion mode is {mode}"
        yield invalid_value("spec.parallelism", spec["parallelism"], detail)
    # Each pod's hostname is the Job's name and its index.
    if spec["completions"] > 0:
        hostname = f"{name_of(job)}-{spec['completions'] - 1}"
        if wrong := wrong_label(hostname):
            detail = f"will not able to create pod with invalid DNS label: {hostname}: {wrong}"
            yield invalid_value("metadata.name", name_of(job), detail)


def _template_errors(spec: Json) -> Errors:
    pod = spec["template"].get("spec")
    if pod is None:
        yield required("spec.template.spec")
        return
    yield from pod_spec_errors(pod, "spec.template.spec")
    policy = pod.get("restartPolicy")
    at = "spec.template.spec.restartPolicy"
    if policy == "Always":
        yield not_supported(at, policy, ("OnFailure", "Never"))
    for name in ("podFailurePolicy", "backoffLimitPerIndex"):
        if name in spec and policy != "Never":
            yield invalid_value(at, policy, f'only "Never" is supported when {name} is specified')


def _selector_errors(job: Json) -> Errors:
    spec = job["spec"]
    if "selector" not in spec:
        yield required("spec.selector")
        return
    labels = spec["template"].get("metadata", {}).get("labels", {})
    if not spec.get("manualSelector"):
        expected = job["metadata"].get("uid")
        chosen = spec["selector"].get("matchLabels", {}).get("batch.kubernetes.io/controller-uid")
        if chosen != expected:
            yield invalid_value("spec.selector", spec["selector"], "`selector` not auto-generated")
    if not label_selector_matches(spec["selector"], labels):
        yield invalid_value(
            "spec.template.metadata.labels", labels, "`selector` does not match template `labels`"
        )


def _per_index_errors(spec: Json) -> Errors:
    most = spec.get("maxFailedIndexes")
    if "backoffLimitPerIndex" in spec and spec["completionMode"] != "Indexed":
        detail = "requires indexed completion mode"
        yield invalid_value("spec.backoffLimitPerIndex", spec["backoffLimitPerIndex"], detail)
    if most is None:
        return
    if "backoffLimitPerIndex" not in spec:
        yield required("spec.backoffLimitPerIndex", "when maxFailedIndexes is specified")
    if most > spec.get("completions", most):
        yield invalid_value("spec.maxFailedIndexes", most, "must be less than or equal to completions")


def _failure_policy_errors(spec: Json) -> Errors:
    rules, at = spec["podFailurePolicy"]["rules"], "spec.podFailurePolicy.rules"
    if len(rules) > _MOST_RULES:
        yield invalid_value(at, len(rules), f"must have at most {_MOST_RULES} items")
    pod = spec["template"].get("spec", {})
    containers = {one["name"] for kind in ("containers", "initContainers") for one in pod.get(kind, ())}
    for i, rule in enumerate(rules):
        yield from _rule_errors(rule, f"{at}[{i}]", containers, per_index="backoffLimitPerIndex" in spec)


def _rule_errors(rule: Json, at: str, containers: set[str], *, per_index: bool) -> Errors:
    actions = ("Count", "FailIndex", "FailJob", "Ignore") if per_index else ("Count", "FailJob", "Ignore")
    if rule["action"] == "FailIndex" and not per_index:
        yield invalid_value(f"{at}.action", rule["action"], "requires the backoffLimitPerIndex to be set")
    elif rule["action"] not in actions:
        yield not_supported(f"{at}.action", rule["action"], actions)
    codes, conditions = rule.get("onExitCodes"), rule.get("onPodConditions")
    if codes is not None and conditions:
        yield invalid_value(at, "", "specifying both OnExitCodes and OnPodConditions is not supported")
    if codes is None and not conditions:
        yield invalid_value(at, "", "specifying one of OnExitCodes and OnPodConditions is required")
    if codes is not None:
        yield from _exit_code_errors(codes, f"{at}.onExitCodes", containers)
    for i, pattern in enumerate(conditions or ()):
        where = f"{at}.onPodConditions[{i}]"
        if wrong := wrong_qualified_name(pattern["type"]):
            yield invalid_value(f"{where}.type", pattern["type"], wrong)
        if pattern.get("status", "True") not in ("True", "False", "Unknown"):
            yield not_supported(f"{where}.status", pattern["status"], ("False", "True", "Unknown"))


def _exit_code_errors(codes: Json, at: str, containers: set[str]) -> Errors:
    operator, values = codes["operator"], codes["values"]
    if operator not in ("In", "NotIn"):
        yield not_supported(f"{at}.operator", operator, ("In", "NotIn"))
    if "containerName" in codes and codes["containerName"] not in containers:
        detail = "must be one of the container or initContainer names in the pod template"
        yield invalid_value(f"{at}.containerName", codes["containerName"], detail)
    if not values:
        yield invalid_value(f"{at}.values", values, "at least one value is required")
    if len(values) > 255:
        yield invalid_value(f"{at}.values", len(values), "must have at most 255 items")
    if operator == "In" and 0 in values:
        yield invalid_value(f"{at}.values[{values.index(0)}]", 0, "must not be 0 for the In operator")
    if len(set(values)) != len(values):
        yield invalid_value(f"{at}.values", values, "must contain no duplicates")
    if list(values) != sorted(values):
        yield invalid_value(f"{at}.values", values, "must be ordered")


def _success_policy_errors(spec: Json) -> Errors:
    rules, at = spec["successPolicy"]["rules"], "spec.successPolicy.rules"
    if spec["completionMode"] != "Indexed":
        yield invalid_value("spec.successPolicy", "", "requires indexed completion mode")
    if not rules:
        yield required(at, "at least one rules must be specified when the successPolicy is specified")
    if len(rules) > _MOST_RULES:
        yield invalid_value(at, len(rules), f"must have at most {_MOST_RULES} items")
    completions = spec.get("completions", 0)
    for i, rule in enumerate(rules):
        count, indexes = rule.get("succeededCount"), rule.get("succeededIndexes")
        if count is None and indexes is None:
            yield required(
                f"{at}[{i}]", "at least one of succeededCount or succeededIndexes must be specified"
            )
        wrong = wrong_indexes(indexes, below=completions) if indexes is not None else ""
        if wrong:
            detail = f"error parsing succeededIndexes: {wrong}"
            yield invalid_value(f"{at}[{i}].succeededIndexes", indexes, detail)
        elif count is not None:
            most = len(parsed(indexes, below=completions)) if indexes else completions
            if not 1 <= count <= most:
                detail = f"must be positive and less than or equal to {most}"
                yield invalid_value(f"{at}[{i}].succeededCount", count, detail)


def _replacement_errors(spec: Json) -> Errors:
    policy = spec["podReplacementPolicy"]
    if policy not in ("TerminatingOrFailed", "Failed"):
        yield not_supported("spec.podReplacementPolicy", policy, ("TerminatingOrFailed", "Failed"))
    elif "podFailurePolicy" in spec and policy != "Failed":
        # Otherwise a pod would be replaced before it is known how it ended.
        yield not_supported("spec.podReplacementPolicy", policy, ("Failed",))


def _managed_by_errors(spec: Json) -> Errors:
    if (manager := spec.get("managedBy")) is None:
        return
    prefix, slash, rest = manager.partition("/")
    if not slash or not rest or wrong_subdomain(prefix):
        yield invalid_value(
            "spec.managedBy", manager, 'must be a domain-prefixed path (such as "acme.io/foo")'
        )
    if len(manager) > 63:
        yield invalid_value("spec.managedBy", manager, "must be no more than 63 characters")


def job_update_errors(old: Json, new: Json) -> Errors:
    before, after = old["spec"], new["spec"]
    for name in _IMMUTABLE:
        if before.get(name) != after.get(name):
            yield invalid_value(f"spec.{name}", after.get(name), "field is immutable")
    yield from _completions_errors(before, after)
    comparable = after["template"]
    if before.get("suspend") and "startTime" not in old.get("status", {}):
        comparable = _without_directives(before["template"], after["template"])
    if comparable != before["template"]:
        yield invalid_value("spec.template", after["template"], "field is immutable")


def _completions_errors(before: Json, after: Json) -> Errors:
    if before.get("completions") == after.get("completions"):
        return
    # An elastic Indexed Job grows and shrinks with its parallelism.
    elastic = after.get("completionMode") == "Indexed" and after.get("completions") == after.get(
        "parallelism"
    )
    if not elastic:
        yield invalid_value("spec.completions", after.get("completions"), "field is immutable")


def _without_directives(old: Json, new: Json) -> Json:
    """The new template with the scheduling directives of the old one."""
    same = clone(new)
    for name in _SCHEDULING_DIRECTIVES:
        same["spec"].pop(name, None)
        if name in old["spec"]:
            same["spec"][name] = old["spec"][name]
    for name in ("labels", "annotations"):
        same.setdefault("metadata", {}).pop(name, None)
        if name in old.get("metadata", {}):
            same["metadata"][name] = old["metadata"][name]
    return same


def finished_job_errors(old: Json, new: Json) -> Errors:
    """A Job that has ended is not put back by a status."""
    for kind in ("Complete", "Failed"):
        was = any(
            c["type"] == kind and c["status"] == "True" for c in old.get("status", {}).get("conditions", ())
        )
        now = any(
            c["type"] == kind and c["status"] == "True" for c in new.get("status", {}).get("conditions", ())
        )
        if was and not now:
            yield forbidden_field(
                "status.conditions", f"cannot remove the {kind} condition of a finished Job"
            )

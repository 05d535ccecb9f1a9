"""The rules for Jobs, at creation and at change."""

from __future__ import annotations

from collections.abc import Iterator

from support.kubernetes_server.errors import (
    FieldError,
    duplicate,
    invalid_value,
    not_supported,
    required,
    too_long,
    too_many,
)
from support.kubernetes_server.indexes import parsed, wrong_indexes
from support.kubernetes_server.objects import Json, clone, is_true, name_of
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
_SCHEDULING_DIRECTIVES = ("nodeSelector", "tolerations", "schedulingGates")

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
        if wrong_label(hostname):
            detail = f"will not able to create pod with invalid DNS label: {hostname}"
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
        # It is the default, so nobody may have written it.
        yield required(at, 'valid values: "OnFailure", "Never"')
    # For the limit the API's documentation says so, though the API server itself does not check it.
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
    if spec["completionMode"] != "Indexed":
        yield invalid_value("spec.maxFailedIndexes", most, "requires indexed completion mode")
    if "backoffLimitPerIndex" not in spec:
        yield required("spec.backoffLimitPerIndex", "when maxFailedIndexes is specified")
    if most > spec.get("completions", most):
        yield invalid_value("spec.maxFailedIndexes", most, "must be less than or equal to completions")


def _failure_policy_errors(spec: Json) -> Errors:
    rules, at = spec["podFailurePolicy"]["rules"], "spec.podFailurePolicy.rules"
    if len(rules) > _MOST_RULES:
        yield too_many(at, len(rules), _MOST_RULES)
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
        yield too_many(f"{at}.values", len(values), 255)
    if operator == "In" and 0 in values:
        yield invalid_value(f"{at}.values[{values.index(0)}]", 0, "must not be 0 for the In operator")
    for i, value in enumerate(values):
        if value in values[:i]:
            yield duplicate(f"{at}.values[{i}]", value)
    if list(values) != sorted(values):
        yield invalid_value(f"{at}.values", values, "must be ordered")


def _success_policy_errors(spec: Json) -> Errors:
    rules, at = spec["successPolicy"]["rules"], "spec.successPolicy.rules"
    if spec["completionMode"] != "Indexed":
        yield invalid_value("spec.successPolicy", "", "requires indexed completion mode")
    if not rules:
        yield required(at, "at least one rules must be specified when the successPolicy is specified")
    if len(rules) > _MOST_RULES:
        yield too_many(at, len(rules), _MOST_RULES)
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
            yield from _count_errors(count, indexes, completions, f"{at}[{i}].succeededCount")


def _count_errors(count: int, indexes: str | None, completions: int, at: str) -> Errors:
    if count < 0:
        yield invalid_value(at, count, "must be greater than or equal to 0")
    if count > completions:
        detail = f"must be less than or equal to {completions} (the number of specified completions)"
        yield invalid_value(at, count, detail)
    if indexes is not None and count > (most := len(parsed(indexes, below=completions))):
        said = "(the number of indexes in the specified succeededIndexes field)"
        yield invalid_value(at, count, f"must be less than or equal to {most} {said}")


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
        yield too_long("spec.managedBy", 63)


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
    if after.get("completionMode") != "Indexed":
        yield invalid_value("spec.completions", after.get("completions"), "field is immutable")
    elif not elastic:
        detail = "can only be modified in tandem with spec.parallelism"
        yield invalid_value("spec.completions", after.get("completions"), detail)


def _without_directives(old: Json, new: Json) -> Json:
    """The new template with the scheduling directives of the old one."""
    same = clone(new)
    for name in _SCHEDULING_DIRECTIVES:
        same["spec"].pop(name, None)
        if name in old["spec"]:
            same["spec"][name] = old["spec"][name]
    _take_node_affinity(old["spec"], same["spec"])
    for name in ("labels", "annotations"):
        same.setdefault("metadata", {}).pop(name, None)
        if name in old.get("metadata", {}):
            same["metadata"][name] = old["metadata"][name]
    return same


def _take_node_affinity(old: Json, new: Json) -> None:
    """Of the affinity only that to nodes is a scheduling directive."""
    affinity = {key: value for key, value in new.get("affinity", {}).items() if key != "nodeAffinity"}
    affinity |= {key: value for key, value in old.get("affinity", {}).items() if key == "nodeAffinity"}
    new.pop("affinity", None)
    if affinity:
        new["affinity"] = affinity


def finished_job_errors(old: Json, new: Json) -> Errors:
    """A Job that has ended is not put back by a status."""
    for kind in ("Failed", "Complete", "FailureTarget"):
        if is_true(old, kind) and not is_true(new, kind):
            yield invalid_value("status.conditions", "", f"cannot disable the terminal {kind}=True condition")

"""Who asks, and what he may do: tokens, and rules in the manner of RBAC."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from support.kubernetes_server.errors import forbidden, unauthorized
from support.kubernetes_server.objects import Json
from support.kubernetes_server.resources import Route

_ALL = frozenset({"*"})


@dataclass(frozen=True)
class Rule:
    """What a PolicyRule allows, in one namespace or (with no namespace) in all."""

    verbs: frozenset[str]
    groups: frozenset[str]
    resources: frozenset[str]
    names: frozenset[str] = frozenset()
    namespace: str = ""

    def allows(self, verb: str, group: str, resource: str, *, namespace: str, name: str) -> bool:
        return (
            bool(self.verbs & {verb, "*"})
            and bool(self.groups & {group, "*"})
            and bool(self.resources & {resource, "*"})
            and (not self.names or name in self.names)
            and (not self.namespace or namespace == self.namespace)
        )

    def policy_rule(self) -> Json:
        found: Json = {"verbs": sorted(self.verbs), "apiGroups": sorted(self.groups)}
        found["resources"] = sorted(self.resources)
        return found | ({"resourceNames": sorted(self.names)} if self.names else {})


ADMIN = Rule(_ALL, _ALL, _ALL)


def rules_of_manifest(rules: Iterable[Json], namespace: str = "") -> list[Rule]:
    """The rules of a Role (with its namespace) or a ClusterRole (without), as a manifest writes them."""
    return [
        Rule(
            frozenset(rule["verbs"]),
            frozenset(rule.get("apiGroups", ())),
            frozenset(rule.get("resources", ())),
            frozenset(rule.get("resourceNames", ())),
            namespace,
        )
        for rule in rules
    ]


@dataclass
class User:
    """A name with the rules that are bound to it."""

    name: str
    groups: list[str] = field(default_factory=lambda: ["system:authenticated"])
    rules: list[Rule] = field(default_factory=list)

    def may(self, verb: str, group: str, resource: str, *, namespace: str, name: str = "") -> bool:
        # Everybody who is known may ask what he may do.
        if group in ("authorization.k8s.io", "authentication.k8s.io") and verb == "create":
            return True
        return any(rule.allows(verb, group, resource, namespace=namespace, name=name) for rule in self.rules)


class Access:
    """The users by their tokens."""

    def __init__(self) -> None:
        self._users: dict[str, User] = {}

    def add(self, token: str, user: User) -> None:
        self._users[token] = user

    def expire(self, token: str) -> None:
        """From now on the token is answered with 401."""
        del self._users[token]

    def user(self, authorization: str) -> User:
        kind, _, token = authorization.partition(" ")
        if kind.lower() != "bearer" or token not in self._users:
            raise unauthorized()
        return self._users[token]


def authorize(user: User, route: Route) -> None:
    """403 in the words of RBAC."""
    resource = route.resource
    asked = f"{resource.plural}/{route.subresource}" if route.subresource else resource.plural
    if user.may(route.verb, resource.group, asked, namespace=route.namespace, name=route.name):
        return
    where = f'in the namespace "{route.namespace}"' if route.namespace else "at the cluster scope"
    said = (
        f'User "{user.name}" cannot {route.verb} resource "{asked}" in API group "{resource.group}" {where}'
    )
    raise forbidden(resource.qualified, route.name, said)


def review_access(user: User, review: Json) -> Json:
    """Answers a SelfSubjectAccessReview."""
    asked = review["spec"].get("resourceAttributes")
    if asked is None:
        path = review["spec"].get("nonResourceAttributes", {}).get("path", "")
        return {"allowed": path in ("/version", "/healthz", "/readyz", "/livez")}
    resource = asked.get("resource", "")
    resource += f"/{asked['subresource']}" if asked.get("subresource") else ""
    group, namespace, name = asked.get("group", ""), asked.get("namespace", ""), asked.get("name", "")
    allowed = user.may(asked.get("verb", ""), group, resource, namespace=namespace, name=name)
    return {"allowed": allowed} | ({"reason": "RBAC: allowed by a rule of the test"} if allowed else {})


def review_rules(user: User, review: Json) -> Json:
    """Answers a SelfSubjectRulesReview."""
    namespace = review["spec"].get("namespace", "")
    rules = [rule.policy_rule() for rule in user.rules if rule.namespace in ("", namespace)]
    return {"resourceRules": rules, "nonResourceRules": [], "incomplete": False}

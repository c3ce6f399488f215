"""Who may do what: the roles and bindings of manifests, as the API server reads them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple


class Wish(NamedTuple):
    """What a request wants. ``name`` is empty for a collection; a fieldSelector on the name gives it one."""

    verb: str
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str


class Roles:
    """Roles and bindings among ``documents``; everything else among them is left alone."""

    def __init__(self, documents: Iterable[dict[str, Any]]) -> None:
        found = [one for one in documents if one]
        self._rules = {
            (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): one.get("rules") or []
            for one in found
            if one["kind"] in {"Role", "ClusterRole"}
        }
        self._bindings = [one for one in found if one["kind"] in {"RoleBinding", "ClusterRoleBinding"}]

    def allow(self, user: str, wish: Wish) -> bool:
        return any(
            _covers(rule, wish)
            for binding in self._bindings
            if any(_name(subject, binding) == user for subject in binding.get("subjects", []))
            for rule in self._find_rules(binding, wish)
        )

    def _find_rules(self, binding: dict[str, Any], wish: Wish) -> list[dict[str, Any]]:
        namespace = binding["metadata"].get("namespace", "")
        if binding["kind"] == "RoleBinding" and wish.namespace != namespace:
            return []
        role = binding["roleRef"]
        return self._rules.get((role["kind"], namespace if role["kind"] == "Role" else "", role["name"]), [])


def _name(subject: dict[str, Any], binding: dict[str, Any]) -> str:
    if subject["kind"] != "ServiceAccount":
        return subject["name"]
    namespace = subject.get("namespace") or binding["metadata"].get("namespace", "")
    return f"system:serviceaccount:{namespace}:{subject['name']}"


def _covers(rule: dict[str, Any], wish: Wish) -> bool:
    resource = f"{wish.resource}/{wish.subresource}" if wish.subresource else wish.resource
    return (
        _has(rule.get("verbs"), wish.verb)
        and _has(rule.get("apiGroups"), wish.group)
        and _has(rule.get("resources"), resource)
        and (not rule.get("resourceNames") or wish.name in rule["resourceNames"])
    )


def _has(allowed: list[str] | None, wanted: str) -> bool:
    return bool(allowed) and ("*" in allowed or wanted in allowed)

"""ValidatingAdmissionPolicies as an API server judges by them, as far as ours go; expressions by Google's own CEL.

What a request looks like and which of its parts an expression sees is in the reference of
``admissionregistration.k8s.io/v1``. Variables are evaluated when they are first used, an expression that fails counts
as ``failurePolicy`` says, which for ours is a refusal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_strings

Object = dict[str, Any]
_SEEN = ("object", "oldObject", "request", "params", "variables")
_ENVIRONMENT = cel.NewEnv(variables=dict.fromkeys(_SEEN, cel.Type.DYN), extensions=[ext_strings.ExtStrings()])


class Refused(Exception):  # noqa: N818 - what the API server says
    """The request is not let through; the text is what the user would read."""


def judge(objects: list[Object], request: Object, *, old: Object | None = None, new: Object | None = None) -> None:
    """Refused if a policy of ``objects`` with its binding refuses the request.

    ``request`` is as policies see it: ``operation``, ``resource`` (group and resource), ``subResource``, ``name``,
    ``userInfo``.
    """
    for binding in _find(objects, "ValidatingAdmissionPolicyBinding"):
        assert binding["spec"]["validationActions"] == ["Deny"]
        (policy,) = (
            found
            for found in _find(objects, "ValidatingAdmissionPolicy")
            if found["metadata"]["name"] == binding["spec"]["policyName"]
        )
        if _is_matched(policy["spec"], request):
            _judge_by(policy["spec"], binding["spec"], objects, {"request": request, "object": new, "oldObject": old})


def _judge_by(policy: Object, binding: Object, objects: list[Object], seen: Object) -> None:
    assert policy["failurePolicy"] == "Fail"
    if not all(_evaluate(one["expression"], seen) is True for one in policy.get("matchConditions", [])):
        return
    if "paramRef" in binding:
        assert binding["paramRef"]["parameterNotFoundAction"] == "Deny"
        seen = {**seen, "params": _find_params(policy, binding["paramRef"], objects)}
    variables = Variables(policy.get("variables", []), seen)
    for validation in policy["validations"]:
        if _evaluate(validation["expression"], seen, variables) is not True:
            raise Refused(validation["message"])


def _find_params(policy: Object, reference: Object, objects: list[Object]) -> Object:
    for found in _find(objects, policy["paramKind"]["kind"]):
        if all(found["metadata"][key] == reference[key] for key in ("name", "namespace")):
            return found
    raise Refused("no params found for policy binding with `Deny` parameterNotFoundAction")


def _is_matched(policy: Object, request: Object) -> bool:
    resource = request["resource"]["resource"]
    if request.get("subResource"):
        resource = f"{resource}/{request['subResource']}"
    return any(
        request["resource"]["group"] in rule["apiGroups"]
        and resource in rule["resources"]
        and request["operation"] in rule["operations"]
        for rule in policy["matchConstraints"]["resourceRules"]
    )


class Variables(Mapping[str, Any]):
    """A policy's variables: none is evaluated that no expression asks for."""

    def __init__(self, written: list[Object], seen: Object) -> None:
        self._written = {one["name"]: one["expression"] for one in written}
        self._seen = seen
        self._known: Object = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._known:
            self._known[name] = _evaluate(self._written[name], self._seen, self)
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._written)

    def __len__(self) -> int:
        return len(self._written)


def _evaluate(expression: str, seen: Object, variables: Variables | None = None) -> Any:
    """The value; Refused if it cannot be told, which names what CEL said."""
    used = {name: variables[name] for name in set(re.findall(r"\bvariables\.(\w+)", expression))} if variables else {}
    value = _compile(expression).eval(data={**dict.fromkeys(_SEEN), **seen, "variables": used})
    if value.type() == cel.Type.ERROR:
        raise Refused(f"expression '{expression}' resulted in error: {value.value()}")
    return value.plain_value()


@cache
def _compile(expression: str) -> Any:
    return _ENVIRONMENT.compile(expression)


def _find(objects: list[Object], kind: str) -> list[Object]:
    return [found for found in objects if found["kind"] == kind]

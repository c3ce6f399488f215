"""The ways to patch an object: merge (RFC 7386), JSON patch (RFC 6902), and what nodes need of strategic merge."""

from __future__ import annotations

import copy
from typing import Any

MERGE = "application/merge-patch+json"
STEPS = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
_KEYS = {"conditions": "type", "taints": "key", "ownerReferences": "uid"}  # lists that are merged by a key


class PatchError(Exception):
    """A patch that does not fit: its status is 422."""


def patch(kind: str, found: dict[str, Any], body: Any) -> dict[str, Any]:
    """A new object. KeyError for a kind of patch that is unknown."""
    return {MERGE: _merge, STEPS: _take_steps, STRATEGIC: _merge_strategic}[kind](copy.deepcopy(found), body)


def _merge(found: Any, body: Any) -> Any:
    if not isinstance(body, dict):
        return body
    merged = dict(found) if isinstance(found, dict) else {}
    for key, value in body.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), value)
    return merged


def _merge_strategic(found: Any, body: Any, key: str = "") -> Any:
    if isinstance(body, list) and key in _KEYS:
        by = _KEYS[key]
        merged = {one[by]: one for one in found or []}
        for one in body:
            if one.get("$patch") == "delete":
                merged.pop(one[by], None)
            else:
                merged[one[by]] = _merge_strategic(merged.get(one[by]), one)
        return list(merged.values())
    if not isinstance(body, dict):
        return body
    result = dict(found) if isinstance(found, dict) else {}
    for name, value in body.items():
        if name.startswith("$"):
            continue
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merge_strategic(result.get(name), value, name)
    return result


def _take_steps(found: Any, steps: Any) -> Any:
    if not isinstance(steps, list):
        raise PatchError("a JSON patch is a list")
    for step in steps:
        found = _take_step(found, step["op"], step["path"], step)
    return found


def _take_step(found: Any, op: str, path: str, step: dict[str, Any]) -> Any:
    names = [name.replace("~1", "/").replace("~0", "~") for name in path.split("/")[1:]]
    if not names:
        raise PatchError("the whole object cannot be replaced")
    parent = found
    for name in names[:-1]:
        parent = _get(parent, name)
    last = names[-1]
    if op == "test":
        if _get(parent, last) != step["value"]:
            raise PatchError(f"testing value {path} failed")
    elif op == "add":
        if isinstance(parent, list):
            parent.insert(len(parent) if last == "-" else int(last), step["value"])
        else:
            parent[last] = step["value"]
    elif op == "remove":
        _get(parent, last)
        del parent[int(last) if isinstance(parent, list) else last]
    elif op == "replace":
        _get(parent, last)
        parent[int(last) if isinstance(parent, list) else last] = step["value"]
    else:
        raise PatchError(f"unknown operation {op}")
    return found


def _get(parent: Any, name: str) -> Any:
    try:
        return parent[int(name)] if isinstance(parent, list) else parent[name]
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise PatchError(f"no value at {name}") from error

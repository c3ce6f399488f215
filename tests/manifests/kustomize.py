"""The part of kustomize that our manifests use, so that they are tested without its binary.

Resources (files and directories), components, strategic merge patches by path (for one object, or all of a kind, or to
take one away), images, replacements of a field by another object's, and the namespace.
Anything else in a kustomization is an error: a test must not pass because something was overlooked.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]

_KNOWN = {"apiVersion", "kind", "namespace", "resources", "components", "patches", "images", "replacements"}
# Lists that Kubernetes merges by a key; every other list is replaced.
_MERGE_KEYS = {
    "containers": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumes": "name",
    "ports": "containerPort",
}


def build(directory: Path) -> list[Object]:
    """The objects of a kustomization, in order."""
    return apply(directory, [])


def apply(directory: Path, objects: list[Object]) -> list[Object]:
    """What a kustomization, or a component, makes of ``objects``: its own beside them, then changed as it says."""
    kustomization = load_one(directory / "kustomization.yaml")
    unknown = set(kustomization) - _KNOWN
    if unknown:
        raise ValueError(f"{directory}: {sorted(unknown)} is not known to this test")
    made = copy.deepcopy(objects)
    for resource in kustomization.get("resources", []):
        path = directory / resource
        added = build(path) if path.is_dir() else load(path)
        assert not {identity(one) for one in added} & {identity(one) for one in made}, "an object is there once"
        made += added
    for component in kustomization.get("components", []):
        made = apply(directory / component, made)
    for patch in kustomization.get("patches", []):
        (change,) = load(directory / patch["path"])
        made = patch_one(made, change, patch.get("target"))
    for image in kustomization.get("images", []):
        name_image(made, **image)
    for replacement in kustomization.get("replacements", []):
        replace(made, **replacement)
    for found in made:
        if "namespace" in kustomization and found["kind"] != "Namespace":
            found["metadata"]["namespace"] = kustomization["namespace"]
    return made


def name_image(objects: list[Object], *, name: str, newName: str, newTag: str) -> None:  # noqa: N803 - kustomize's words
    for container in containers(objects):
        if container["image"] == name:
            container["image"] = f"{newName}:{newTag}"


def replace(objects: list[Object], *, source: Object, targets: list[Object]) -> None:
    """Put a field of one object into those of others, which must all be there."""
    holder, key = find_field(find_named(objects, source["kind"], source["name"]), source["fieldPath"])
    for target in targets:
        chosen = find_named(objects, **target["select"])
        for path in target["fieldPaths"]:
            changed, name = find_field(chosen, path)
            changed[name] = holder[key]


def find_named(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = [one for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def find_field(found: Object, path: str) -> tuple[Object, str]:
    """What holds the field of a path like ``a.[name=b].c``, and its key there, which exists."""
    holder: Any = found
    *words, key = re.findall(r"\[(?:\w+)=(?:[^\]]+)\]|[^.]+", path)
    for word in words:
        if by := re.fullmatch(r"\[(\w+)=(.+)\]", word):
            (holder,) = [item for item in holder if item[by[1]] == by[2]]
        else:
            holder = holder[word]
    assert key in holder, path
    return holder, key


def patch_one(objects: list[Object], change: Object, target: Object | None) -> list[Object]:
    """With a target, which names a kind, all of that kind are changed; without, the one that the change names."""
    if target is not None:
        chosen = [found for found in objects if target == {"kind": found["kind"]}]
        metadata = {name: part for name, part in change["metadata"].items() if name not in {"name", "namespace"}}
        change = {**change, "metadata": metadata}
    else:
        chosen = [found for found in objects if identity(found) == identity(change)]
    assert chosen, "a patch must find its object"
    if change.get("$patch") == "delete":
        return [found for found in objects if found not in chosen]
    return [merge(found, change) if found in chosen else found for found in objects]


def merge(base: Any, change: Any, key: str = "") -> Any:
    """A strategic merge as Kubernetes does it, as far as the lists above go."""
    if isinstance(base, dict) and isinstance(change, dict):
        merged = {name: merge(base[name], change[name], name) if name in change else base[name] for name in base}
        return {**merged, **{name: change[name] for name in change if name not in base}}
    if isinstance(base, list) and isinstance(change, list) and key in _MERGE_KEYS:
        by = _MERGE_KEYS[key]
        gone = {item[by] for item in change if item.get("$patch") == "delete"}
        changes = {item[by]: item for item in change if item[by] not in gone}
        stay = [item for item in base if item[by] not in gone]
        merged_items = [merge(item, changes.pop(item[by])) if item[by] in changes else item for item in stay]
        return [*changes.values(), *merged_items]
    return change


def identity(found: Object) -> tuple[str, str, str, str]:
    metadata = found["metadata"]
    return found["apiVersion"], found["kind"], metadata.get("namespace", ""), metadata["name"]


def load(path: Path) -> list[Object]:
    return [found for found in yaml.load_all(path.read_text(), Loader=yaml.CSafeLoader) if found]


def load_one(path: Path) -> Object:
    (found,) = load(path)
    return found


def containers(objects: list[Object]) -> list[Object]:
    return [container for found in objects for container in pod_spec(found).get("containers", [])]


def pod_spec(found: Object) -> Object:
    if found["kind"] == "Pod":
        return found["spec"]
    return found.get("spec", {}).get("template", {}).get("spec", {})

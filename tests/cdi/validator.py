"""A strict reader of CDI specs, as container runtimes are: written from the contract alone, without nvdp's own code.

``check_spec`` says what is wrong with one document. ``resolve`` does what a runtime does when it creates a container:
it reads directories, later ones first in priority, and merges the edits of the names asked for.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

KNOWN_VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
HOOK_NAMES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")

_VENDOR = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?", re.ASCII)
_DEVICE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?", re.ASCII)


class SpecError(Exception):
    """A document that a runtime refuses, or a name that it does not find."""


@dataclass
class Injected:
    """What a container gets: nodes and mounts by their path in the container, the later edit counts."""

    env: list[str] = field(default_factory=list)
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    mounts: dict[str, dict[str, Any]] = field(default_factory=dict)
    hooks: list[dict[str, Any]] = field(default_factory=list)
    additional_gids: list[int] = field(default_factory=list)

    def append(self, edits: Mapping[str, Any]) -> None:
        self.env += edits.get("env", [])
        self.nodes |= {node["path"]: node for node in edits.get("deviceNodes", [])}
        self.mounts |= {mount["containerPath"]: mount for mount in edits.get("mounts", [])}
        self.hooks += edits.get("hooks", [])
        self.additional_gids += [gid for gid in edits.get("additionalGids", []) if gid not in self.additional_gids]


def load_spec(path: Path) -> dict[str, Any]:
    """The document of one file, checked."""
    return check_spec(parse_document(path.read_bytes(), yaml_text=path.suffix == ".yaml"), where=path.name)


def parse_document(content: bytes, *, yaml_text: bool = False) -> Any:
    try:
        return yaml.safe_load(content) if yaml_text else json.loads(content, object_pairs_hook=_refuse_twins)
    except (ValueError, yaml.YAMLError) as error:
        raise SpecError(f"not a document: {error}") from error


def check_spec(document: Any, where: str = "spec") -> dict[str, Any]:
    """The document, if a runtime takes it. Raises SpecError on the first mistake, with the place."""
    spec = _fields(
        document,
        where,
        needed={"cdiVersion": str, "kind": str, "devices": list},
        optional={"containerEdits": dict, "annotations": dict},
    )
    _check_kind(spec["kind"], f"{where}.kind")
    _require(spec["devices"], f"{where}.devices: at least one")
    for number, device in enumerate(spec["devices"]):
        _check_device(device, f"{where}.devices[{number}]")
    twins = [name for name, count in Counter(device["name"] for device in spec["devices"]).items() if count > 1]
    _require(not twins, f"{where}.devices: {twins} more than once")
    _check_annotations(spec.get("annotations", {}), f"{where}.annotations")
    _check_edits(spec.get("containerEdits", {}), f"{where}.containerEdits")
    _require(spec["cdiVersion"] in KNOWN_VERSIONS, f"{where}.cdiVersion: {spec['cdiVersion']!r} is not known")
    needed = find_minimum_version(spec)
    enough = _order(spec["cdiVersion"]) >= _order(needed)
    _require(enough, f"{where}.cdiVersion: {spec['cdiVersion']} is below {needed}, which its fields need")
    return spec


def find_minimum_version(spec: Mapping[str, Any]) -> str:
    """The lowest version that has all of the fields that the document uses."""
    edits = [spec.get("containerEdits", {}), *(device["containerEdits"] for device in spec["devices"])]
    nodes = [node for one in edits for node in one.get("deviceNodes", [])]
    mounts = [mount for one in edits for mount in one.get("mounts", [])]
    uses = {
        "1.1.0": any("netDevices" in one for one in edits),
        "0.7.0": any("additionalGids" in one or "intelRdt" in one for one in edits),
        "0.6.0": any("annotations" in one for one in (spec, *spec["devices"])) or "." in spec["kind"].partition("/")[2],
        "0.5.0": any("hostPath" in node for node in nodes) or any(d["name"][0].isdigit() for d in spec["devices"]),
        "0.4.0": any("type" in mount for mount in mounts),
    }
    return next((version for version, used in uses.items() if used), "0.3.0")


def load_names(*directories: Path) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """(spec, device) of each full name that can be used.

    ``directories`` go from the lowest priority to the highest (``/etc/cdi``, ``/var/run/cdi``). A file that is refused
    gives no names; a name that two files of one directory have is of no use at all.
    """
    usable: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    for directory in directories:
        found: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {}
        for path in sorted(directory.iterdir()) if directory.is_dir() else ():
            if path.suffix not in (".json", ".yaml"):
                continue
            try:
                spec = load_spec(path)
            except SpecError:
                continue
            for device in spec["devices"]:
                found.setdefault(f"{spec['kind']}={device['name']}", []).append((spec, device))
        usable = {name: one for name, one in usable.items() if name not in found}
        usable |= {name: ones[0] for name, ones in found.items() if len(ones) == 1}
    return usable


def resolve(names: Iterable[str], *directories: Path) -> Injected:
    """What a container that is given these full names gets. Raises SpecError if one of them is not found."""
    usable = load_names(*directories)
    injected, applied = Injected(), []
    for name in names:
        if name not in usable:
            raise SpecError(f"unresolvable CDI device {name}")
        spec, device = usable[name]
        if not any(spec is one for one in applied):
            applied.append(spec)
            injected.append(spec.get("containerEdits", {}))
        injected.append(device["containerEdits"])
    return injected


def _check_kind(kind: str, where: str) -> None:
    vendor, slash, cdi_class = kind.partition("/")
    _require(slash and _VENDOR.fullmatch(vendor) and len(vendor) <= 253, f"{where}: vendor of {kind!r}")
    _require(_VENDOR.fullmatch(cdi_class) and len(cdi_class) <= 63, f"{where}: class of {kind!r}")


def _check_device(device: Any, where: str) -> None:
    _fields(device, where, needed={"name": str, "containerEdits": dict}, optional={"annotations": dict})
    _require(_DEVICE.fullmatch(device["name"]), f"{where}.name: {device['name']!r}")
    _check_annotations(device.get("annotations", {}), f"{where}.annotations")
    _require(any(device["containerEdits"].values()), f"{where}.containerEdits: empty")
    _check_edits(device["containerEdits"], f"{where}.containerEdits")


def _check_annotations(annotations: Mapping[str, Any], where: str) -> None:
    _require(all(isinstance(value, str) for value in annotations.values()), f"{where}: values are texts")


def _check_edits(edits: Mapping[str, Any], where: str) -> None:
    lists = dict.fromkeys(("env", "deviceNodes", "mounts", "hooks", "additionalGids", "netDevices"), list)
    _fields(edits, where, optional={**lists, "intelRdt": dict})
    checks: Mapping[str, Callable[[Any, str], None]] = {
        "env": _check_env,
        "deviceNodes": _check_node,
        "mounts": _check_mount,
        "hooks": _check_hook,
        "additionalGids": _check_gid,
    }
    for key, check in checks.items():
        for number, one in enumerate(edits.get(key, [])):
            check(one, f"{where}.{key}[{number}]")


def _check_env(env: Any, where: str) -> None:
    _require(isinstance(env, str) and env.partition("=")[1] and env.partition("=")[0], f"{where}: {env!r}")


def _check_node(node: Any, where: str) -> None:
    numbers = dict.fromkeys(("major", "minor", "fileMode", "uid", "gid"), int)
    _fields(node, where, needed={"path": str}, optional={"hostPath": str, "type": str, "permissions": str, **numbers})
    _check_path(node["path"], f"{where}.path")
    _check_path(node.get("hostPath", node["path"]), f"{where}.hostPath")
    _require(node.get("type", "c") in tuple("bcup"), f"{where}.type: {node.get('type')!r}")
    permissions = node.get("permissions", "rwm")
    _require(permissions and set(permissions) <= set("rwm"), f"{where}.permissions: {permissions!r}")
    for key in numbers:
        _require(node.get(key, 0) >= 0, f"{where}.{key}: {node.get(key)}")


def _check_mount(mount: Any, where: str) -> None:
    _fields(mount, where, needed={"hostPath": str, "containerPath": str}, optional={"options": list, "type": str})
    _check_path(mount["hostPath"], f"{where}.hostPath")
    _check_path(mount["containerPath"], f"{where}.containerPath")
    _require(all(isinstance(one, str) and one for one in mount.get("options", [])), f"{where}.options")


def _check_hook(hook: Any, where: str) -> None:
    _fields(hook, where, needed={"hookName": str, "path": str}, optional={"args": list, "env": list, "timeout": int})
    _require(hook["hookName"] in HOOK_NAMES, f"{where}.hookName: {hook['hookName']!r}")
    _check_path(hook["path"], f"{where}.path")
    _require(all(isinstance(one, str) for one in hook.get("args", [])), f"{where}.args: texts")
    _require(hook.get("timeout", 1) > 0, f"{where}.timeout: {hook.get('timeout')}")
    for env in hook.get("env", []):
        _check_env(env, f"{where}.env")


def _check_gid(gid: Any, where: str) -> None:
    _require(type(gid) is int and gid > 0, f"{where}: {gid!r}")


def _check_path(path: str, where: str) -> None:
    """Absolute and plain: what a runtime joins or stats must mean what it says."""
    plain = path == str(PurePosixPath(path)) and ".." not in PurePosixPath(path).parts
    _require(path.startswith("/") and not path.startswith("//") and plain and "\0" not in path, f"{where}: {path!r}")


def _fields(
    value: Any, where: str, *, needed: Mapping[str, type] | None = None, optional: Mapping[str, type] | None = None
) -> dict[str, Any]:
    """The object, if it has what it must have and nothing that no reader knows, each of its type."""
    needed, optional = needed or {}, optional or {}
    _require(isinstance(value, dict), f"{where}: not an object")
    missing, unknown = set(needed) - set(value), set(value) - set(needed) - set(optional)
    _require(not missing, f"{where}: {sorted(missing)} missing")
    _require(not unknown, f"{where}: {sorted(unknown)} unknown")
    for key, kind in {**needed, **optional}.items():
        _require(key not in value or type(value[key]) is kind, f"{where}.{key}: not of type {kind.__name__}")
    return value


def _refuse_twins(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    twins = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
    if twins:
        raise ValueError(f"{twins} more than once in one object")
    return dict(pairs)


def _order(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _require(condition: object, text: str) -> None:
    if not condition:
        raise SpecError(text)

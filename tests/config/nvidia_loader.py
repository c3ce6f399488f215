"""A model of what NVIDIA's plugin makes of a file: the other side of ``config check --target nvidia``.

It decodes and validates as that plugin does, up to which resources it would share, how, and under which name.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import yaml

GPU = "nvidia.com/gpu"
_LABEL = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_UUID = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_DEVICE = rf"[0-9]+(:[0-9]+)?|(GPU|MIG)-{_UUID}|MIG-GPU-{_UUID}/[0-9]+/[0-9]+"
_GO_DURATION = r"([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)"


class RefusedError(Exception):
    """It does not start, or offers nothing."""


class Shared(NamedTuple):
    mode: str
    name: str
    replicas: int
    refuses_several: bool


def load(text: str) -> dict[str, Shared]:
    """What is shared, by the resource that the devices have without sharing."""
    file = yaml.safe_load(text) or {}
    flags, imex = file.get("flags") or {}, file.get("imex") or {}
    for rules in (file.get("resources") or {}).values():
        for rule in rules or ():
            _require(isinstance(rule["pattern"], str))
            _read_name(rule["name"])
    _check_interval((flags.get("gfd") or {}).get("sleepInterval"))
    _require((imex.get("channelIDs") or []) in ([], [0]))
    sharing = file.get("sharing") or {}
    blocks = {mode: [*_read_block(mode, sharing[mode])] for mode in ("timeSlicing", "mps") if sharing.get(mode)}
    shared: dict[str, Shared] = {}
    for name, entry in blocks.get("mps", blocks.get("timeSlicing", ())):
        if name not in shared or shared[name].replicas < entry.replicas:
            shared[name] = entry
    if "mps" in blocks:
        _require(flags.get("migStrategy") in (None, "none"))  # single: where a node has MIG devices
        _require(GPU in shared)
        _require(all(entry.replicas <= 48 for entry in shared.values()))
    return shared


def _require(fact) -> None:
    if not fact:
        raise RefusedError


def _check_interval(interval: Any) -> None:
    if isinstance(interval, str):
        _require(interval in {"infinite", "0"} or re.fullmatch(rf"({_GO_DURATION})+", interval) is not None)


def _read_block(mode: str, block: dict[str, Any]):
    default = mode == "mps"
    refuses = block.get("failRequestsGreaterThanOne", default)
    for entry in block["resources"]:
        name = _read_name(entry["name"])
        if "rename" in entry:
            _read_name(entry["rename"])
        _check_devices(entry.get("devices", "all"))
        _require(entry["replicas"] >= 2)
        final = f"{name}.shared" if block.get("renameByDefault") else name
        yield name, Shared(mode, final, entry["replicas"], refuses)


def _read_name(name: Any) -> str:
    _require(isinstance(name, str))
    full = name if name.startswith("nvidia.com/") else f"nvidia.com/{name}"
    _require(re.fullmatch(rf"nvidia\.com/{_LABEL}(\.{_LABEL})*", full) is not None)
    return full


def _check_devices(devices: Any) -> None:
    if isinstance(devices, list):
        _require(all(isinstance(it, int) or re.fullmatch(_DEVICE, it) for it in devices))
    else:
        _require(devices == "all" or devices > 0)

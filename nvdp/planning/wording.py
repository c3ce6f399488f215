"""How devices and pods are named in what is told of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from nvdp.model.reasons import Reason
from nvdp.planning.devices import Device

_MAX_NAMED = 5  # devices or pods in one sentence


class Announcement(msgspec.Struct, frozen=True):
    """One log line: its reason, its sentence and its fields."""

    reason: Reason
    text: str
    fields: Mapping[str, object] = {}


def name_device(uuid: str, device: Device | None) -> str:
    """A device in full: ``GPU-… (index 3, 0000:47:00.0)``; its UUID alone if it is not there."""
    if device is None:
        return uuid
    facts = [f"index {device.index}", device.pci, device.instance.profile if device.instance is not None else None]
    return f"{uuid} ({', '.join(filter(None, facts))})"


def list_fields(device: Device | None) -> dict[str, object]:
    """The fields of a log line that say where a device is. ``index`` is a number for a GPU, as nvidia-smi has it."""
    if device is None:
        return {}
    index = device.gpu.index if device.instance is None else device.index
    return {"index": index, "pci": device.pci or ""}


def join_some(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    rest = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")

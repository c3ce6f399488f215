"""What a diagnosis consists of, and how it names devices, pods and moments."""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Sequence
from typing import Final

import msgspec

from nvdp.model.status import DeviceStatus

_MAX_NAMED: Final = 5  # GPUs or pods in one sentence


class Gravity(enum.IntEnum):
    """The gravest first. NOTE is as the file wants it, takes care of itself, or cannot be otherwise."""

    NOT_READY = 1
    DEGRADED = 2
    NOTE = 3


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """``reason`` is one word of the vocabulary, ``cause`` what is wrong with what, ``remedy`` what to do about it."""

    reason: str
    gravity: Gravity
    cause: str
    remedy: str


def describe_moment(wall: float) -> str:
    """UTC, RFC 3339, in seconds."""
    return dt.datetime.fromtimestamp(wall, dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def join_some(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    rest = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def name_devices(devices: Sequence[DeviceStatus]) -> str:
    """One device in full; several by NVML's index, as nvidia-smi has it. A GPU stands for its MIG devices."""
    gpus = {device.uuid for device in devices}
    told = [device for device in devices if device.parent_uuid not in gpus]
    if len(told) == 1:
        (device,) = told
        facts = ", ".join(filter(None, [device.uuid, device.pci]))
        return f"{'MIG device' if device.parent_uuid else 'GPU'} {device.place} ({facts})"
    kinds = (
        ("GPUs", [one for one in told if not one.parent_uuid]),
        ("MIG devices", [one for one in told if one.parent_uuid]),
    )
    return " and ".join(f"{kind} {join_some([one.place for one in some])}" for kind, some in kinds if some)


def list_indices(devices: Sequence[DeviceStatus]) -> str:
    """The GPUs as nvidia-smi takes them: ``1,3``."""
    return ",".join(dict.fromkeys(str(device.index) for device in devices))

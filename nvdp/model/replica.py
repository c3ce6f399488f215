"""Device IDs as the kubelet knows them: ``GPU-<uuid>``, or ``GPU-<uuid>::<n>`` for a replica (NVIDIA's format).

WSL2 and Tegra systems have one device, ``all`` or ``tegra``.
"""

from __future__ import annotations

import re

import msgspec

from nvdp.model.platforms import TEGRA_UUID, WSL_UUID

# Any name that begins as NVML's do: a library may spell UUIDs as it likes, and what pods have from a predecessor must
# stay listed however that was named. A list has room for less than a hundred thousand replicas, and a longer number may
# be one that Python refuses to read.
_ID = re.compile(
    rf"(?P<uuid>(?:GPU|MIG)-[\w./-]{{1,120}}|{WSL_UUID}|{TEGRA_UUID})(?:::(?P<number>0|[1-9][0-9]{{0,5}}))?", re.ASCII
)


class ReplicaId(msgspec.Struct, frozen=True, order=True):
    """A device ID taken apart. ``number`` is None for an unshared device."""

    device: str
    number: int | None = None

    def __str__(self) -> str:
        return self.device if self.number is None else f"{self.device}::{self.number}"


def parse_replica_id(text: str) -> ReplicaId | None:
    """An ID in NVIDIA's format, or None: what plugins of other devices call theirs is none of our business."""
    match = _ID.fullmatch(text)
    if match is None:
        return None
    number = match["number"]
    return ReplicaId(match["uuid"], None if number is None else int(number))

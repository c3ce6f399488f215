"""Device IDs as the kubelet knows them: ``GPU-<uuid>``, or ``GPU-<uuid>::<n>`` for a replica (NVIDIA's format)."""

from __future__ import annotations

import re

import msgspec

# A list has room for less than a hundred thousand replicas, and a longer number may be one that Python refuses to read.
_ID = re.compile(
    r"(?P<uuid>(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:::(?P<number>0|[1-9][0-9]{0,5}))?"
)


class ReplicaId(msgspec.Struct, frozen=True, order=True):
    """A device ID taken apart. ``number`` is None for an unshared device."""

    device: str
    number: int | None = None

    def __str__(self) -> str:
        return self.device if self.number is None else f"{self.device}::{self.number}"


def parse_replica_id(text: str) -> ReplicaId | None:
    """An ID in our own format, or None: IDs of other plugins have other formats and are none of our business."""
    match = _ID.fullmatch(text)
    if match is None:
        return None
    number = match["number"]
    return ReplicaId(match["uuid"], None if number is None else int(number))

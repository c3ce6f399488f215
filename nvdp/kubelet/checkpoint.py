"""Which pod holds which device, as the kubelet's own checkpoint says: the substitute where PodResources cannot be read.

Source: the kubelet contract, A.12. Read-only. The checksum cannot be verified outside of Go, so the file's shape is
what is checked. Pods that are gone may stand in it until the kubelet writes it again: they count as holders, which is
the safe side.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from nvdp.errors import HostError
from nvdp.model.held import Holding

SIZE_LIMIT_BYTES = 32 * 1024 * 1024


class _Entry(msgspec.Struct, frozen=True, rename="pascal"):
    """``device_ids`` is by NUMA node since 1.20, and a plain list before."""

    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    device_ids: dict[str, list[str] | None] | list[str] | None = msgspec.field(name="DeviceIDs")


class _Data(msgspec.Struct, frozen=True, rename="pascal"):
    pod_device_entries: list[_Entry] | None


class _Checkpoint(msgspec.Struct, frozen=True, rename="pascal"):
    data: _Data


def parse_checkpoint(data: bytes) -> tuple[Holding, ...]:
    """All device IDs that pods hold, sorted, each once per container. Raises HostError if it is no such file."""
    try:
        entries = msgspec.json.decode(data, type=_Checkpoint).data.pod_device_entries or []
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HostError(f"not a checkpoint of the kubelet: {error}") from error
    return tuple(
        sorted(
            {
                Holding(
                    resource=entry.resource_name,
                    device_id=device_id,
                    namespace="",
                    pod=entry.pod_uid,
                    container=entry.container_name,
                )
                for entry in entries
                for device_id in _device_ids(entry)
            }
        )
    )


def load_checkpoint(path: Path) -> tuple[Holding, ...]:
    """Read and parse. Raises HostError in one line that names the file; blocks as long as the disk does."""
    try:
        with open(path, "rb", opener=_open) as file:
            data = file.read(SIZE_LIMIT_BYTES + 1)
    except OSError as error:
        raise HostError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > SIZE_LIMIT_BYTES:
        raise HostError(f"{path}: larger than {SIZE_LIMIT_BYTES >> 20} MiB, which no kubelet writes")
    try:
        return parse_checkpoint(data)
    except HostError as error:
        raise HostError(f"{path}: {error}") from error


def _open(path: str, flags: int) -> int:
    """Whatever lies there: never block, and never follow a link out of the kubelet's directory."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def _device_ids(entry: _Entry) -> set[str]:
    if isinstance(entry.device_ids, dict):
        return {device_id for ids in entry.device_ids.values() for device_id in ids or ()}
    return set(entry.device_ids or ())

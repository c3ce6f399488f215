"""Which pod holds which device, and which are offered, as the kubelet's own checkpoint says: the substitute where
PodResources cannot be read.

Source: the kubelet contract, A.12. Read-only. The checksum cannot be verified outside of Go, so the file's shape is
what is checked. Pods that are gone may stand in it until the kubelet writes it again: they count as holders, which is
the safe side.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from nvdp.errors import HostError
from nvdp.model.held import Holding, merge_holdings

CHECKPOINT_NAME = "kubelet_internal_checkpoint"
"""Of the file, in the directory of the kubelet's registration socket."""
SIZE_LIMIT_BYTES = 32 * 1024 * 1024
_Parsed = TypeVar("_Parsed")


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


class _RegisteredData(msgspec.Struct, frozen=True, rename="pascal"):
    registered_devices: dict[str, list[str] | None] | None


class _Registered(msgspec.Struct, frozen=True, rename="pascal"):
    """The same file, read for its other half: what is wrong with one is no fault of the other."""

    data: _RegisteredData


def parse_checkpoint(data: bytes) -> tuple[Holding, ...]:
    """All device IDs that pods hold, sorted, each once per container. Raises HostError if it is no such file."""
    entries = _decode(data, _Checkpoint).data.pod_device_entries or []
    return merge_holdings(
        Holding(
            resource=entry.resource_name,
            device_id=device_id,
            namespace="",
            pod=entry.pod_uid,
            container=entry.container_name,
            numa_node=numa_node,
        )
        for entry in entries
        for numa_node, device_ids in _by_node(entry)
        for device_id in device_ids
    )


def parse_registered(data: bytes) -> dict[str, frozenset[str]]:
    """The IDs that were Healthy when it was written, by resource. Raises HostError if it is no such file."""
    registered = _decode(data, _Registered).data.registered_devices or {}
    return {resource: frozenset(device_ids or ()) for resource, device_ids in registered.items()}


def load_checkpoint(path: Path) -> tuple[Holding, ...]:
    """Read, and ``parse_checkpoint``. Raises HostError in one line that names the file; blocks as long as the disk."""
    return _load(path, parse_checkpoint)


def load_registered(path: Path) -> dict[str, frozenset[str]]:
    """Read, and ``parse_registered``. Raises HostError in one line that names the file; blocks as long as the disk."""
    return _load(path, parse_registered)


def _load(path: Path, parse: Callable[[bytes], _Parsed]) -> _Parsed:
    try:
        with open(path, "rb", opener=_open) as file:
            data = file.read(SIZE_LIMIT_BYTES + 1)
    except OSError as error:
        raise HostError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > SIZE_LIMIT_BYTES:
        raise HostError(f"{path}: larger than {SIZE_LIMIT_BYTES >> 20} MiB, which no kubelet writes")
    try:
        return parse(data)
    except HostError as error:
        raise HostError(f"{path}: {error}") from error


def _decode(data: bytes, kind: type[_Parsed]) -> _Parsed:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HostError(f"not a checkpoint of the kubelet: {error}") from error


def _open(path: str, flags: int) -> int:
    """Whatever lies there: never block, and never follow a link out of the kubelet's directory."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def _by_node(entry: _Entry) -> Iterator[tuple[int | None, Sequence[str]]]:
    """Device IDs by NUMA node; None is where the kubelet counts a device on none."""
    if not isinstance(entry.device_ids, dict):
        yield None, entry.device_ids or ()
        return
    for node, device_ids in entry.device_ids.items():
        yield (int(node) if node.isdecimal() else None), device_ids or ()

"""The kubelet's checkpoint file, written and read as the kubelet does (the kubelet contract, A.12).

Only the checksum is of another kind: the kubelet's is over a Go value's printed form. It serves the same purpose: a
file that somebody changed is damaged.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from google.protobuf.message import DecodeError

from nvdp.kubelet.proto import deviceplugin_v1beta1_pb2 as deviceplugin
from nvdp.simulate.kubelet.podtable import Given, PodTable, Slot


class CheckpointDamagedError(Exception):
    """The file is there and cannot be used: the kubelet goes on with no allocations known."""


class Checkpoint(msgspec.Struct, frozen=True):
    """What survives a kubelet. ``registered`` are the Healthy IDs by resource."""

    pods: PodTable
    registered: Mapping[str, tuple[str, ...]]


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Replace the file, atomically, by way of a temporary file beside it."""
    data = {
        "PodDeviceEntries": [
            {
                "PodUID": slot.pod_uid,
                "ContainerName": slot.container,
                "ResourceName": slot.resource,
                "DeviceIDs": {str(node): list(devices) for node, devices in given.by_node.items()},
                "AllocResp": base64.b64encode(given.response.SerializeToString()).decode(),
            }
            for slot, given in checkpoint.pods
        ],
        "RegisteredDevices": {resource: list(ids) for resource, ids in checkpoint.registered.items()},
    }
    encoded = msgspec.json.encode(data)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(b'{"Data":%b,"Checksum":%d}' % (encoded, zlib.crc32(encoded)))
    temporary.replace(path)


def read_checkpoint(path: Path) -> Checkpoint | None:
    """None if there is no file. Raise CheckpointDamagedError if it is not as it was written."""
    try:
        content: Any = msgspec.json.decode(path.read_bytes())
        data = content["Data"]
        if content["Checksum"] != zlib.crc32(msgspec.json.encode(data)):
            raise CheckpointDamagedError("checkpoint is corrupted")
        entries = {
            Slot(entry["PodUID"], entry["ContainerName"], entry["ResourceName"]): Given(
                {int(node): tuple(devices) for node, devices in entry["DeviceIDs"].items()},
                deviceplugin.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"])),
            )
            for entry in data["PodDeviceEntries"]
        }
        registered = {resource: tuple(ids) for resource, ids in data["RegisteredDevices"].items()}
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, DecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointDamagedError(str(error)) from error
    return Checkpoint(PodTable(entries), registered)

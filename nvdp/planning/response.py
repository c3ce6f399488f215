"""What a container gets for the devices that the kubelet chose: the answer to Allocate.

A pure function of the request and of the list last sent, in values of our own; the protocol's messages are made from
them at the edge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from nvdp.errors import AllocationError
from nvdp.model.listing import DeviceIDStrategy, DeviceListStrategy, DeviceNode, GpuFacts, ListedDevice, ResourceList

VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
# What the NVIDIA runtime looks for: the variable names this directory, and each mount point in it names a device.
VOLUME_MOUNT_ROOT: Final = "/var/run/nvidia-container-devices"
_MAX_NAMED = 3  # IDs in an error text: enough to search for, short enough for a pod's status


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """A bind mount for a container; never read-only, as NVIDIA's."""

    container_path: str
    host_path: str


class ContainerAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """What is put into one container. Each variable and each path is there once."""

    envs: Mapping[str, str] = {}
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()


def build_allocation(listed: ResourceList, device_ids: Sequence[str]) -> ContainerAllocation:
    """The container's share, in the order of the list whatever the order asked in; an ID named twice counts once.

    Raises AllocationError, in one line for the pod's status, if an ID is not listed or is Unhealthy, if none is asked,
    if several are asked where one is allowed, or two of one GPU where they must be of different ones.
    """
    gpus = _pick_gpus(listed, _check_request(listed, device_ids))
    facts = listed.facts
    by_uuid = facts.device_id_strategy is DeviceIDStrategy.UUID
    names = [gpu.uuid if by_uuid else gpu.index for gpu in gpus]

    envs = dict(facts.feature_envs)
    mounts: tuple[Mount, ...] = ()
    if DeviceListStrategy.ENVVAR in facts.device_list_strategies:
        envs[VISIBLE_DEVICES] = ",".join(names)
    if DeviceListStrategy.VOLUME_MOUNTS in facts.device_list_strategies:
        # With both, the variable names the directory: the runtime then believes the mounts, which a pod cannot fake.
        envs[VISIBLE_DEVICES] = VOLUME_MOUNT_ROOT
        mounts = tuple(Mount(container_path=f"{VOLUME_MOUNT_ROOT}/{name}", host_path="/dev/null") for name in names)
    nodes: tuple[DeviceNode, ...] = ()
    if facts.pass_device_specs:
        candidates = [*facts.control_nodes, *(node for gpu in gpus for node in gpu.nodes)]
        nodes = tuple({node.container_path: node for node in candidates}.values())
    return ContainerAllocation(envs=envs, mounts=mounts, devices=nodes)


def _check_request(listed: ResourceList, device_ids: Sequence[str]) -> list[ListedDevice]:
    """The devices asked, each once; refuses what must be refused."""
    asked = sorted(set(device_ids))
    name = listed.resource
    if not asked:
        raise AllocationError(f"{name}: no device asked; a request names at least one", reason="unknown_device")
    unknown = [text for text in asked if text not in listed.by_id]
    if unknown:
        raise AllocationError(
            f"{name}: {_name_some(unknown)} not on this node's list; the list changed, or the request is not ours",
            reason="unknown_device",
        )
    devices = [listed.by_id[text] for text in asked]
    for device in devices:
        if device.cause is not None:
            raise AllocationError(
                f"{name}: {device.id} is Unhealthy ({device.cause.value}{': ' if device.text else ''}{device.text})",
                reason="unhealthy",
            )
    facts = listed.facts
    if facts.single_replica_key and len(devices) > 1:
        raise AllocationError(
            f"{name}: {len(devices)} asked, 1 allowed ({facts.single_replica_key})", reason="too_many"
        )
    gpus = {device.gpu_uuid for device in devices}
    if facts.distinct_gpus_key and len(gpus) < len(devices):
        raise AllocationError(
            f"{name}: {len(devices)} asked, and only {len(gpus)} different {'GPU' if len(gpus) == 1 else 'GPUs'} free "
            f"to give them ({facts.distinct_gpus_key})",
            reason="not_distinct",
        )
    return devices


def _pick_gpus(listed: ResourceList, devices: Sequence[ListedDevice]) -> list[GpuFacts]:
    """The facts of the GPUs concerned, each once, in list order."""
    wanted = {device.gpu_uuid for device in devices}
    facts = {gpu.uuid: gpu for gpu in listed.facts.gpus}
    return [facts[uuid] for uuid in listed.healthy_by_gpu if uuid in wanted]


def _name_some(ids: Sequence[str]) -> str:
    """``GPU-a, GPU-b and 4 more are``, as the subject of a sentence."""
    shown = [(text if text.isprintable() else ascii(text))[:80] for text in ids[:_MAX_NAMED]]
    rest = len(ids) - len(shown)
    names = ", ".join(shown) + (f" and {rest} more" if rest else "")
    return f"{names} {'is' if len(ids) == 1 else 'are'}"

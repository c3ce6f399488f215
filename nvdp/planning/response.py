"""What a container gets for the devices that the kubelet chose: the answer to Allocate.

A pure function of the request and of the list last sent, in values of our own; the protocol's messages are made from
them at the edge.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from nvdp.errors import AllocationError
from nvdp.model.cdi import CdiClass, qualify
from nvdp.model.listing import (
    DeviceIDStrategy,
    DeviceListStrategy,
    DeviceNode,
    GpuFacts,
    ListedDevice,
    MpsFacts,
    MpsShare,
    ResourceList,
)

PIPE_DIRECTORY: Final = "CUDA_MPS_PIPE_DIRECTORY"
THREAD_PERCENTAGE: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
MEMORY_LIMIT: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
IMEX_CHANNELS: Final = "NVIDIA_IMEX_CHANNELS"
# What the NVIDIA runtime looks for: the variable names this directory, and each mount point in it names a device.
VOLUME_MOUNT_ROOT: Final = "/var/run/nvidia-container-devices"
# NVIDIA's, followed by an identifier: 57 of the 63 characters that a key may have after its prefix.
ANNOTATION_NAME: Final = "nvidia-device-plugin_"
_ANNOTATION_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_URL, "nvidia-device-plugin")
_SHM: Final = "/dev/shm"  # noqa: S108 - the container's, which must be the one of the daemon's servers
_ALL: Final = 100
_MAX_NAMED = 3  # IDs in an error text: enough to search for, short enough for a pod's status


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """A bind mount for a container; never read-only, as NVIDIA's."""

    container_path: str
    host_path: str


class ContainerAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """What is put into one container. Each variable, path, annotation and full CDI name is there once."""

    envs: Mapping[str, str] = {}
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: Mapping[str, str] = {}
    cdi_devices: tuple[str, ...] = ()


def build_allocation(listed: ResourceList, device_ids: Sequence[str]) -> ContainerAllocation:
    """The container's share, in the order of the list whatever the order asked in; an ID named twice counts once.

    Raises AllocationError, in one line for the pod's status, if an ID is not listed or is Unhealthy, if none is asked,
    if several are asked where one is allowed, or two of one GPU where they must be of different ones, or the other way
    round.
    """
    asked = _check_request(listed, device_ids)
    gpus = _pick_gpus(listed, asked)
    facts = listed.facts
    by_uuid = facts.device_id_strategy is DeviceIDStrategy.UUID
    names = [gpu.uuid if by_uuid else gpu.index for gpu in gpus]

    envs = dict(facts.feature_envs)
    mounts: tuple[Mount, ...] = ()
    if facts.mps is not None:
        envs |= _build_mps_envs(facts.mps, asked)
        mounts = (
            Mount(container_path=facts.mps.client_pipe, host_path=facts.mps.host_pipe),
            Mount(container_path=_SHM, host_path=facts.mps.host_shm),
        )
    if DeviceListStrategy.ENVVAR in facts.device_list_strategies:
        envs[VISIBLE_DEVICES] = ",".join(names)
        if facts.imex_channels:
            envs[IMEX_CHANNELS] = ",".join(map(str, facts.imex_channels))
    if DeviceListStrategy.VOLUME_MOUNTS in facts.device_list_strategies:
        # With both, the variable names the directory: the runtime then believes the mounts, which a pod cannot fake.
        envs[VISIBLE_DEVICES] = VOLUME_MOUNT_ROOT
        places = (*names, *(f"imex/{channel}" for channel in facts.imex_channels))
        mounts += tuple(Mount(container_path=f"{VOLUME_MOUNT_ROOT}/{place}", host_path="/dev/null") for place in places)
    nodes: tuple[DeviceNode, ...] = ()
    if facts.pass_device_specs:
        candidates = [*facts.control_nodes, *(node for gpu in gpus for node in gpu.nodes), *facts.imex_nodes]
        nodes = tuple({node.container_path: node for node in candidates}.values())
    cdi_names: tuple[str, ...] = ()
    if facts.uses_cdi:
        cdi_names = (*(qualify(CdiClass.GPU, name) for name in names), *facts.cdi_extras)
    # The kubelet makes annotations of the field as well: with both, runtimes would inject everything twice.
    by_field = DeviceListStrategy.CDI_CRI in facts.device_list_strategies
    annotations: Mapping[str, str] = {}
    if cdi_names and not by_field:
        identifier = _identify(listed, asked)
        annotations = build_annotations(cdi_names, prefix=facts.cdi_annotation_prefix, identifier=identifier)
    return ContainerAllocation(
        envs=envs,
        mounts=mounts,
        devices=nodes,
        annotations=annotations,
        cdi_devices=cdi_names if by_field else (),
    )


def build_annotations(cdi_names: Sequence[str], *, prefix: str, identifier: str) -> dict[str, str]:
    """One annotation with all names, none without any. ``prefix`` ends in a slash."""
    return {f"{prefix}{ANNOTATION_NAME}{identifier}": ",".join(cdi_names)} if cdi_names else {}


def _identify(listed: ResourceList, asked: Sequence[ListedDevice]) -> str:
    """What tells the annotations of one container apart, of which the kubelet keeps one for each key.

    NVIDIA's plugin throws dice for it; made of the request, it is the same for the same question.
    """
    return str(uuid.uuid5(_ANNOTATION_NAMESPACE, "\n".join((listed.resource, *(device.id for device in asked)))))


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
    if facts.mps is not None and facts.mps.one_gpu_key and len(gpus) > 1:
        raise AllocationError(
            f"{name}: {len(devices)} asked, and they are of {len(gpus)} different GPUs; under MPS a container gets "
            f"several of one GPU only ({facts.mps.one_gpu_key})",
            reason="too_many",
        )
    return devices


def _build_mps_envs(mps: MpsFacts, asked: Sequence[ListedDevice]) -> dict[str, str]:
    """How the container finds its daemon, and its limits where they are below what the daemon gives to any client.

    They hold for each process of the container, and a container that unsets them has what the daemon gives.
    """
    envs = {PIPE_DIRECTORY: mps.client_pipe}
    counts = Counter(device.gpu_uuid for device in asked)
    shares = {uuid: mps.shares[uuid] for uuid in counts if uuid in mps.shares}
    if not shares:
        return envs
    percent = min(_ALL, *(share.thread_percent * counts[uuid] for uuid, share in shares.items()))
    if percent < (_ALL if mps.most_percent is None else mps.most_percent):
        envs[THREAD_PERCENTAGE] = str(percent)
    limits = {uuid: mib for uuid, share in shares.items() if (mib := _narrow_memory(share, counts[uuid])) is not None}
    if limits:
        envs[MEMORY_LIMIT] = ",".join(f"{uuid}={mib}M" for uuid, mib in limits.items())
    return envs


def _narrow_memory(share: MpsShare, count: int) -> int | None:
    """The MiB that so many shares come to, if the daemon gives more."""
    if share.memory_mib is None:
        return None
    mib = share.memory_mib * count
    most = min((one for one in (share.most_mib, share.all_mib) if one is not None), default=None)
    return mib if most is None or mib < most else None


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

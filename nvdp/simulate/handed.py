"""Which devices a container was told of in an answer to Allocate, in whichever way."""

from __future__ import annotations

import re

from nvdp.kubelet.proto import deviceplugin_v1beta1_pb2 as deviceplugin
from nvdp.model.cdi import CdiClass
from nvdp.planning.response import VISIBLE_DEVICES, VOLUME_MOUNT_ROOT


def find_named(response: deviceplugin.ContainerAllocateResponse) -> tuple[str, ...]:
    """The names of the devices, by the variable, by mounts or by CDI."""
    value = response.envs.get(VISIBLE_DEVICES, "")
    if value == VOLUME_MOUNT_ROOT:
        paths = [mount.container_path for mount in response.mounts]
        return tuple(path.rpartition("/")[2] for path in paths if path.startswith(f"{VOLUME_MOUNT_ROOT}/"))
    if value:
        return tuple(value.split(","))
    kind = f"{CdiClass.GPU.kind}="
    return tuple(name.removeprefix(kind) for name in list_cdi_names(response) if name.startswith(kind))


def show_devices(response: deviceplugin.ContainerAllocateResponse) -> str:
    """How the container is told of its devices, with UUIDs cut short."""
    value = response.envs.get(VISIBLE_DEVICES, "")
    told = f"{VISIBLE_DEVICES}={value}" if value else ", ".join(list_cdi_names(response))
    return re.sub(r"(GPU-[0-9a-f]{8})-[0-9a-f-]{27}", r"\1...", told)


def list_cdi_names(response: deviceplugin.ContainerAllocateResponse) -> tuple[str, ...]:
    """The full names, from the field or from annotations."""
    by_annotation = (name for text in response.annotations.values() for name in text.split(","))
    return (*(one.name for one in response.cdi_devices), *by_annotation)

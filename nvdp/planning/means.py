"""By what means this node hands devices to containers, and which devices it cannot hand over. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from nvdp.config.schema import Config
from nvdp.model.cdi import CdiClass, CdiState, qualify
from nvdp.model.inventory import Inventory
from nvdp.model.listing import DeviceIDStrategy, DeviceListStrategy
from nvdp.model.reasons import Cause
from nvdp.planning.devices import Device, list_nodes, split_gpus

_CDI = frozenset({DeviceListStrategy.CDI_ANNOTATIONS, DeviceListStrategy.CDI_CRI})


class Means(msgspec.Struct, frozen=True, kw_only=True):
    """What of this node goes into a container besides its devices, and what is in the way of handing them over.

    ``control_nodes`` are the driver's own device nodes that exist; ``missing_nodes`` those of devices that do not,
    where that can be seen; both as container paths. ``imex_channels`` are those whose nodes exist. ``specs`` is what
    the CDI specs hold; None while that is not to be judged by.
    """

    control_nodes: tuple[str, ...] = ()
    missing_nodes: tuple[str, ...] = ()
    imex_channels: tuple[int, ...] = ()
    specs: CdiState | None = None


def uses_cdi(config: Config) -> bool:
    """Whether containers get their devices by CDI, perhaps by other ways too."""
    return not _CDI.isdisjoint(config.flags.plugin.device_list_strategy)


def hands_out_nodes(config: Config) -> bool:
    """Whether containers are given device nodes by what we answer; else the runtime sees to them."""
    return uses_cdi(config) or config.flags.plugin.pass_device_specs


def name_device(config: Config, device: Device) -> str:
    """The name by which a container asks the runtime for the device: its UUID, or its index."""
    return device.uuid if config.flags.plugin.device_id_strategy is DeviceIDStrategy.UUID else device.index


def find_obstacles(
    config: Config, inventory: Inventory, means: Means, *, ailing: Collection[str]
) -> dict[str, tuple[Cause, str]]:
    """By UUID, why a device that does not ail itself cannot be handed over: the cause, and a sentence.

    A GPU of which MIG devices are offered has the obstacle of the first of them, as it has their faults.
    """
    found: dict[str, tuple[Cause, str]] = {}
    for device in split_gpus(config, inventory.gpus):
        if device.uuid in ailing:
            continue
        obstacle = next(_find(config, device, means), None)
        if obstacle is None:
            continue
        found[device.uuid] = obstacle
        if device.instance is not None and device.gpu.uuid not in ailing:
            found.setdefault(device.gpu.uuid, obstacle)
    return found


def _find(config: Config, device: Device, means: Means) -> Iterator[tuple[Cause, str]]:
    """The obstacles, the gravest first."""
    channels = [number for number in config.imex.channel_ids if number not in means.imex_channels]
    if config.imex.required and channels:
        text = f"IMEX channel {channels[0]} has no device node on this node (imex.required)"
        yield Cause.IMEX_MISSING, text
    if not hands_out_nodes(config):
        return
    nodes = list_nodes(device)
    if nodes is None:
        text = f"the capability nodes of MIG device {device.index} are not known; /proc/driver/nvidia-caps names them"
        yield Cause.NODES_MISSING, text
        return
    missing = [path for path in nodes if path in means.missing_nodes]
    if missing:
        text = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not on this node; nvidia-modprobe makes it"
        yield Cause.NODES_MISSING, text
    if uses_cdi(config) and means.specs is not None:
        name = qualify(CdiClass.GPU, name_device(config, device))
        if name not in means.specs.names:
            yield Cause.CDI_MISSING, means.specs.problem or f"{name} is not in the CDI specs yet"

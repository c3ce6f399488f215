"""What a container needs of the node beside a GPU that works: device nodes, CDI specs, IMEX channels.

A device for which something is missing is listed Unhealthy until it is there; what is only wished for is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from nvdp.config.schema import Config
from nvdp.model.cdi import ALL, CdiClass, CdiState, qualify
from nvdp.model.listing import CDI_STRATEGIES, DeviceIDStrategy
from nvdp.model.platforms import WSL_NODE, WSL_UUID
from nvdp.model.reasons import Cause
from nvdp.planning.devices import Device

_IMEX_NODE: Final = "/dev/nvidia-caps-imex-channels/channel{}"


def uses_cdi(config: Config) -> bool:
    """Whether containers get their devices by CDI, alone or among other ways."""
    return not CDI_STRATEGIES.isdisjoint(config.flags.plugin.device_list_strategy)


def passes_nodes(config: Config) -> bool:
    """Whether device nodes are named to the kubelet: not where CDI alone brings them along (NVIDIA's rule)."""
    plugin = config.flags.plugin
    return plugin.pass_device_specs and not CDI_STRATEGIES.issuperset(plugin.device_list_strategy)


def list_nodes(device: Device) -> tuple[str, ...]:
    """The nodes without which a container cannot use the device: its GPU's, and those that give access to a part."""
    if device.uuid == WSL_UUID:
        return (WSL_NODE,)
    own = (f"/dev/nvidia{device.minor}",) if device.minor is not None else ()
    return own if device.instance is None else (*own, *device.instance.nodes)


def _list_capabilities(device: Device) -> tuple[str, ...]:
    return device.instance.nodes if device.instance is not None else ()


def build_imex_node(channel: int) -> str:
    """The device node of an IMEX channel, as the container and the host know it."""
    return _IMEX_NODE.format(channel)


def list_features(config: Config) -> tuple[CdiClass, ...]:
    """The features that the file switches on for containers, in the order in which they are handed out."""
    flags = config.flags
    switches = (
        (CdiClass.GDRCOPY, flags.gdrcopy_enabled),
        (CdiClass.GDS, flags.gds_enabled),
        (CdiClass.MOFED, flags.mofed_enabled),
    )
    return tuple(feature for feature, is_on in switches if is_on)


def find_channels(config: Config, imex_channels: Collection[int]) -> tuple[int, ...]:
    """The channels of the file that are among ``imex_channels``, those that this node has."""
    return tuple(channel for channel in dict.fromkeys(config.imex.channel_ids) if channel in imex_channels)


def name_extras(config: Config, imex_channels: Collection[int], cdi_names: Collection[str]) -> tuple[str, ...]:
    """The CDI names that a container gets beside its GPUs: channels, then features, as far as the specs have them."""
    if not uses_cdi(config):
        return ()
    wished = (
        *(qualify(CdiClass.IMEX_CHANNEL, str(channel)) for channel in find_channels(config, imex_channels)),
        *(qualify(feature, ALL) for feature in list_features(config)),
    )
    return tuple(name for name in wished if name in cdi_names)


def find_unmet(config: Config, *, imex_channels: Collection[int], cdi: CdiState | None) -> Iterator[str]:
    """A sentence about each thing that the file would have containers get, and that they do without here."""
    if not config.imex.required:
        for channel in dict.fromkeys(config.imex.channel_ids):
            if channel not in imex_channels:
                yield f"imex.channelIDs: {build_imex_node(channel)} is not on this node; containers do without it"
    if cdi is None or not cdi.answered or cdi.problem or not uses_cdi(config):
        return
    for feature in list_features(config):
        if qualify(feature, ALL) not in cdi.names:
            yield f"flags.{feature.value}Enabled: this node has no device nodes for it; containers do without them"


def find_obstacle(
    config: Config,
    device: Device,
    *,
    missing_nodes: Collection[str],
    imex_channels: Collection[int],
    cdi: CdiState | None,
) -> tuple[Cause, str] | None:
    """Why no container can be given the device now, if so: the cause under which it is listed, and a sentence.

    ``missing_nodes`` are paths of device nodes that are not on the node, ``imex_channels`` the channels that are,
    ``cdi`` what is in the specs on disk, None while nobody can tell. It ends as soon as what is missing is there.
    """
    return (
        _find_missing_node(config, device, missing_nodes)
        or _find_missing_channel(config, imex_channels)
        or _find_missing_name(config, device, cdi)
    )


def _find_missing_node(config: Config, device: Device, missing_nodes: Collection[str]) -> tuple[Cause, str] | None:
    if not uses_cdi(config) and not passes_nodes(config):
        return None  # the runtime makes the nodes
    nodes = list_nodes(device)
    if device.minor is None and device.gpu.fault is not None:
        return Cause.NODES_MISSING, "its device node is not known: the driver does not tell the minor number"
    if device.instance is not None and not device.instance.nodes:
        where = "/proc/driver/nvidia-caps/mig-minors"
        return Cause.NODES_MISSING, f"its capability nodes are not known: {where} does not name them, or cannot be read"
    if config.flags.nvidia_dev_root.rstrip("/"):
        return None  # they are elsewhere, where nobody has looked
    # A spec tells the numbers of capability nodes, from which runtimes make them.
    needed = nodes if passes_nodes(config) else [path for path in nodes if path not in _list_capabilities(device)]
    missing = [path for path in needed if path in missing_nodes]
    if missing:
        what = "is" if len(missing) == 1 else "are"
        return Cause.NODES_MISSING, f"{', '.join(missing)} {what} not on this node"
    return None


def _find_missing_channel(config: Config, imex_channels: Collection[int]) -> tuple[Cause, str] | None:
    if not config.imex.required:
        return None
    missing = [channel for channel in config.imex.channel_ids if channel not in imex_channels]
    if not missing:
        return None
    return Cause.IMEX_MISSING, f"{build_imex_node(missing[0])} is not on this node, and imex.required is true"


def _find_missing_name(config: Config, device: Device, cdi: CdiState | None) -> tuple[Cause, str] | None:
    if cdi is None or not uses_cdi(config):
        return None
    by_uuid = config.flags.plugin.device_id_strategy is DeviceIDStrategy.UUID
    needed = [qualify(CdiClass.GPU, device.uuid if by_uuid else device.index)]
    if config.imex.required:
        needed += [qualify(CdiClass.IMEX_CHANNEL, str(channel)) for channel in config.imex.channel_ids]
    missing = next((name for name in needed if name not in cdi.names), None)
    why = "the CDI specs do not have it" if cdi.answered else "the CDI specs are being written"
    if missing is None and not cdi.nodes.get(needed[0], frozenset(list_nodes(device))).issuperset(list_nodes(device)):
        # After a renumbering; a container would get the GPU that had the index before.
        missing, why = needed[0], "the CDI specs have another device under its index"
    if missing is None:
        return None
    # All devices for which the reason is the same have the same text, so that it can be told once.
    return Cause.CDI_MISSING, cdi.problem or (why if missing == needed[0] else f"{missing}: {why}")

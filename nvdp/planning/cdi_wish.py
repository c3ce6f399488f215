"""What the CDI specs shall hold, by the configuration, the plan and what pods hold. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from nvdp.config.schema import Config
from nvdp.model.cdi import CdiClass, CdiDevice, CdiWish, build_device_name
from nvdp.model.health import Ailment
from nvdp.model.inventory import Inventory
from nvdp.model.listing import DeviceIDStrategy
from nvdp.model.platforms import TEGRA_UUID
from nvdp.model.reasons import Cause
from nvdp.planning.devices import Device, find_profile
from nvdp.planning.indices import BY_UUID
from nvdp.planning.ledger import uuid_of_id
from nvdp.planning.means import Means
from nvdp.planning.plan import Plan
from nvdp.planning.provision import find_channels, list_features, list_nodes, uses_cdi

_BESIDE = frozenset(CdiClass) - {CdiClass.GPU}
_DRAWS = "gfx"  # a MIG profile with graphics


def build_wish(
    config: Config,
    plan: Plan,
    inventory: Inventory,
    *,
    ailments: Mapping[str, Ailment],
    means: Means,
) -> CdiWish:
    """What to write for this plan.

    What pods hold stays in the specs as it was written, though it be gone, and so does what the kubelet may still hand
    out: a container that is started again gets the name that it once got. An index is a name of the GPU that a pod
    got by it, whatever pods are told by now, unless it is another's. Where no strategy uses CDI any more, what pods got
    by it before is still written, and that alone: a reboot empties the directory, and a driver's upgrade changes files.
    """
    flags = config.flags
    is_used = uses_cdi(config)
    held = frozenset(_list_held(plan))
    # Which channels and features a pod was given nobody remembers.
    keep_classes = _BESIDE if held else frozenset()
    wished = plan.assignments.keys() if is_used else _list_leftover(plan)
    there = [device for device in plan.devices if device.uuid in wished and not _is_gone(ailments.get(device.uuid))]
    if not is_used and not there:
        return CdiWish(enabled=False, keep=held, keep_classes=keep_classes)
    held |= frozenset(_list_listed(plan)) if is_used else frozenset()
    by_index = is_used and flags.plugin.device_id_strategy is DeviceIDStrategy.INDEX
    owners = {index: uuid for uuid, index in _list_indices(plan)} | {
        device.index: device.uuid for device in there if by_index
    }
    indices: dict[str, list[str]] = {}
    for index, uuid in sorted(owners.items()):
        indices.setdefault(uuid, []).append(index)
    devices = tuple(
        built for device in there if (built := _build_device(device, indices.get(device.uuid, ()))) is not None
    )
    named = {name for device in devices for name in device.names}
    return CdiWish(
        is_leftover=not is_used,
        platform=inventory.platform,
        devices=devices,
        keep=held - named,
        keep_classes=keep_classes,
        features=list_features(config),
        imex_channels=find_channels(config, means.imex_channels),
        driver_version=inventory.driver.version,
        driver_root=flags.nvidia_driver_root,
        dev_root=flags.nvidia_dev_root or flags.nvidia_driver_root,
        container_driver_root=flags.plugin.container_driver_root,
        hook_path=flags.plugin.nvidia_ctk_path,
    )


def list_handed_out(wish: CdiWish) -> frozenset[str | CdiClass]:
    """What containers may be given by it: names of class gpu, and other classes as a whole."""
    names = {*wish.keep, *(name for device in wish.devices for name in device.names)}
    return frozenset(names) | {*wish.features} | ({CdiClass.IMEX_CHANNEL} if wish.imex_channels else set())


def keep_longer(wish: CdiWish, leaving: Collection[str | CdiClass]) -> CdiWish:
    """The wish that leaves these in the specs, too, as they were written."""
    return msgspec.structs.replace(
        wish,
        keep=wish.keep.union(one for one in leaving if isinstance(one, str)),
        keep_classes=wish.keep_classes.union(one for one in leaving if isinstance(one, CdiClass)),
    )


def _build_device(device: Device, indices: Iterable[str]) -> CdiDevice | None:
    """Under its UUID and these indices; None where its nodes are not known: it is listed Unhealthy then."""
    nodes = list_nodes(device)
    is_known = bool(nodes) or device.uuid == TEGRA_UUID
    if not is_known or (device.instance is not None and not device.instance.nodes):
        return None
    names = dict.fromkeys((device.uuid, *indices))
    return CdiDevice(
        names=tuple(map(build_device_name, names)), nodes=nodes, pci=device.pci if _may_draw(device) else None
    )


def _may_draw(device: Device) -> bool:
    """Whether a container that has it may have the display nodes of the card."""
    if device.instance is None:
        return True
    profile = find_profile(device.instance.profile)
    return profile is not None and _DRAWS in profile.attribute


def _is_gone(ailment: Ailment | None) -> bool:
    return ailment is not None and ailment.cause is Cause.VANISHED


def _list_held(plan: Plan) -> Iterable[str]:
    """The device names under which pods may have what they hold."""
    for holdings in plan.holders.values():
        yield from (build_device_name(uuid_of_id(device_id)) for device_id in holdings)
    yield from (build_device_name(index) for _, index in _list_indices(plan))


def _list_leftover(plan: Plan) -> frozenset[str]:
    """The devices of which a pod may have got something by CDI."""
    return frozenset(uuid_of_id(device_id) for ids in plan.by_cdi.values() for device_id in ids)


def _list_indices(plan: Plan) -> Iterable[tuple[str, str]]:
    """The UUID and the index of each device that a pod knows by its index."""
    for handed_out in plan.indices.values():
        for device_id, one in handed_out.items():
            if one.index != BY_UUID:
                yield uuid_of_id(device_id), one.index


def _list_listed(plan: Plan) -> Iterable[str]:
    """The names of what the kubelet knows, and may hand out a moment from now."""
    for listed in plan.lists.values():
        yield from (build_device_name(device.gpu_uuid) for device in listed.devices)

"""By what means this node hands devices to containers, and which devices it cannot hand over. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from nvdp.config.schema import Config
from nvdp.model.cdi import CdiState
from nvdp.model.health import Ailment
from nvdp.model.inventory import Inventory
from nvdp.model.mps import MpsView
from nvdp.model.reasons import Cause
from nvdp.planning.devices import split_gpus
from nvdp.planning.provision import find_obstacle, uses_cdi

OBSTACLES: Final = frozenset({Cause.NODES_MISSING, Cause.CDI_MISSING, Cause.IMEX_MISSING})
"""The causes that are in the way of a device under one configuration, and need not be under another."""


class Means(msgspec.Struct, frozen=True, kw_only=True):
    """What of this node goes into a container besides its devices, and what is in the way of handing them over.

    ``control_nodes`` are the driver's own device nodes that exist; ``missing_nodes`` those of devices that do not,
    where that can be seen; both as container paths. ``imex_channels`` are those whose nodes exist. ``specs`` is what
    the CDI specs hold, ``mps`` what is seen of the MPS control daemons; None while nobody can tell.
    """

    control_nodes: tuple[str, ...] = ()
    missing_nodes: tuple[str, ...] = ()
    imex_channels: tuple[int, ...] = ()
    specs: CdiState | None = None
    mps: MpsView | None = None


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
        obstacle = find_obstacle(
            config,
            device,
            missing_nodes=means.missing_nodes,
            imex_channels=means.imex_channels,
            cdi=means.specs,
        )
        if obstacle is None:
            continue
        found[device.uuid] = obstacle
        if device.instance is not None and device.gpu.uuid not in ailing:
            found.setdefault(device.gpu.uuid, obstacle)
    return found


def judge_ailments(
    config: Config, inventory: Inventory, means: Means, ailments: Mapping[str, Ailment]
) -> dict[str, Ailment]:
    """What would ail devices under this configuration, though another may be in force now.

    Where nobody knows what the specs would hold, what is missing there now is taken to stay so.
    """
    stays = {Cause.CDI_MISSING} if means.specs is None and uses_cdi(config) else set()
    told = {uuid: ailment for uuid, ailment in ailments.items() if ailment.cause not in OBSTACLES - stays}
    found = find_obstacles(config, inventory, means, ailing=told.keys())
    return told | {uuid: Ailment(cause=cause, text=text, since=0.0) for uuid, (cause, text) in found.items()}

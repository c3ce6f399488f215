"""Keeps every list within its limit, whatever comes: a device too many, and old IDs that have not left yet.

An edit that passes the limit by itself is refused before it is applied (``judging``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from nvdp.model.held import Holding
from nvdp.model.listing import ListedDevice
from nvdp.model.reasons import Cause
from nvdp.planning.allotment import Allotment
from nvdp.planning.assignment import Assignment, Withheld
from nvdp.planning.devices import Device
from nvdp.planning.ledger import Given, uuid_of_id
from nvdp.planning.sizing import LIMIT_BYTES, device_bytes, gpu_bytes

_MOST_DEVICE_BYTES = device_bytes(id_length=64, numa_node=1024)


def limit_lists(
    allotment: Allotment,
    given: Mapping[str, Given],
    holders: Mapping[str, Mapping[str, Holding]],
    *,
    numa_hints: bool,
) -> Allotment:
    """The allotment without the devices for which there is no room, given what was given out last and is held."""
    excess = withhold_excess(
        allotment.devices,
        allotment.assignments,
        offered={
            device.gpu_uuid
            for record in given.values()
            for device in record.listed.devices
            if device.cause is not Cause.WITHDRAWING
        },
        held={uuid_of_id(device_id) for holdings in holders.values() for device_id in holdings},
        numa_hints=numa_hints,
    )
    return msgspec.structs.replace(
        allotment,
        assignments={uuid: each for uuid, each in allotment.assignments.items() if uuid not in excess},
        withheld={**allotment.withheld, **excess},
    )


def withhold_excess(
    devices: Sequence[Device],
    assignments: Mapping[str, Assignment],
    *,
    offered: Collection[str],
    held: Collection[str],
    numa_hints: bool,
) -> dict[str, Withheld]:
    """The devices for whose replicas a list has no room, by UUID: last come, last served.

    Those that are ``offered`` now come first, then those that pods have ``held`` before a restart, then list order.
    """
    withheld: dict[str, Withheld] = {}
    used: dict[str, int] = {}
    for device in sorted(devices, key=lambda one: (one.uuid not in offered, one.uuid not in held)):
        assignment = assignments.get(device.uuid)
        if assignment is None:
            continue
        resource = assignment.form.resource
        node = device.numa_node if numa_hints else None
        size = used.get(resource, 0) + gpu_bytes(uuid=device.uuid, numa_node=node, replicas=assignment.replicas)
        if size <= LIMIT_BYTES:
            used[resource] = size
            continue
        withheld[device.uuid] = Withheld(
            reason="ListTooLarge",
            path=assignment.rule,
            text=f"its {assignment.replicas} replicas would make the list of {resource} larger than 2 MiB",
            intended=assignment,
        )
    return withheld


def fit(devices: Mapping[str, ListedDevice], known: Collection[str]) -> tuple[ListedDevice, ...]:
    """The list without the IDs for which there is no room yet: those not ``known`` wait until others have left."""
    if len(devices) * _MOST_DEVICE_BYTES <= LIMIT_BYTES:
        return tuple(devices.values())
    sizes = {
        device.id: device_bytes(id_length=len(device.id), numa_node=device.numa_node) for device in devices.values()
    }
    room = LIMIT_BYTES - sum(size for device_id, size in sizes.items() if device_id in known)
    kept = []
    for device in devices.values():
        if device.id not in known:
            room -= sizes[device.id]
            if room < 0:
                continue
        kept.append(device)
    return tuple(kept)

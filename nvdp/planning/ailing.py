"""What ails a GPU and what ails its MIG devices: which of both is meant by one and the same fault. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from nvdp.model.health import Ailment
from nvdp.model.inventory import Gpu
from nvdp.model.reasons import Cause
from nvdp.planning.devices import Device

Ailments: TypeAlias = Mapping[str, Ailment]
Parts: TypeAlias = Mapping[str, tuple[str, ...]]
"""The MIG devices of each GPU that is offered in MIG devices, by UUID."""

_UNREACHABLE: Final = frozenset(
    {Cause.LOST, Cause.VANISHED, Cause.CALL_TIMEOUT, Cause.DRIVER_LOST, Cause.DRIVER_PAUSED}
)


def list_parts(devices: Iterable[Device]) -> dict[str, tuple[str, ...]]:
    """The parts among these devices."""
    parts: dict[str, tuple[str, ...]] = {}
    for device in devices:
        if device.instance is not None:
            parts[device.gpu.uuid] = (*parts.get(device.gpu.uuid, ()), device.uuid)
    return parts


def drop_partial(ailments: Ailments, parts: Parts) -> dict[str, Ailment]:
    """Without the GPUs of which only some MIG devices ail: a GPU ails with the first of its parts."""
    return {
        uuid: ailment for uuid, ailment in ailments.items() if all(part in ailments for part in parts.get(uuid, ()))
    }


def join_parts(ailments: Ailments, parts: Parts) -> dict[str, Ailment]:
    """Each trouble once: of the GPU where all its MIG devices have it, else of those that do."""
    joined = drop_partial(ailments, parts)
    for uuid, members in parts.items():
        if uuid not in joined or not members:
            continue
        is_common = all(_name(joined[part]) == _name(joined[uuid]) for part in members)
        for one in members if is_common else (uuid,):
            del joined[one]
    return joined


def _name(ailment: Ailment) -> tuple[Cause, int | None]:
    """One and the same fault, as far as its name tells."""
    return ailment.cause, ailment.xid


def list_reachable(gpus: Iterable[Gpu], ailments: Ailments) -> frozenset[str]:
    """The GPUs, by UUID, that a process could be started on: those that the driver counts, and that answer it."""
    return frozenset(
        gpu.uuid for gpu in gpus if gpu.uuid not in ailments or ailments[gpu.uuid].cause not in _UNREACHABLE
    )

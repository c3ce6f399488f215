"""The MPS control daemons that a configuration calls for, and what ``nvdp mps`` is told about them. Pure.

Entries that share a name are one resource, and one control daemon. Its defaults are the largest share that any
container may get; a container that gets less is narrowed by its environment (``response``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from nvdp.config.schema import Config, ModeChange
from nvdp.config.sharing import MpsResource
from nvdp.model.mps import DaemonSpec, Grant, MpsGrants
from nvdp.planning.allotment import Allotment
from nvdp.planning.devices import Device
from nvdp.planning.entries import list_entries
from nvdp.planning.mps import ClientLimits

_ALL = 100
_MIB = 2**20


def build_specs(config: Config, allotment: Allotment) -> dict[str, DaemonSpec]:
    """The daemon of each resource that MPS shares here, by its final name, in order of name."""
    members: dict[str, list[Device]] = {}
    for device in allotment.devices:
        assignment = allotment.assignments.get(device.uuid)
        if assignment is not None and assignment.form.mps:
            members.setdefault(assignment.form.resource, []).append(device)
    return {resource: _build_spec(resource, config, allotment, members[resource]) for resource in sorted(members)}


def find_most(config: Config, allotment: Allotment, device: Device) -> ClientLimits | None:
    """The most of a GPU that one container may get: a share, or all that are made of it where several are allowed.

    None where MPS limits nothing.
    """
    limits = allotment.limits.get(device.uuid)
    if limits is None or not allows_several(config):
        return limits
    replicas = allotment.assignments[device.uuid].replicas
    memory_mib = None if limits.memory_mib is None else limits.memory_mib * replicas
    if memory_mib is not None and device.memory_bytes is not None:
        memory_mib = min(memory_mib, device.memory_bytes // _MIB)
    return ClientLimits(thread_percent=min(_ALL, limits.thread_percent * replicas), memory_mib=memory_mib)


def allows_several(config: Config) -> bool:
    """Whether a container may get several shares of one GPU."""
    return config.sharing.mps is not None and not config.sharing.mps.fail_requests_greater_than_one


def build_grants(
    config: Config,
    specs: Mapping[str, DaemonSpec],
    *,
    free: Mapping[str, Collection[str]],
    held: Mapping[str, Collection[str]],
) -> MpsGrants:
    """What ``nvdp mps`` is told. ``free`` and ``held`` are UUIDs by resource, as ``Grant`` has them."""
    at_once = config.allocation.mode_change is ModeChange.IMMEDIATE
    return MpsGrants(
        config=config.hash,
        resources={
            resource: Grant(
                wanted=specs.get(resource),
                free=tuple(sorted(free.get(resource, ()))),
                held=tuple(sorted(held.get(resource, ()))),
                at_once=at_once,
            )
            for resource in sorted(specs.keys() | {resource for resource, uuids in held.items() if uuids})
        },
    )


def _build_spec(resource: str, config: Config, allotment: Allotment, devices: list[Device]) -> DaemonSpec:
    most = {device.uuid: find_most(config, allotment, device) for device in devices}
    limits = {uuid: one for uuid, one in most.items() if one is not None}
    rules = {allotment.assignments[device.uuid].rule for device in devices}
    settings = [entry.setting for entry in list_entries(config) if entry.path in rules]
    return DaemonSpec(
        resource=resource,
        gpus=tuple(device.uuid for device in devices),
        thread_percent=max((one.thread_percent for one in limits.values()), default=None),
        memory_mib={uuid: one.memory_mib for uuid, one in limits.items() if one.memory_mib is not None},
        multi_user=all(isinstance(setting, MpsResource) and setting.multi_user for setting in settings),
    )

"""What stays true of a GPU and its MIG devices while it cannot be read: pure rules."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from nvdp.model.inventory import Driver, Gpu, Inventory, MigInstance, MigMode
from nvdp.model.topology import Connection


def recall_facts(before: Gpu, gpu: Gpu) -> Gpu:
    """``gpu`` as just read, with the last value of what could not be read. ``before`` is the same GPU.

    A MIG device whose UUID could not be read is the one that had its place, unless that has another place now. One that
    is not there any more is gone. A fabric that is set up anew, or fails, changes nothing of what is wired.
    """
    if gpu.fault is not None:
        unread = {name for name in gpu.__struct_fields__ if getattr(gpu, name) is None}
        if gpu.mig is not None:
            unread.discard("mig_pending")
            unread -= {"instances"} if gpu.mig is not MigMode.ENABLED else set()
        gpu = msgspec.structs.replace(gpu, **{name: getattr(before, name) for name in unread})
    if gpu.clique is None:
        gpu = msgspec.structs.replace(gpu, clique=before.clique)
    return _recall_instances(before.instances or (), gpu)


def recall_connections(
    before: Iterable[Connection], scanned: Inventory, known: Collection[str]
) -> tuple[Connection, ...]:
    """What connects the GPUs after a scan; ``known`` are the UUIDs of all that are known by now.

    Of two that were read well it is what was found, with the common ancestor of before where that could not be told: it
    does not change. Of all others what was known before stays.
    """
    last = {(one.a, one.b): one for one in before if one.a in known and one.b in known}
    merged = {(one.a, one.b): _recall_ancestor(last.get((one.a, one.b)), one) for one in scanned.connections}
    well = {gpu.uuid for gpu in scanned.gpus if gpu.fault is None}
    merged |= {pair: one for pair, one in last.items() if not well.issuperset(pair)}
    return tuple(one for _, one in sorted(merged.items()))


def _recall_ancestor(before: Connection | None, found: Connection) -> Connection:
    if before is None or found.ancestor is not None or before.ancestor is None:
        return found
    return msgspec.structs.replace(found, ancestor=before.ancestor)


def recall_driver(before: Driver | None, driver: Driver) -> Driver:
    """The versions as just read, or as they were where a call failed: it is still the same driver that answers."""
    if before is None:
        return driver
    return Driver(version=driver.version or before.version, cuda_version=driver.cuda_version or before.cuda_version)


def forget_faults(gpu: Gpu) -> Gpu:
    """The facts alone, where what last went wrong does not matter any more."""
    instances = gpu.instances
    if instances is not None:
        instances = tuple(msgspec.structs.replace(instance, fault=None) for instance in instances)
    return msgspec.structs.replace(gpu, instances=instances, unreadable_instances=(), fault=None)


def _recall_instances(before: tuple[MigInstance, ...], gpu: Gpu) -> Gpu:
    if gpu.instances is None:
        return gpu
    known = {instance.uuid: instance for instance in before}
    found = {instance.uuid: _recall_instance(known.get(instance.uuid), instance) for instance in gpu.instances}
    places = {instance.index: instance for instance in before if instance.uuid not in found}
    unreadable = []
    for place in gpu.unreadable_instances:
        last = places.get(place.index)
        if last is None:
            unreadable.append(place)
        else:
            fault = msgspec.structs.replace(place.fault, text=f"{last.uuid}: {place.fault.text}")
            found[last.uuid] = msgspec.structs.replace(last, fault=fault)
    return msgspec.structs.replace(
        gpu,
        instances=tuple(sorted(found.values(), key=lambda instance: instance.index)),
        unreadable_instances=tuple(unreadable),
    )


def _recall_instance(before: MigInstance | None, instance: MigInstance) -> MigInstance:
    if before is None or instance.fault is None:
        return instance
    unread = {name for name in instance.__struct_fields__ if getattr(instance, name) is None}
    return msgspec.structs.replace(instance, **{name: getattr(before, name) for name in unread})

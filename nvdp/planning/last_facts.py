"""What stays true of a GPU and its MIG devices while it cannot be read: pure rules."""

from __future__ import annotations

import msgspec

from nvdp.model.inventory import Gpu, MigInstance, MigMode


def recall_facts(before: Gpu, gpu: Gpu) -> Gpu:
    """``gpu`` as just read, with the last value of what could not be read. ``before`` is the same GPU.

    A MIG device whose UUID could not be read is the one that had its place, unless that has another place now. One that
    is not there any more is gone.
    """
    if gpu.fault is not None:
        unread = {name for name in gpu.__struct_fields__ if getattr(gpu, name) is None}
        if gpu.mig is not None:
            unread.discard("mig_pending")
            unread -= {"instances"} if gpu.mig is not MigMode.ENABLED else set()
        gpu = msgspec.structs.replace(gpu, **{name: getattr(before, name) for name in unread})
    return _recall_instances(before.instances or (), gpu)


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

"""The MIG mode and the MIG devices of a card, from what a node file says of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import msgspec

from nvdp.errors import FormatError
from nvdp.model.mig import MigAttributes, MigProfile, parse_profile
from nvdp.nvml.simulated.entries import InstanceEntries, InstanceEntry, LayoutEntry, MistakeError
from nvdp.nvml.simulated.mig_kinds import Kind, build_kinds, build_whole
from nvdp.nvml.simulated.node import Instance, InstanceKind, MigState, SimulatedGpu, build_uuid

_MIB = 1 << 20
_NOTHING = ("null", "~", "")
_PER_KIND = 8  # so many GPU instances of a kind have numbers that belong to no other kind
_MULTIPROCESSORS_EACH = 16  # of a slice for computing, about
_FIRST_DRIVER_WITH_OWN_UUIDS = 470


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """What the file says of one card. ``mig`` is None where it does not say."""

    mig: MigState | None
    mig_pending: MigState | None
    instances: InstanceEntries
    place: str


def merge_layout(before: Layout, entry: LayoutEntry, *, place: str) -> Layout:
    """``before`` with what ``entry`` says in its place."""
    return Layout(
        mig=entry.mig or before.mig,
        mig_pending=entry.mig_pending or before.mig_pending,
        instances=before.instances if entry.instances is None else entry.instances,
        place=before.place if entry.instances is None else place,
    )


def lay_out(gpu: SimulatedGpu, layout: Layout, family: Sequence[Kind], *, driver: str) -> SimulatedGpu:
    """``gpu`` with its MIG mode and devices. Raises MistakeError.

    A device that is in the file before and after an edit is the same one, wherever it stands there: it is known by its
    GPU and compute instance where the file numbers them, else as the first, second, third of its profile.
    """
    entries: list[tuple[int, InstanceEntry, MigProfile]] = []
    for index, written in enumerate(layout.instances):
        if written not in _NOTHING:
            entry = InstanceEntry(profile=written) if isinstance(written, str) else written
            entries.append((index, entry, _parse_profile(entry, place=f"{layout.place}.instances[{index}]")))
    kinds = build_kinds(family, [profile for _, _, profile in entries], total_bytes=gpu.memory_bytes)
    by_profile = {kind.profile: kind for kind in kinds}
    default = MigState.DISABLED if family else MigState.UNSUPPORTED
    mig = layout.mig or (MigState.ENABLED if entries else default)
    numbers = {kind.number: count(kind.number * _PER_KIND + 1) for kind in kinds}
    instances: list[Instance] = []
    for index, entry, profile in entries:
        kind = by_profile[build_whole(profile)]
        number = next(numbers[kind.number]) if entry.gpu_instance is None else entry.gpu_instance
        instances.append(_build_instance(gpu, entry, kind, index=index, number=number, driver=driver))
        if any(_is_same(instances[-1], other) for other in instances[:-1]):
            place = f"{layout.place}.instances[{index}]"
            raise MistakeError(f"{place}: GPU instance {number} has compute instance {entry.compute_instance} already")
    return msgspec.structs.replace(
        gpu,
        mig=mig,
        mig_pending=layout.mig_pending if layout.mig_pending is not mig else None,
        kinds=kinds if mig is not MigState.UNSUPPORTED else (),
        instances=tuple(instances),
    )


def find_instance(gpu: SimulatedGpu, ref: str, *, place: str) -> Instance:
    """The MIG device of a card that is given by index or UUID. Raises MistakeError."""
    for instance in gpu.instances:
        if ref in {str(instance.index), instance.uuid}:
            return instance
    raise MistakeError(f"{place}: card {gpu.position} has no instance {ref}; give its place among them, or its UUID")


def _parse_profile(entry: InstanceEntry, *, place: str) -> MigProfile:
    try:
        return parse_profile(entry.profile)
    except FormatError as error:
        raise MistakeError(f"{place}.profile: {error}") from error


def _build_instance(
    gpu: SimulatedGpu, entry: InstanceEntry, kind: InstanceKind, *, index: int, number: int, driver: str
) -> Instance:
    profile = parse_profile(entry.profile)
    inside = f"{number}/{entry.compute_instance}"
    branch = driver.partition(".")[0]
    is_old = branch.isdecimal() and int(branch) < _FIRST_DRIVER_WITH_OWN_UUIDS
    memory_bytes = kind.memory_mib * _MIB if entry.memory_bytes is None else entry.memory_bytes
    made_up = f"MIG-{gpu.uuid}/{inside}" if is_old else build_uuid("MIG", f"{gpu.uuid or gpu.pci}/{inside}/{profile}")
    return Instance(
        index=index,
        uuid=entry.uuid or made_up,
        profile=profile,
        kind=kind,
        gpu_instance=number,
        compute_instance=entry.compute_instance,
        memory_bytes=memory_bytes,
        attributes=_build_attributes(entry, profile, kind, memory_mib=memory_bytes // _MIB),
    )


def _build_attributes(
    entry: InstanceEntry, profile: MigProfile, kind: InstanceKind, *, memory_mib: int
) -> MigAttributes:
    """As the profile makes them, with what the file says in their place."""
    copy_engines, decoders, encoders, jpeg_engines, ofa_engines = kind.engines
    made = MigAttributes(
        memory_mib=memory_mib,
        multiprocessors=_MULTIPROCESSORS_EACH * profile.compute_slices,
        slices=profile.slices,
        compute_slices=profile.compute_slices,
        copy_engines=copy_engines,
        decoders=decoders,
        encoders=encoders,
        jpeg_engines=jpeg_engines,
        ofa_engines=ofa_engines,
    )
    written = {name: getattr(entry.attributes, name) for name in entry.attributes.__struct_fields__}
    return msgspec.structs.replace(made, **{name: value for name, value in written.items() if value is not None})


def _is_same(one: Instance, other: Instance) -> bool:
    return (one.gpu_instance, one.compute_instance) == (other.gpu_instance, other.compute_instance)

"""What the file makes of each device of this node, GPU or MIG device: its form, or why it is not on offer.

The one place where excluding, naming, sharing and what this node cannot do come together. Pure; the plan adds
health, holders and what was given out before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from nvdp.config.schema import Config, MigStrategy
from nvdp.model.deviceref import DeviceRef
from nvdp.model.health import Ailment
from nvdp.model.inventory import Gpu, Inventory
from nvdp.model.listing import Strategy
from nvdp.model.reasons import Reason
from nvdp.model.status import EXCLUDED
from nvdp.planning import pins as pinning
from nvdp.planning.assignment import Assignment, Form, Withheld
from nvdp.planning.devices import Device, list_instances, split_gpus
from nvdp.planning.entries import Entry, list_entries
from nvdp.planning.layout import is_unknown, judge_layout
from nvdp.planning.mps import ClientLimits, Unsupported, find_client_limits, find_unsupported
from nvdp.planning.naming import Named, name_device
from nvdp.planning.pins import find_present, pin_indices, refer
from nvdp.planning.sharing import Names, Problem, claim, find_short, pin_counts

_COUNTED = "counted for"


class Allotment(msgspec.Struct, frozen=True, kw_only=True):
    """Each of the ``devices``, in list order, is in ``assignments`` or in ``withheld``, by UUID.

    ``cordoned`` is the place in the file, of devices that are assigned but take no new pods. ``unmatched`` are
    sentences about what the file names and this node does not have. ``limits`` are those of one share, by UUID, of what
    MPS shares with limits.
    """

    devices: tuple[Device, ...]
    assignments: Mapping[str, Assignment]
    withheld: Mapping[str, Withheld]
    cordoned: Mapping[str, str]
    unmatched: tuple[str, ...]
    limits: Mapping[str, ClientLimits] = {}


def allot(config: Config, inventory: Inventory, pins: Mapping[str, str]) -> Allotment:
    """The allotment under ``pins`` (``resolve_pins``). The order of the inventory does not matter."""
    devices = split_gpus(config, inventory.gpus)
    entries = list_entries(config)
    excluded = _find_excluded(config, devices, pins)
    misfits = judge_layout(config, devices, excluded=excluded)
    named = _name_all(config, devices, excluded.keys() | misfits.keys())
    claims = claim(entries, devices, _find_names(named), pins)
    unsupported = find_unsupported(entries, devices, claims, pins, driver=inventory.driver)

    cordoned = _find_listed(devices, "devices.cordon", config.devices.cordon, pins)
    assignments: dict[str, Assignment] = {}
    withheld: dict[str, Withheld] = {}
    limits: dict[str, ClientLimits] = {}
    for device in devices:
        name = named.get(device.uuid)
        entry = claims.takers.get(device.uuid)
        intended = None if name is None else _assign(name, entry)
        reason = (
            _withhold_excluded(excluded.get(device.uuid))
            or misfits.get(device.uuid)
            or (_withhold_nameless() if name is None else None)
            or _withhold_entry(entry, claims.problems, unsupported)
        )
        if reason is not None:
            withheld[device.uuid] = msgspec.structs.replace(reason, intended=intended)
        else:
            assert intended is not None
            assignments[device.uuid] = intended
            if entry is not None and (limit := find_client_limits(entry, device, pins)) is not None:
                limits[device.uuid] = limit
    return Allotment(
        devices=devices,
        assignments=assignments,
        withheld=withheld,
        cordoned={uuid: path for uuid, path in cordoned.items() if uuid in assignments},
        unmatched=(
            *pinning.find_unmatched(config, devices, pins),
            *claims.strays,
            *(short for entry in entries if (short := find_short(entry, devices, claims, pins))),
        ),
        limits=limits,
    )


def find_untold(config: Config, gpus: Sequence[Gpu], pins: Mapping[str, str]) -> frozenset[str]:
    """GPUs and MIG devices of whose health nothing need be told: what is excluded, and what is no device of its own."""
    devices = split_gpus(config, gpus)
    excluded = _find_excluded(config, devices, pins)
    ours = [device for device in devices if device.uuid not in excluded]
    told = {device.uuid for device in ours} | {device.gpu.uuid for device in ours}
    known = {gpu.uuid for gpu in gpus} | {instance.uuid for gpu in gpus for instance in list_instances(gpu)}
    return frozenset(known - told)


def resolve_pins(
    config: Config, gpus: Sequence[Gpu], ailments: Mapping[str, Ailment], before: Mapping[str, str]
) -> dict[str, str]:
    """The UUIDs behind every reference by index and every count. What was pinned before stays pinned (invariant 10).

    With them comes the hash of the file for which counts were turned into devices.
    """
    devices = split_gpus(config, gpus)
    pins = pin_indices(config, gpus, ailments, before)
    excluded = _find_excluded(config, devices, pins)
    misfits = judge_layout(config, devices, excluded=excluded)
    named = _name_all(config, devices, excluded.keys() | misfits.keys())
    present = {gpu.uuid for gpu in find_present(gpus, ailments)}
    counts = pin_counts(
        list_entries(config),
        devices,
        _find_names(named),
        pins,
        before,
        absent={device.uuid for device in devices if device.gpu.uuid not in present or _may_be_cut(config, device)},
        excluded=_list_excluded(config, pins),
        edited=before.get(_COUNTED) != config.hash,
    )
    return pins | counts | ({_COUNTED: config.hash} if counts else {})


def _may_be_cut(config: Config, device: Device) -> bool:
    """Whether it may turn out to be MIG devices, none of which a count could mean now."""
    return config.flags.mig_strategy is not MigStrategy.NONE and is_unknown(device.gpu)


def _find_excluded(config: Config, devices: Sequence[Device], pins: Mapping[str, str]) -> dict[str, str]:
    """The devices that are none of ours, each with the place in the file that says so."""
    return _find_listed(devices, "devices.exclude", config.devices.exclude, pins)


def _name_all(config: Config, devices: Sequence[Device], unfit: Collection[str]) -> dict[str, Named | None]:
    return {device.uuid: name_device(config, device) for device in devices if device.uuid not in unfit}


def _find_names(named: Mapping[str, Named | None]) -> Names:
    return {uuid: name.name if name is not None else None for uuid, name in named.items()}


def _assign(named: Named, entry: Entry | None) -> Assignment:
    if entry is None:
        return Assignment(form=Form(str(named.name), shared=False), rule=named.rule)
    return Assignment(
        form=Form(str(entry.final_name), shared=entry.setting.is_shared, mps=entry.shared_strategy is Strategy.MPS),
        replicas=entry.setting.replicas,
        strategy=entry.shared_strategy,
        rule=entry.path,
    )


def _find_listed(
    devices: Sequence[Device], path: str, refs: Sequence[DeviceRef], pins: Mapping[str, str]
) -> dict[str, str]:
    found: dict[str, str] = {}
    for reference in refer(path, refs, of=path):
        mine = (device.uuid for device in devices if reference.concerns(device, pins))
        found = dict.fromkeys(mine, reference.path) | found
    return found


def _list_excluded(config: Config, pins: Mapping[str, str]) -> set[str]:
    """The excluded devices, on the node or not, as far as the file tells their UUIDs."""
    references = refer("devices.exclude", config.devices.exclude, of="devices.exclude")
    return {uuid for one in references if (uuid := one.find_uuid(pins)) is not None}


def _withhold_excluded(path: str | None) -> Withheld | None:
    return None if path is None else Withheld(reason=EXCLUDED, path=path, text="excluded")


def _withhold_nameless() -> Withheld:
    text = "its product name cannot be read, and the resource depends on it"
    return Withheld(reason="NameUnknown", path="resources.gpus", text=text)


def _withhold_entry(
    entry: Entry | None, problems: Mapping[str, Problem], unsupported: Mapping[str, Unsupported]
) -> Withheld | None:
    """Why this node does not do what the entry says; what the file itself has wrong comes first."""
    if entry is None:
        return None
    if (problem := problems.get(entry.path)) is not None:
        return Withheld(reason="EntryInvalid", path=problem.path, text=problem.text)
    if (one := unsupported.get(entry.path)) is not None:
        reason = Reason.MPS_UNSUPPORTED.word
        return Withheld(reason=reason, path=one.path, text=one.text, device=one.device, minimum=one.minimum)
    return None

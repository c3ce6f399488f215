"""What the file makes of each GPU of this node: its form, or why it is not on offer.

The one place where excluding, naming, sharing and what this version cannot do come together. Pure; the plan adds
health, holders and what was given out before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from nvdp.config.schema import Config
from nvdp.model.deviceref import DeviceRef
from nvdp.model.health import Ailment
from nvdp.model.inventory import Gpu, Inventory
from nvdp.model.status import EXCLUDED
from nvdp.planning import pins as pinning
from nvdp.planning.assignment import Assignment, Form, Withheld, order_gpus
from nvdp.planning.entries import Entry, list_entries
from nvdp.planning.mps import find_unsupported
from nvdp.planning.naming import Named, name_gpu
from nvdp.planning.pins import find_present, pin_indices, refer
from nvdp.planning.sharing import Names, Problem, claim, find_short, pin_counts
from nvdp.planning.withholding import withhold_unbuilt

_COUNTED = "counted for"


class Allotment(msgspec.Struct, frozen=True, kw_only=True):
    """Each GPU is in ``assignments`` or in ``withheld``, by UUID in list order.

    ``cordoned`` is the place in the file, of GPUs that are assigned but take no new pods. ``unmatched`` are sentences
    about what the file names and this node does not have.
    """

    assignments: Mapping[str, Assignment]
    withheld: Mapping[str, Withheld]
    cordoned: Mapping[str, str]
    unmatched: tuple[str, ...]


def allot(config: Config, inventory: Inventory, pins: Mapping[str, str]) -> Allotment:
    """The allotment under ``pins`` (``resolve_pins``). The order of the inventory does not matter."""
    gpus = order_gpus(inventory.gpus)
    entries = list_entries(config)
    excluded = find_excluded(config, gpus, pins)
    named = {gpu.uuid: name_gpu(config, gpu) for gpu in gpus if gpu.uuid not in excluded}
    claims = claim(entries, gpus, _find_names(named), pins)
    problems = {**find_unsupported(entries, gpus, claims, pins, driver=inventory.driver), **claims.problems}
    unbuilt = withhold_unbuilt(config, gpus, claims, pins)

    cordoned = _find_listed(gpus, "devices.cordon", config.devices.cordon, pins)
    assignments: dict[str, Assignment] = {}
    withheld: dict[str, Withheld] = {}
    for gpu in gpus:
        name = named.get(gpu.uuid)
        entry = claims.takers.get(gpu.uuid)
        intended = None if name is None else _assign(name, entry)
        reason = (
            _withhold_excluded(excluded.get(gpu.uuid))
            or (_withhold_nameless() if name is None else None)
            or _withhold_problem(problems.get(entry.path) if entry is not None else None)
            or unbuilt.get(gpu.uuid)
        )
        if reason is not None:
            withheld[gpu.uuid] = msgspec.structs.replace(reason, intended=intended)
        else:
            assert intended is not None
            assignments[gpu.uuid] = intended
    return Allotment(
        assignments=assignments,
        withheld=withheld,
        cordoned={uuid: path for uuid, path in cordoned.items() if uuid in assignments},
        unmatched=(
            *pinning.find_unmatched(config, gpus, pins),
            *claims.strays,
            *(short for entry in entries if (short := find_short(entry, gpus, claims, pins))),
        ),
    )


def find_excluded(config: Config, gpus: Sequence[Gpu], pins: Mapping[str, str]) -> dict[str, str]:
    """The GPUs that are none of ours, each with the place in the file that says so."""
    return _find_listed(gpus, "devices.exclude", config.devices.exclude, pins)


def resolve_pins(
    config: Config, gpus: Sequence[Gpu], ailments: Mapping[str, Ailment], before: Mapping[str, str]
) -> dict[str, str]:
    """The UUIDs behind every reference by index and every count. What was pinned before stays pinned (invariant 10).

    With them comes the hash of the file for which counts were turned into GPUs.
    """
    ordered = order_gpus(gpus)
    pins = pin_indices(config, ordered, ailments, before)
    excluded = find_excluded(config, ordered, pins)
    named = {gpu.uuid: name_gpu(config, gpu) for gpu in ordered if gpu.uuid not in excluded}
    counts = pin_counts(
        list_entries(config),
        ordered,
        _find_names(named),
        pins,
        before,
        absent={gpu.uuid for gpu in ordered}.difference(gpu.uuid for gpu in find_present(ordered, ailments)),
        excluded=_list_excluded(config, pins),
        edited=before.get(_COUNTED) != config.hash,
    )
    return pins | counts | ({_COUNTED: config.hash} if counts else {})


def _find_names(named: Mapping[str, Named | None]) -> Names:
    return {uuid: name.name if name is not None else None for uuid, name in named.items()}


def _assign(named: Named, entry: Entry | None) -> Assignment:
    if entry is None:
        return Assignment(form=Form(str(named.name), shared=False), rule=named.rule)
    return Assignment(
        form=Form(str(entry.final_name), shared=entry.setting.is_shared),
        replicas=entry.setting.replicas,
        strategy=entry.shared_strategy,
        rule=entry.path,
    )


def _find_listed(gpus: Sequence[Gpu], path: str, refs: Sequence[DeviceRef], pins: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for reference in refer(path, refs, of=path):
        if not reference.is_mig:
            found |= {
                gpu.uuid: reference.path for gpu in gpus if gpu.uuid not in found and reference.matches(gpu, pins)
            }
    return found


def _list_excluded(config: Config, pins: Mapping[str, str]) -> set[str]:
    """The excluded GPUs, on the node or not, as far as the file tells their UUIDs."""
    references = refer("devices.exclude", config.devices.exclude, of="devices.exclude")
    return {uuid for one in references if not one.is_mig and (uuid := one.find_uuid(pins)) is not None}


def _withhold_excluded(path: str | None) -> Withheld | None:
    return None if path is None else Withheld(reason=EXCLUDED, path=path, text="excluded")


def _withhold_nameless() -> Withheld:
    text = "its product name cannot be read, and the resource depends on it"
    return Withheld(reason="NameUnknown", path="resources.gpus", text=text)


def _withhold_problem(problem: Problem | None) -> Withheld | None:
    return None if problem is None else Withheld(reason="EntryInvalid", path=problem.path, text=problem.text)

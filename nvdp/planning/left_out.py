"""Devices that take no new pods under a configuration, and why, as ``nvdp plan`` shows them. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from nvdp.config.schema import Config
from nvdp.model.deviceref import RefKind
from nvdp.model.health import Ailment
from nvdp.model.inventory import Inventory
from nvdp.model.reasons import Cause, Reason
from nvdp.model.status import EXCLUDED
from nvdp.planning.assignment import Withheld
from nvdp.planning.pins import list_references
from nvdp.planning.plan import Plan
from nvdp.planning.remarks import find_common_obstacles


class Why(enum.Enum):
    """Why a device takes no new pods."""

    EXCLUDED = "excluded"
    CORDONED = "cordoned"
    UNHEALTHY = "unhealthy"
    WITHHELD = "withheld"
    UNNAMED = "unnamed"
    UNREADABLE = "unreadable"


OWN_DOING: Final = frozenset({Why.WITHHELD, Why.UNNAMED})
"""What is the file's or this version's doing."""


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """One device that takes no new pods. ``uuid`` is empty if it could not be read; a MIG device has a ``profile``.

    ``path`` is the place in the file that says so, ``by_slot`` that it is named by its PCI address there. ``brief`` is
    ``text`` without what a warning has already (``remarks``). ``listed_as`` is the resource under which it is listed
    all the same, Unhealthy; empty if it is not listed at all.
    """

    uuid: str
    pci: str
    product: str
    profile: str = ""
    why: Why
    path: str = ""
    by_slot: bool = False
    text: str = ""
    brief: str = ""
    listed_as: str = ""


def find_left_out(
    config: Config, inventory: Inventory, plan: Plan, ailments: Mapping[str, Ailment]
) -> Iterator[LeftOut]:
    """All of them, in the order of the lists; those that could not be read last."""
    yield from _find_devices(config, plan, ailments)
    yield from _find_unreadable(inventory)


def _find_devices(config: Config, plan: Plan, ailments: Mapping[str, Ailment]) -> Iterator[LeftOut]:
    told = find_common_obstacles(plan, ailments)
    slots = {one.path for one in list_references(config) if one.ref.kind is RefKind.PCI}
    for device in plan.devices:
        withheld, assignment = plan.withheld.get(device.uuid), plan.assignments.get(device.uuid)
        cordon, ailment = plan.cordoned.get(device.uuid), ailments.get(device.uuid)
        renumbered = plan.renumbered.get(device.uuid)
        path = text = brief = ""
        if withheld is not None:
            why, path = _classify(withheld), withheld.path
            text = "" if why is Why.EXCLUDED else withheld.text
        elif cordon is not None:
            why, path = Why.CORDONED, cordon
        elif ailment is not None:
            why, text = Why.UNHEALTHY, f"{ailment.cause.value}: {ailment.text}"
            brief = ailment.cause.value if (ailment.cause, ailment.text) in told else ""
        elif renumbered is not None:
            why, text = Why.UNHEALTHY, f"{Cause.HELD.value}: {renumbered.text}"
        else:
            continue
        yield LeftOut(
            uuid=device.uuid,
            pci=device.pci or "",
            product=device.product or "",
            profile=(device.instance.profile or "") if device.instance is not None else "",
            why=why,
            path=path,
            by_slot=path in slots and device.instance is None,
            text=text,
            brief=brief or text,
            listed_as=assignment.form.resource if assignment is not None else "",
        )


def _classify(withheld: Withheld) -> Why:
    if withheld.reason == EXCLUDED:
        return Why.EXCLUDED
    if withheld.intended is not None or withheld.reason == Reason.MIG_INVALID.word:
        return Why.WITHHELD
    return Why.UNNAMED


def _find_unreadable(inventory: Inventory) -> Iterator[LeftOut]:
    for gpu in inventory.unreadable:
        text = f"index {gpu.index}: {gpu.fault.text}"
        yield LeftOut(uuid="", pci=gpu.pci or "", product="", why=Why.UNREADABLE, by_slot=True, text=text, brief=text)

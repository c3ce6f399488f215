"""What a node file says of how a card fares, in NVML's numbers."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

import msgspec

from nvdp.nvml.conditions import (
    FABRIC_PARTS,
    FABRIC_STATES,
    FABRIC_SUCCESS,
    RECOVERY_ACTIONS,
    UNKNOWN_ACTION,
)
from nvdp.nvml.simulated.entries import ConditionEntry, FabricEntry, MistakeError
from nvdp.nvml.simulated.node import Condition, Fabric, parse_error_code

_UNSUPPORTED: Final = "Unsupported"
_UNHEARD_OF: Final = 99  # a recovery action of a driver to come
_ACTIONS: Final[dict[str, int | None]] = {
    **{word: number for number, word in RECOVERY_ACTIONS.items()},
    UNKNOWN_ACTION: _UNHEARD_OF,
    _UNSUPPORTED: None,
}
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_EXAMPLE: Final = "c1c1c1c1-c1c1-c1c1-c1c1-c1c1c1c1c1c1"
_ANY_CLUSTER: Final = bytes.fromhex(_EXAMPLE.replace("-", ""))
_STATES: Final = {word: number for number, word in FABRIC_STATES.items()}
# Cards since Ampere map faulty rows away, and count errors in SRAM; those before retire pages.
_REMAPS_ROWS_FROM: Final = 8
# Of cards on NVSwitches those since Hopper have a place in the fabric that NVML tells.
_FABRIC_FROM: Final = 9


def build_default_condition(compute_capability: str, *, nvswitch_links: int) -> Condition:
    """A card of this generation that is well."""
    major = int(compute_capability.partition(".")[0])
    remaps_rows = major >= _REMAPS_ROWS_FROM
    return Condition(
        remap_failure=False if remaps_rows else None,
        retired_pages_pending=None if remaps_rows else False,
        sram_errors=0 if remaps_rows else None,
        fabric=_build_fabric(FabricEntry(), place="") if nvswitch_links and major >= _FABRIC_FROM else None,
    )


def build_condition(entry: ConditionEntry, default: Condition, *, links: int, place: str) -> Condition:
    """``default`` with what ``entry`` says in its place. ``links`` is how many the card has. Raises MistakeError."""
    for number in entry.links_down:
        if not 0 <= number < links:
            raise MistakeError(f"{place}.linksDown: the card has no NVLink {number}; it has {links}")
    changes = {
        "remap_failure": entry.remap_failure,
        "retired_pages_pending": entry.retired_pages_pending,
        "sram_errors": entry.ecc.sram or None,
        "fabric": _build_fabric(entry.fabric, place=f"{place}.fabric") if entry.fabric is not None else None,
    }
    condition = msgspec.structs.replace(
        default,
        memory_errors=entry.ecc.memory,
        links_down=frozenset(entry.links_down),
        **{name: value for name, value in changes.items() if value is not None},
    )
    if entry.recovery_action is None:
        return condition
    action = _choose(entry.recovery_action, _ACTIONS, place=f"{place}.recoveryAction")
    return msgspec.structs.replace(condition, recovery_action=_ACTIONS[action])


def _build_fabric(entry: FabricEntry, *, place: str) -> Fabric:
    for fault in entry.faults:
        _choose(fault, [part.fault for part in FABRIC_PARTS], place=f"{place}.faults")
    status = 0 if entry.status == FABRIC_SUCCESS else parse_error_code(entry.status)
    if status is None:
        raise MistakeError(f"{place}.status: {entry.status} is neither {FABRIC_SUCCESS} nor an NVML error")
    return Fabric(
        state=_STATES[_choose(entry.state, _STATES, place=f"{place}.state")],
        status=status,
        health_mask=_build_health_mask(entry.faults),
        clique=entry.clique,
        cluster=_build_cluster(entry, place=f"{place}.cluster"),
    )


def _build_cluster(entry: FabricEntry, *, place: str) -> bytes:
    if entry.cluster is None:
        return _ANY_CLUSTER if entry.clique else b""
    if not _UUID.fullmatch(entry.cluster):
        raise MistakeError(f"{place}: {entry.cluster} is no UUID; write one like {_EXAMPLE}")
    return bytes.fromhex(entry.cluster.replace("-", ""))


def _build_health_mask(faults: Collection[str]) -> int:
    """Every part says that it is well, or that it is not: by the smallest number that does."""
    values = {part: 3 - part.well if part.fault in faults else part.well for part in FABRIC_PARTS}
    return sum(value << part.shift for part, value in values.items())


def _choose(word: str, words: Collection[str], *, place: str) -> str:
    if word not in words:
        raise MistakeError(f"{place}: {word} is none of {', '.join(words)}")
    return word

"""What a probe's readings mean: a table with a row for each, of what is healthy and what is not.

A reading that the GPU or its driver does not have says nothing, and one that failed says nothing either, but the probe
was not clean then. Nothing is held against a GPU that is not about now: counters count by what they grew, links by
having been up.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from nvdp.model.health import NvLink, Vitals
from nvdp.model.reasons import Cause

NO_ACTION: Final = "None"
UNSUPPORTED: Final = "Unsupported"
# What the driver asks for, by its word.
ACTIONS: Final = {
    "GPUReset": "a reset of the GPU",
    "NodeReboot": "a reboot of the node",
    "DrainP2P": "an end of all traffic between GPUs",
    "DrainAndReset": "a drain and then a reset of the GPU",
    "RecoverIMEXDomain": "a recovery of the IMEX domain",
    "BusReset": "a reset of the GPU's PCIe bus",
    "SystemReboot": "a restart of the whole system",
    "Unknown": "something that this version of nvdp does not know",
}
_COUNTERS: Final = {"uncorrected_memory": "the device memory", "uncorrected_sram": "caches and registers"}
# ``Misconfigured`` is not here: it is about what the fabric was told and not about the GPU, which goes on as it did.
_FABRIC_FAULTS: Final = {
    "DegradedBandwidth": "has less bandwidth than it should",
    "RouteRecovery": "is recovering its routes",
    "RouteUnhealthy": "has unhealthy routes",
    "AccessTimeoutRecovery": "is recovering from a timeout",
}


class Nature(enum.Enum):
    """What a finding is about, and with it how it ends.

    HAPPENED: earlier probes read something else. STANDS: the reading says it by itself, as long as it is so. PASSING:
    the GPU is being got ready, which is no fault and over as soon as it is done.
    """

    HAPPENED = "happened"
    STANDS = "stands"
    PASSING = "passing"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something unhealthy. ``text`` is for people."""

    cause: Cause
    nature: Nature
    text: str


class Baseline(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What earlier probes read, to be compared with: the counters, the links that were up, those that then were not."""

    uncorrected_memory: int | None = None
    uncorrected_sram: int | None = None
    links_up: tuple[NvLink, ...] = ()
    links_missed: tuple[int, ...] = ()


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What else bears on a reading.

    ``peers_away`` are the PCI addresses of GPUs of this node that are not in order just now, or in MIG mode, so that
    nobody is blamed for their ends of a link; ``in_mig_mode``: its links are off then. ``heeds_vitals`` and
    ``heeds_memory_errors``: see ``XidPolicy``.
    """

    peers_away: frozenset[str] = frozenset()
    in_mig_mode: bool = False
    heeds_vitals: bool = True
    heeds_memory_errors: bool = True


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """What one probe found. ``action`` is the driver's word, ``Unsupported``, or empty where asking failed.

    ``is_heeded``: the findings make the device Unhealthy; else they only keep it from recovering. ``baseline`` is what
    the next probe is to be compared with.
    """

    findings: tuple[Finding, ...]
    errors: tuple[str, ...]
    action: str
    is_heeded: bool
    baseline: Baseline

    @property
    def is_clean(self) -> bool:
        return not self.findings and not self.errors


class _Row(msgspec.Struct, frozen=True):
    """One row: it says nothing unless one of ``readings`` is there; then ``find`` tells what is unhealthy, if any."""

    readings: tuple[str, ...]
    find: Callable[[Vitals, Baseline, Surroundings], Finding | None]


def examine(vitals: Vitals, before: Baseline, around: Surroundings) -> Examination:
    """Judge the readings of one probe. ``before`` is empty for a GPU that was reset since, or never probed."""
    told = [row for row in _ROWS if any(getattr(vitals, name) is not None for name in row.readings)]
    findings = (row.find(vitals, before, around) for row in told)
    return Examination(
        findings=tuple(finding for finding in findings if finding is not None),
        errors=vitals.errors,
        action=vitals.recovery_action or ("" if vitals.errors else UNSUPPORTED),
        is_heeded=around.heeds_vitals,
        baseline=_advance(vitals, before, around),
    )


def describe_action(action: str) -> str:
    """What the driver asks for, as ``a reboot of the node``; empty where it asks for nothing, or nobody knows."""
    return "" if action in {"", NO_ACTION, UNSUPPORTED} else ACTIONS.get(action, ACTIONS["Unknown"])


def _find_action(vitals: Vitals, _before: Baseline, _around: Surroundings) -> Finding | None:
    asked = describe_action(vitals.recovery_action or "")
    text = f"the driver asked for {asked}"
    return Finding(cause=Cause.RECOVERY_ACTION, nature=Nature.STANDS, text=text) if asked else None


def _find_remap_failure(vitals: Vitals, _before: Baseline, _around: Surroundings) -> Finding | None:
    if not vitals.row_remap_failure:
        return None
    text = "a faulty row of the memory could not be replaced by a spare one; the card should be replaced"
    return Finding(cause=Cause.ROW_REMAP_FAILURE, nature=Nature.STANDS, text=text)


def _find_pending_pages(vitals: Vitals, _before: Baseline, _around: Surroundings) -> Finding | None:
    if not vitals.retired_pages_pending:
        return None
    text = "faulty pages of the memory are in use until the GPU is reset"
    return Finding(cause=Cause.RETIRED_PAGES_PENDING, nature=Nature.STANDS, text=text)


def _find_memory_errors(vitals: Vitals, before: Baseline, around: Surroundings) -> Finding | None:
    """New errors since the last probe. A counter that fell was set to zero by somebody: it begins anew."""
    new = []
    for name, place in _COUNTERS.items():
        count, known = getattr(vitals, name), getattr(before, name)
        if count is not None and known is not None and count > known:
            new.append(f"{count - known} in {place}")
    if not new or not around.heeds_memory_errors:
        return None
    return Finding(cause=Cause.ECC, nature=Nature.HAPPENED, text=f"new uncorrected memory errors: {', '.join(new)}")


def _find_links_down(vitals: Vitals, before: Baseline, around: Surroundings) -> Finding | None:
    """Links that were up and have been down in two probes: one that is trained anew meanwhile is none of them."""
    down = [number for number in _list_missed(vitals, before, around) if number in before.links_missed]
    if not down:
        return None
    numbers = ", ".join(map(str, down))
    text = f"NVLink {numbers} is down" if len(down) == 1 else f"NVLinks {numbers} are down"
    return Finding(cause=Cause.FABRIC_DEGRADED, nature=Nature.HAPPENED, text=text)


def _find_fabric_fault(vitals: Vitals, _before: Baseline, _around: Surroundings) -> Finding | None:
    """The GPU's place in an NVSwitch fabric. One that never started to look for a place needs none."""
    if vitals.fabric_state == "InProgress":
        text = "the Fabric Manager has not set up the GPU yet"
        return Finding(cause=Cause.FABRIC_DEGRADED, nature=Nature.PASSING, text=text)
    if vitals.fabric_state != "Completed":
        return None
    if vitals.fabric_status not in {None, "Success"}:
        text = f"the Fabric Manager could not set up the GPU ({vitals.fabric_status})"
        return Finding(cause=Cause.FABRIC_DEGRADED, nature=Nature.STANDS, text=text)
    faults = [_FABRIC_FAULTS[fault] for fault in vitals.fabric_faults if fault in _FABRIC_FAULTS]
    if not faults:
        return None
    text = f"the GPU's NVLink fabric {', '.join(faults)}"
    return Finding(cause=Cause.FABRIC_DEGRADED, nature=Nature.STANDS, text=text)


_ROWS: Final = (
    _Row(("recovery_action",), _find_action),
    _Row(("row_remap_failure",), _find_remap_failure),
    _Row(("retired_pages_pending",), _find_pending_pages),
    _Row(tuple(_COUNTERS), _find_memory_errors),
    _Row(("nvlinks",), _find_links_down),
    _Row(("fabric_state",), _find_fabric_fault),
)


def _advance(vitals: Vitals, before: Baseline, around: Surroundings) -> Baseline:
    """The readings of now over those of before. What could not be read this time keeps its last value."""
    counters = {
        name: count if (count := getattr(vitals, name)) is not None else getattr(before, name) for name in _COUNTERS
    }
    if around.in_mig_mode:
        return Baseline(**counters)
    if vitals.nvlinks is None:
        return Baseline(**counters, links_up=before.links_up, links_missed=before.links_missed)
    known = {link.number: link for link in before.links_up}
    known |= {link.number: _keep_peer(link, known.get(link.number)) for link in vitals.nvlinks if link.up}
    return Baseline(
        **counters,
        links_up=tuple(known[number] for number in sorted(known)),
        links_missed=_list_missed(vitals, before, around),
    )


def _list_missed(vitals: Vitals, before: Baseline, around: Surroundings) -> tuple[int, ...]:
    """Links that are down and were up, except those to a GPU that is not in order itself."""
    if around.in_mig_mode:
        return ()
    peers = {link.number: link.peer for link in before.links_up}
    return tuple(
        link.number
        for link in vitals.nvlinks or ()
        if not link.up and link.number in peers and not _is_away(peers[link.number], around.peers_away)
    )


def _is_away(peer: str | None, away: Collection[str]) -> bool:
    return peer is not None and peer in away


def _keep_peer(link: NvLink, known: NvLink | None) -> NvLink:
    """A link that is up, with its other end as it was last told."""
    return link if link.peer is not None or known is None else known

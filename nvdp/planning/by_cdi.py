"""Which of the devices that pods hold they may have got by CDI: what must resolve whatever the file says by now. Pure.

The kubelet keeps Allocate's answer and gives it to the container again at each of its restarts, after a reboot too,
when the directory of the specs is empty (kubelet contract, "Allocate"). So names that were handed out must be written
as long as their pods are there, though the file has gone back to another way since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from nvdp.model.held import Held, Holding
from nvdp.planning.handed_out import Trail, follow_handed_out
from nvdp.planning.ledger import Given

ByCdi: TypeAlias = Mapping[str, Mapping[str, float]]
"""By resource and ID, at the latest when it was handed out (monotonic seconds)."""


def restore_by_cdi(kept: Mapping[str, Iterable[str]], *, now: float) -> ByCdi:
    """What a predecessor handed out (``keep_by_cdi``), perhaps as late as now."""
    return {resource: dict.fromkeys(ids, now) for resource, ids in kept.items()}


def keep_by_cdi(by_cdi: ByCdi) -> dict[str, tuple[str, ...]]:
    """What must outlive the process."""
    return {resource: tuple(ids) for resource, ids in by_cdi.items()}


def follow_by_cdi(
    before: ByCdi,
    *,
    is_used: bool,
    given: Mapping[str, Given],
    holders: Mapping[str, Mapping[str, Holding]],
    held: Held,
) -> ByCdi:
    """The IDs that pods may have got by CDI, for one plan; rather some too many.

    While CDI is in use (``is_used``), or the list still in force hands out by it, these are all that are held and all
    of which an Allocate is under way or cannot be seen yet. Afterwards they are those of them that still are, until an
    Allocate hands the ID out by other means. What nobody holds is forgotten, by an answer about holders that was
    requested 2 s after it was handed out.
    """

    def is_now(record: Given | None) -> bool:
        return is_used or (record is not None and record.listed.facts.uses_cdi)

    def judge(trail: Trail[float]) -> tuple[float, float] | None:
        trace, at = trail.trace, trail.seen_at if trail.before is None else trail.before
        if trace.answered_at is not None:
            at = trace.answered_at
            if not trace.by_cdi and not is_now(trail.record) and not trace.in_flight:
                return None
        return at, at

    return follow_handed_out(
        before,
        is_used=is_now,
        tells=lambda trace: trace.by_cdi,
        judge=judge,
        given=given,
        holders=holders,
        held=held,
    )


def has_unseen(by_cdi: ByCdi, holders: Mapping[str, Mapping[str, Holding]]) -> bool:
    """Whether an answer about holders may have some of it forgotten."""
    return any(ids.keys() - holders.get(resource, {}).keys() for resource, ids in by_cdi.items())

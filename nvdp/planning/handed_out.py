"""What is remembered of each ID that was handed out, for as long as a pod has it or may have it. Pure.

The kubelet gives a container again what Allocate answered once, at each of its restarts (kubelet contract, "Allocate").
So what was said then matters until no pod has the ID any more. ``by_cdi`` and ``indices`` each remember one such thing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import msgspec

from nvdp.model.held import Held, Holding
from nvdp.model.listing import AllocateTrace
from nvdp.planning.ledger import Given, order_of_id
from nvdp.planning.withdrawal import QUIET_S

Value = TypeVar("Value")


class Trail(msgspec.Struct, Generic[Value], frozen=True, kw_only=True):
    """What is known of one ID: the ``record`` of its resource, its last Allocate, and what was remembered ``before``.

    ``seen_at`` is when the newest answer about holders was requested, ``is_held`` whether that names a pod that has it.
    """

    device_id: str
    record: Given | None
    trace: AllocateTrace
    before: Value | None
    is_held: bool
    seen_at: float


def follow_handed_out(
    before: Mapping[str, Mapping[str, Value]],
    *,
    is_used: Callable[[Given | None], bool],
    tells: Callable[[AllocateTrace], bool],
    judge: Callable[[Trail[Value]], tuple[Value, float] | None],
    given: Mapping[str, Given],
    holders: Mapping[str, Mapping[str, Holding]],
    held: Held,
) -> dict[str, dict[str, Value]]:
    """What is to be remembered after one plan, by resource and ID, in order; rather some too many.

    It concerns what was known ``before``, what an Allocate says by itself (``tells``), and where the thing is in use by
    now (``is_used``, of a resource) all that is held or under way. ``judge`` says what is remembered of an ID, and at
    the latest when that was handed out (monotonic seconds); None forgets it. What nobody holds is forgotten, by an
    answer about holders that was requested 2 s after it was handed out.
    """
    found: dict[str, dict[str, Value]] = {}
    for resource in sorted(before.keys() | given.keys() | holders.keys()):
        record = given.get(resource)
        traces = record.allocations if record is not None else {}
        mine, known, is_now = holders.get(resource, {}), before.get(resource, {}), is_used(record)
        ids = known.keys() | {device_id for device_id, trace in traces.items() if is_now or tells(trace)}
        for device_id in sorted(ids | mine.keys() if is_now else ids, key=order_of_id):
            trail = Trail(
                device_id=device_id,
                record=record,
                trace=traces.get(device_id, AllocateTrace()),
                before=known.get(device_id),
                is_held=device_id in mine,
                seen_at=held.requested_at,
            )
            judged = judge(trail)
            if judged is None:
                continue
            value, at = judged
            if trail.is_held or trail.trace.in_flight or held.requested_at < at + QUIET_S:
                found.setdefault(resource, {})[device_id] = value
    return found

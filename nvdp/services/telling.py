"""What the supervisor tells the world about: plans that follow one another, devices that come, go, ail or are well.

Belongs to the main thread. What is worth telling is decided by ``planning/announcing`` and its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Protocol

from nvdp.log import Log
from nvdp.model.health import Ailment
from nvdp.model.held import Holding
from nvdp.model.inventory import Inventory
from nvdp.model.mps import MpsView
from nvdp.model.reasons import Cause
from nvdp.planning.ailing import drop_partial, list_parts
from nvdp.planning.announcing import announce_emptied, announce_plan
from nvdp.planning.arrivals import announce_arrivals
from nvdp.planning.devices import Device, list_instances
from nvdp.planning.health_news import Around, announce_health, keep_actions
from nvdp.planning.layout_news import announce_late_holders, announce_layouts, announce_unread_memory
from nvdp.planning.mps_news import Told, announce_mps, announce_pending
from nvdp.planning.mps_pending import Pending, find_pending
from nvdp.planning.plan import Plan
from nvdp.planning.reporting_mps import list_needed
from nvdp.planning.wording import Announcement
from nvdp.services.events import GpusScanned


class HealthObserver(Protocol):
    """Counts (metrics/)."""

    def device_health_changed(self, uuid: str, to: str) -> None: ...


class Telling:
    """Remembers the GPUs, and who ails of those that are ours, as far as it was told."""

    def __init__(self, log: Log, observer: HealthObserver) -> None:
        self._log = log
        self._observer = observer
        self._ailing: Mapping[str, Ailment] = {}
        self._told: Mapping[str, Ailment] = {}  # the same, but for pauses, through which what was told stands
        self._inventory: Inventory | None = None
        self._untold: AbstractSet[str] = frozenset()
        self._mps: MpsView | None = None
        self._told_of_mps = Told()
        self._pending: Mapping[str, Pending] = {}

    def tell_scan(
        self, scan: GpusScanned, untold: AbstractSet[str], *, plan: Plan | None, holders: Iterable[Holding]
    ) -> frozenset[str]:
        """A scan with an inventory: log what it changed, but for what is ``untold``. Whose health changed."""
        before, after = self._inventory, scan.inventory
        assert after is not None
        known = tuple(holders)
        self._inventory = after
        self._announce(announce_arrivals(before, after, untold=untold | self._untold))  # who is gone was untold before
        self._untold = untold
        self._announce(announce_layouts(before, after, untold=untold, holders=known))

        devices = {device.uuid: device for device in _list_devices(after) if device.uuid not in untold}
        parts = list_parts(devices.values())
        was = {uuid: ailment for uuid, ailment in self._ailing.items() if uuid not in untold}
        self._ailing = {uuid: ailment for uuid, ailment in scan.ailments.items() if uuid not in untold}
        changed = frozenset(drop_partial(was, parts).keys() ^ drop_partial(self._ailing, parts).keys())
        for uuid in changed:
            self._observer.device_health_changed(uuid, "unhealthy" if uuid in self._ailing else "healthy")
        around = Around(devices=devices, plan=plan, holders=known, recoveries=scan.recoveries, wall=scan.wall)
        told = {uuid: ailment for uuid, ailment in self._told.items() if uuid not in untold}
        seen = _see_through_pause(told, self._ailing)
        self._told = keep_actions(told, seen, parts)
        self._announce(announce_health(told, seen, around))
        return changed

    def tell_mps(self, view: MpsView, plan: Plan | None) -> None:
        """The daemons of MPS are seen anew. Those that no plan needs are of no interest."""
        self._mps = view
        self._told_of_mps, news = announce_mps(self._told_of_mps, view, list_needed(plan))
        self._announce(news)
        before, self._pending = self._pending, find_pending(plan, view) if plan is not None else {}
        self._announce(announce_pending(before, self._pending))

    def tell_plan(self, before: Plan | None, after: Plan) -> None:
        """A plan follows another one."""
        if self._mps is not None:
            self.tell_mps(self._mps, after)
        self._announce(announce_plan(before, after))
        self._announce(announce_late_holders(before, after))
        self._announce(announce_unread_memory(before, after))

    def tell_emptied(self, before: Plan | None, after: Plan, ailments: Mapping[str, Ailment]) -> None:
        """A configuration has come into force: which resources does it leave empty?"""
        self._announce(announce_emptied(before, after, ailments))

    def _announce(self, announcements: Iterable[Announcement]) -> None:
        for announcement in announcements:
            self._log(announcement.reason, announcement.text, level=None, **announcement.fields)


def _see_through_pause(told: Mapping[str, Ailment], ailing: Mapping[str, Ailment]) -> dict[str, Ailment]:
    """Who ails now; of a device that is let go of, what was told last: a pause is told as one thing, by others."""
    paused = {uuid for uuid, ailment in ailing.items() if ailment.cause is Cause.DRIVER_PAUSED}
    return {
        uuid: told[uuid] if uuid in paused else ailment
        for uuid, ailment in ailing.items()
        if uuid not in paused or uuid in told
    }


def _list_devices(inventory: Inventory) -> Iterable[Device]:
    """Every GPU, and every MIG device."""
    for gpu in inventory.gpus:
        yield Device(gpu=gpu)
        yield from (Device(gpu=gpu, instance=instance) for instance in list_instances(gpu))

"""What the supervisor tells the world about: plans that follow one another, and devices that turned Unhealthy or well.

Belongs to the main thread. What is worth telling is ``planning/announcing``'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Protocol

from nvdp.log import Log
from nvdp.model.health import Ailment
from nvdp.model.held import Holding
from nvdp.model.inventory import Inventory
from nvdp.planning.announcing import Announcement, announce_emptied, announce_health, announce_plan
from nvdp.planning.plan import Plan
from nvdp.services.events import GpusScanned


class HealthObserver(Protocol):
    """Counts (metrics/)."""

    def device_health_changed(self, uuid: str, to: str) -> None: ...


class Telling:
    """Remembers who ails of the GPUs that are ours, as far as it was told."""

    def __init__(self, log: Log, observer: HealthObserver) -> None:
        self._log = log
        self._observer = observer
        self._ailing: Mapping[str, Ailment] = {}

    def tell_health(
        self, scan: GpusScanned, excluded: AbstractSet[str], *, plan: Plan | None, holders: Iterable[Holding]
    ) -> frozenset[str]:
        """A scan with an inventory: log what it changed, but for GPUs that are ``excluded``. Whose health changed."""
        assert scan.inventory is not None
        was = {uuid: ailment for uuid, ailment in self._ailing.items() if uuid not in excluded}
        self._ailing = {uuid: ailment for uuid, ailment in scan.ailments.items() if uuid not in excluded}
        changed = frozenset(was.keys() ^ self._ailing.keys())
        for uuid in changed:
            self._observer.device_health_changed(uuid, "unhealthy" if uuid in self._ailing else "healthy")
        self._announce(
            announce_health(
                was,
                self._ailing,
                gpus={gpu.uuid: gpu for gpu in scan.inventory.gpus},
                plan=plan,
                holders=holders,
                recoveries=scan.recoveries,
                wall=scan.wall,
            )
        )
        return changed

    def tell_plan(self, before: Plan | None, after: Plan, inventory: Inventory) -> None:
        """A plan follows another one."""
        self._announce(announce_plan(before, after, inventory))

    def tell_emptied(self, before: Plan | None, after: Plan, ailments: Mapping[str, Ailment]) -> None:
        """A configuration has come into force: which resources does it leave empty?"""
        self._announce(announce_emptied(before, after, ailments))

    def _announce(self, announcements: Iterable[Announcement]) -> None:
        for announcement in announcements:
            self._log(announcement.reason, announcement.text, level=None, **announcement.fields)

"""What keeps devices from being handed over, as the supervisor sees it, and what is asked of the CDI specs for it.

Belongs to the main thread; the specs are written by services/cdi.py in its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, Protocol

import msgspec

from nvdp.config.schema import Config
from nvdp.model.cdi import CdiState, CdiWish
from nvdp.model.health import Ailment
from nvdp.model.reasons import Cause
from nvdp.planning.means import Means, find_obstacles
from nvdp.services.events import GpusScanned

PATIENCE_S: Final = 5.0


class SpecWriter(Protocol):
    """Makes the specs as they are wanted, and posts ``CdiWritten`` when they are, or cannot be (services/cdi.py)."""

    def want(self, wish: CdiWish, /) -> None: ...


class Specs:
    """Adds what is in the way of devices to what ails them, and remembers since when it is.

    Devices that the specs do not have yet are neither offered nor called Unhealthy for ``PATIENCE_S``: ``holds_back``
    says that lists have to wait, so that a start, or an edit that brings in CDI, takes no device away in between. They
    do not wait for a device once the writer was asked for it and has said what is wrong.
    """

    def __init__(self, writer: SpecWriter, *, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        self._writer = writer
        self._clock = clock
        self._wall = wall
        self._wish: CdiWish | None = None
        self._state = CdiState()
        self._missing_since: dict[str, float] = {}
        self._known: dict[str, Ailment] = {}
        self.next_at: float | None = None

    @property
    def holds_back(self) -> bool:
        """Whether lists have to wait, until ``next_at`` at the latest (monotonic seconds)."""
        return self.next_at is not None

    @property
    def are_none(self) -> bool:
        """Whether no specs are wanted, and none of ours are left."""
        wish, state = self._wish, self._state
        return wish is not None and not wish.enabled and state.answered and not state.names

    def take(self, state: CdiState) -> None:
        """The writer's answer."""
        self._state = state

    def want(self, wish: CdiWish) -> None:
        """Have the specs made so. Nothing if that was wanted last."""
        if wish != self._wish:
            self._wish = wish
            self._writer.want(wish)

    def build_means(self, scan: GpusScanned) -> Means:
        """By what means devices are handed over."""
        return Means(
            control_nodes=scan.control_nodes,
            missing_nodes=scan.missing_nodes,
            imex_channels=scan.imex_channels,
            specs=self._state,
        )

    def see(self, scan: GpusScanned, config: Config | None) -> GpusScanned:
        """The scan with what is in the way of its devices under this configuration among their ailments."""
        found = {}
        if config is not None and scan.inventory is not None:
            found = find_obstacles(config, scan.inventory, self.build_means(scan), ailing=scan.ailments.keys())
        now = self._clock()
        missing = {uuid for uuid, (cause, _) in found.items() if cause is Cause.CDI_MISSING}
        self._missing_since = {uuid: self._missing_since.get(uuid, now) for uuid in missing}
        refused = self._find_refused(scan, config, missing) if missing and self._state.problem else frozenset()
        waiting = {
            uuid: since + PATIENCE_S
            for uuid, since in self._missing_since.items()
            if since + PATIENCE_S > now and uuid not in refused
        }
        self.next_at = min(waiting.values(), default=None)
        self._known = {
            uuid: self._build(uuid, cause, text) for uuid, (cause, text) in found.items() if uuid not in waiting
        }
        return msgspec.structs.replace(scan, ailments={**self._known, **scan.ailments}) if self._known else scan

    def _find_refused(self, scan: GpusScanned, config: Config | None, missing: Collection[str]) -> frozenset[str]:
        """The missing devices that the writer was asked for and did not write."""
        assert config is not None
        assert scan.inventory is not None
        state = self._state
        written = msgspec.structs.replace(
            state, names=state.names | state.asked.keys(), nodes={**state.nodes, **state.asked}
        )
        means = msgspec.structs.replace(self.build_means(scan), specs=written)
        found = find_obstacles(config, scan.inventory, means, ailing=scan.ailments.keys())
        return frozenset(uuid for uuid in missing if uuid not in found or found[uuid][0] is not Cause.CDI_MISSING)

    def _build(self, uuid: str, cause: Cause, text: str) -> Ailment:
        known = self._known.get(uuid)
        since = known.since if known is not None and known.cause is cause else self._wall()
        return Ailment(cause=cause, text=text, since=since)

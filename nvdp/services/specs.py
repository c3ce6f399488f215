"""What keeps devices from being handed over, as the supervisor sees it, and what is asked of the CDI specs for it.

Belongs to the main thread; the specs are written by services/cdi.py in its own.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from nvdp.config.schema import Config
from nvdp.log import Log
from nvdp.model.cdi import CdiState, CdiWish
from nvdp.model.health import Ailment
from nvdp.model.reasons import Cause, Reason
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
    do not wait for a device once the writer was asked for it and has said what is wrong, nor longer for those that come
    while they wait already: however many come one after the other, no list waits for longer than that. If the writer
    says nothing at all for that long, what a predecessor wrote counts.
    """

    def __init__(self, writer: SpecWriter, *, log: Log, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        self._writer = writer
        self._log = log
        self._clock = clock
        self._wall = wall
        self._wish: CdiWish | None = None
        self._state = CdiState()
        self._missing_since: dict[str, float] = {}
        self._known: dict[str, Ailment] = {}
        self._waits_since: float | None = None
        self._error = ""

    @property
    def holds_back(self) -> bool:
        """Whether lists have to wait, until ``next_at`` at the latest."""
        return self._waits_since is not None

    @property
    def next_at(self) -> float | None:
        """When lists wait no longer, whatever the writer says (monotonic seconds). None while they do not wait."""
        return None if self._waits_since is None else self._waits_since + PATIENCE_S

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
            self._writer.want(wish)
            self._wish = wish

    def build_means(self, scan: GpusScanned) -> Means:
        """By what means devices are handed over."""
        return Means(
            control_nodes=scan.control_nodes,
            missing_nodes=scan.missing_nodes,
            imex_channels=scan.imex_channels,
            specs=self._state,
        )

    def see(self, scan: GpusScanned, config: Config | None) -> GpusScanned:
        """The scan with what is in the way of its devices under this configuration among their ailments.

        After a defect it is what was in their way before.
        """
        try:
            self._judge(scan, config)
            self._error = ""
        except Exception as error:  # noqa: BLE001 - a defect must neither take a device away nor end the process
            self._tell_defect(error)
            self._waits_since = None
        return msgspec.structs.replace(scan, ailments={**self._known, **scan.ailments}) if self._known else scan

    def _judge(self, scan: GpusScanned, config: Config | None) -> None:
        if config is None or scan.inventory is None:
            self._missing_since, self._known, self._waits_since = {}, {}, None
            return
        now, state = self._clock(), self._state
        # What a predecessor wrote counts only if the writer does not answer for long.
        found = self._find(scan, config, state if state.answered else CdiState())
        missing = {uuid for uuid, (cause, _) in found.items() if cause is Cause.CDI_MISSING}
        if missing and not state.answered:
            found = self._find(scan, config, state)
        refused = missing - self._list_unasked(scan, config) if missing and state.problem else frozenset()
        begun_at = now if self._waits_since is None else self._waits_since
        self._missing_since = {uuid: self._missing_since.get(uuid, begun_at) for uuid in missing}
        waiting = {
            uuid: since
            for uuid, since in self._missing_since.items()
            if since + PATIENCE_S > now and uuid not in refused
        }
        self._waits_since = min(waiting.values(), default=None)
        self._known = {
            uuid: self._build(uuid, cause, text) for uuid, (cause, text) in found.items() if uuid not in waiting
        }

    def _tell_defect(self, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if text != self._error:
            told = f"judging what is in the way of devices failed, what was known stays: {text}"
            self._log(Reason.SERVICE_RESTARTED, told, error=text, trace=traceback.format_exc())
        self._error = text

    def _list_unasked(self, scan: GpusScanned, config: Config) -> frozenset[str]:
        """The devices that would be missing, too, if the specs had all that the writer was asked for."""
        state = self._state
        written = msgspec.structs.replace(
            state, names=state.names | state.asked.keys(), nodes={**state.nodes, **state.asked}
        )
        found = self._find(scan, config, written)
        return frozenset(uuid for uuid, (cause, _) in found.items() if cause is Cause.CDI_MISSING)

    def _find(self, scan: GpusScanned, config: Config, state: CdiState) -> dict[str, tuple[Cause, str]]:
        assert scan.inventory is not None
        means = msgspec.structs.replace(self.build_means(scan), specs=state)
        return find_obstacles(config, scan.inventory, means, ailing=scan.ailments.keys())

    def _build(self, uuid: str, cause: Cause, text: str) -> Ailment:
        known = self._known.get(uuid)
        since = known.since if known is not None and known.cause is cause else self._wall()
        return Ailment(cause=cause, text=text, since=since)

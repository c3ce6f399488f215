"""What the service that knows the GPUs is told: its settings, and when to let go of the driver and to take it back.

Belongs to the main thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from nvdp.config.schema import Config, HealthSettings
from nvdp.log import Log
from nvdp.model.pause import Pause
from nvdp.model.reasons import Cause, Reason
from nvdp.nvml.children import Source
from nvdp.planning.assignment import order_gpus
from nvdp.planning.release import RELEASED_S, Release, advance_release, asks_for_reset, end_release
from nvdp.planning.wording import join_some
from nvdp.services.events import GpusScanned

FILE_KEY = "devices.paused"
RELEASE_KEY = "health.releaseForReset"
_UNKNOWN = "no configuration is known yet that says otherwise"
_UNASKED = frozenset({Cause.DRIVER_LOST, Cause.DRIVER_PAUSED})


def build_source(config: Config) -> Source:
    """Where and how GPUs are looked for, as the configuration says."""
    flags = config.flags
    return Source(driver_root=flags.plugin.container_driver_root, discovery=flags.device_discovery_strategy)


class Gpus(Protocol):
    """The service that knows the GPUs (services/gpus.py)."""

    def configure(
        self,
        *,
        rescan_interval_s: float,
        remove_after_s: float,
        call_timeout_s: float,
        source: Source,
        health: HealthSettings,
        excluded: frozenset[str] = frozenset(),
    ) -> None: ...

    def pause(self, pause: Pause, /) -> None: ...

    def resume(self) -> None: ...


class Steering:
    """A pause has one of three origins: an order, the file's ``devices.paused``, and ``health.releaseForReset``.

    The driver is let go of as long as one of them stands. ``ordered`` is an order from before the start. ``is_held``:
    the file may say so too, and until that is known the driver is not touched. ``clock`` is monotonic, ``wall`` is for
    people. ``watches_holders``: whether it matters at the moment that pods come and go.
    """

    def __init__(
        self,
        gpus: Gpus,
        *,
        ordered: Pause | None,
        log: Log,
        clock: Callable[[], float],
        wall: Callable[[], float],
        is_held: bool = False,
    ) -> None:
        self._gpus = gpus
        self._is_held = is_held
        self._log = log
        self._clock = clock
        self._wall = wall
        self._config: Config | None = None
        self._excluded: frozenset[str] = frozenset()
        self._ordered = ordered
        self._by_file: Pause | None = None
        self._released: Pause | None = None
        self._release = Release()
        self.pause: Pause | None = None
        self.watches_holders = False
        self._follow()

    @property
    def next_at(self) -> float | None:
        """When the driver is to be taken back, or may be let go of again (monotonic seconds): ``consider`` then."""
        return self._release.ends_at

    def configure(self, config: Config | None) -> None:
        """From now on as this configuration has it; None if there is none yet, which changes nothing."""
        if config is None or config is self._config:
            return
        is_first, self._config = self._config is None, config
        self._configure_gpus(config)
        if not config.devices.paused:
            self._by_file = None
        elif self._by_file is None or is_first:
            self._by_file = Pause(by=f"{FILE_KEY} of {config.name}", since=self._wall())
        self._follow(is_first=is_first)

    def exclude(self, uuids: frozenset[str]) -> None:
        """From now on these GPUs are none of ours: nothing is done, or left undone, because of them."""
        if uuids != self._excluded:
            self._excluded = uuids
            if self._config is not None:
                self._configure_gpus(self._config)

    def order(self, pause: Pause | None) -> None:
        """An operator's word: let go of the driver, or (None) take it back, should nothing else speak against it."""
        self._ordered = pause
        if pause is None:
            self._release, self._released = end_release(self._release, now=self._clock()), None
            if self._is_held and self._config is None and self._by_file is None:
                self._by_file = Pause(by=FILE_KEY, note=_UNKNOWN, since=self._wall())
        self._follow()

    def consider(self, scan: GpusScanned | None, *, held: bool) -> None:
        """Let go of the driver for a while, where the file allows it: a GPU of ours asks for a reset, and all are idle.

        ``held`` is whether pods hold anything of ours, or whether nobody knows.
        """
        if self._config is None or not self._config.health.release_for_reset:
            if self._released is not None:
                self._release, self._released = Release(), None
                self._follow()
            self.watches_holders = False
            return
        asked, idle = _judge(scan, self._excluded)
        self.watches_holders = asked is True
        self._release = advance_release(self._release, now=self._clock(), asked=asked, idle=idle, held=held)
        is_released = self._release.ends_at is not None
        if is_released == (self._released is not None):
            return
        note = f"{_name_asking(scan, self._excluded)} a reset and all are idle, for {RELEASED_S:g}s"
        self._released = Pause(by=RELEASE_KEY, note=note, since=self._wall()) if is_released else None
        self._follow()

    def _configure_gpus(self, config: Config) -> None:
        self._gpus.configure(
            rescan_interval_s=config.devices.rescan_interval.seconds,
            remove_after_s=config.devices.remove_after.seconds,
            call_timeout_s=config.health.call_timeout.seconds,
            source=build_source(config),
            health=config.health,
            excluded=self._excluded,
        )

    def _follow(self, *, is_first: bool = False) -> None:
        """Tell the service what follows from the origins, and everybody what changed."""
        before, self.pause = self.pause, self._ordered or self._by_file or self._released
        if self.pause is not None and self.pause != before:
            self._gpus.pause(self.pause)
            text = (
                f"{self.pause}: all devices Unhealthy, the driver is free; it is taken back by {_ends_by(self.pause)}"
            )
            self._log(Reason.DRIVER_PAUSED, text, by=self.pause.by)
        elif self.pause is None and (before is not None or is_first):
            self._gpus.resume()
            if before is not None:
                seconds = max(0.0, self._wall() - before.since)
                text = f"the driver is taken back; was {before} for {seconds:.0f}s"
                self._log(Reason.DRIVER_RESUMED, text, by=before.by, seconds=round(seconds))


def _ends_by(pause: Pause) -> str:
    if pause.by.startswith(FILE_KEY):
        return f"{FILE_KEY}: false"
    return "itself, or by nvdp resume" if pause.by == RELEASE_KEY else "nvdp resume"


def _judge(scan: GpusScanned | None, excluded: frozenset[str]) -> tuple[bool | None, bool]:
    """Whether a GPU of ours asks for a reset (None: nobody knows), and whether nobody computes on any."""
    if scan is None or any(ailment.cause in _UNASKED for ailment in scan.ailments.values()):
        return None, False
    actions = (ailment.action for uuid, ailment in scan.ailments.items() if uuid not in excluded)
    return asks_for_reset(actions), scan.busy is not None and excluded.issuperset(scan.busy)


def _name_asking(scan: GpusScanned | None, excluded: frozenset[str]) -> str:
    """``GPU 3 (0000:47:00.0) asks for``: the GPUs that do, by index and PCI address."""
    gpus = order_gpus(scan.inventory.gpus) if scan is not None and scan.inventory is not None else ()
    ailments = scan.ailments if scan is not None else {}
    names = [
        f"GPU {gpu.index}{f' ({gpu.pci})' if gpu.pci else ''}"
        for gpu in gpus
        if gpu.uuid not in excluded and gpu.uuid in ailments and asks_for_reset([ailments[gpu.uuid].action])
    ]
    return f"{join_some(names) or 'a GPU'} {'ask' if len(names) > 1 else 'asks'} for"

"""Which configuration is in force: the newest valid one that this node can take, else the one before.

Belongs to the main thread. A configuration that is refused changes nothing; what was in force is remembered in the
state directory, so that a restart with a broken file goes on with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from nvdp.config.schema import Config
from nvdp.config.unbuilt import find_unbuilt
from nvdp.host.state import AppliedConfig
from nvdp.log import Log
from nvdp.model.inventory import Gpu, Inventory
from nvdp.model.reasons import Reason
from nvdp.model.status import ConfigStatus
from nvdp.planning.judging import find_unfit
from nvdp.planning.pins import find_unmatched, resolve_pins
from nvdp.services.events import ConfigRead


class Memory(Protocol):
    """What outlives the process (services/remembering.py). ``pins`` are UUIDs behind references by index."""

    @property
    def pins(self) -> Mapping[str, str]: ...

    def remember_config(self, config: AppliedConfig, pins: Mapping[str, str], /) -> None: ...

    def remember_pins(self, pins: Mapping[str, str], /) -> None: ...


class Adoption:
    """Takes what was read, judges it against the hardware, and says what is in force.

    ``last_good`` is the configuration that was in force when the predecessor stopped. ``count_edit`` counts results:
    applied, refused, unchanged.
    """

    def __init__(
        self,
        *,
        last_good: Config | None,
        memory: Memory,
        log: Log,
        count_edit: Callable[[str], None],
        wall: Callable[[], float],
    ) -> None:
        self._last_good = last_good
        self._memory = memory
        self._log = log
        self._count_edit = count_edit
        self._wall = wall
        self._candidate: Config | None = None
        self._text = b""
        self._in_force_since: float | None = None
        self._refused: str | None = None
        self._missing = False
        self.config: Config | None = None
        self.pins: Mapping[str, str] = {}
        self.unmatched: tuple[str, ...] = ()

    @property
    def status(self) -> ConfigStatus:
        return ConfigStatus(
            valid=self.config is not None and self._refused is None,
            hash=self.config.hash if self.config is not None else "",
            source=self.config.name if self.config is not None else "",
            applied_at=self._in_force_since,
            refused=self._refused,
        )

    def take(self, event: ConfigRead) -> bool:
        """Take in what was read. True if there is a candidate to judge."""
        if event.config is None:
            self._candidate = None
            self._refuse(event.problems, missing=event.missing)
            return False
        if self.config is not None and event.config.hash == self.config.hash:
            self._count_edit("unchanged")
            if self._refused is not None:
                self._log(Reason.CONFIG_APPLIED, f"{event.source} {event.config.hash}  valid again, nothing changed")
            self._refused, self._candidate = None, None
            return False
        self._candidate, self._text = event.config, event.text
        return True

    def judge(self, inventory: Inventory) -> Config | None:
        """The configuration that comes into force now, if any: the candidate, or the last good one in its place."""
        candidate, self._candidate = self._candidate, None
        if candidate is not None and self._adopt(candidate, inventory):
            self._refused = None
            self._count_edit("applied")
            applied = AppliedConfig(text=self._text.decode(), source=candidate.name, hash=candidate.hash)
            self._memory.remember_config(applied, self.pins)
            return candidate
        if self.config is None and self._refused is not None and self._last_good is not None:
            last_good, self._last_good = self._last_good, None
            if self._adopt(last_good, inventory):
                return last_good
        return None

    def follow(self, gpus: Sequence[Gpu]) -> None:
        """Pin references that name a GPU only now, and tell which name none."""
        if self.config is None:
            return
        pins = resolve_pins(self.config, gpus, self.pins)
        if pins != self.pins:
            self.pins = pins
            self._memory.remember_pins(pins)
        unmatched = find_unmatched(self.config, gpus, pins)
        for path in unmatched:
            if path not in self.unmatched:
                self._log(
                    Reason.CONFIG_REFERENCE_UNMATCHED,
                    f"{path} is not on this node (fine if other nodes share this file)",
                )
        self.unmatched = unmatched

    def announce(self, config: Config, changes: str) -> None:
        """Tell that ``config`` came into force and what it changed; called once the lists are out."""
        self._log(
            Reason.CONFIG_APPLIED, f"{config.name} {config.hash}  {changes}", config=config.name, hash=config.hash
        )
        for warning in config.warnings:
            self._log(Reason.CONFIG_APPLIED, str(warning), config=config.name, hash=config.hash)
        for unbuilt in find_unbuilt(config):
            self._log(Reason.FEATURE_NOT_BUILT, f"{unbuilt.path}: {unbuilt.text}", path=unbuilt.path)

    def _adopt(self, config: Config, inventory: Inventory) -> bool:
        pins = resolve_pins(config, inventory.gpus, self._memory.pins)
        unfit = find_unfit(config, inventory, pins)
        if unfit is not None:
            self._refuse((f"{config.name}: {unfit}",), missing=False)
            return False
        self.config, self.pins, self._in_force_since = config, pins, self._wall()
        self.unmatched = ()
        self.follow(inventory.gpus)
        return True

    def _refuse(self, problems: tuple[str, ...], *, missing: bool) -> None:
        first = problems[0]
        kept = f"keeping {self.config.hash}" if self.config is not None else "nothing in force before"
        errors = f"{len(problems)} error{'s' if len(problems) > 1 else ''}"
        if missing:
            if not self._missing:
                self._log(Reason.CONFIG_MISSING, f"{first}  ({kept})")
        elif first != self._refused:
            self._log(Reason.CONFIG_REFUSED, f"{first}  ({errors}; {kept})", error=first)
            for problem in problems[1:]:
                self._log(Reason.CONFIG_REFUSED, problem, error=problem)
        self._missing, self._refused = missing, first
        self._count_edit("refused")

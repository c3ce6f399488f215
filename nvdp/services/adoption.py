"""Which configuration is in force: the newest valid one that this node can take, else the one before.

Belongs to the main thread. A configuration that is refused changes nothing; what was in force, and what waits to be, is
remembered in the state directory, so that a restart with a broken file goes on with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from nvdp.config.schema import Config, PreStartCheck
from nvdp.host.state import AppliedConfig
from nvdp.log import Log
from nvdp.model.chosen import Chosen
from nvdp.model.health import Ailment
from nvdp.model.inventory import Inventory
from nvdp.model.reasons import Reason
from nvdp.model.status import ConfigStatus
from nvdp.planning.allotment import allot, find_untold, resolve_pins
from nvdp.planning.judging import find_unfit
from nvdp.planning.pins import pin_indices
from nvdp.services.applied import build_applied, tell_applied, tell_of_next_start, tell_remarks
from nvdp.services.candidate import Candidate, CandidateMemory
from nvdp.services.events import ConfigRead
from nvdp.services.refusals import Refusals

_READING_S = 5.0  # from an edit to its having been read, generously
_MOST_TOLD = 20  # lines about one file


class Memory(CandidateMemory, Protocol):
    """What outlives the process (services/remembering.py). ``pins`` are UUIDs behind references by index and counts."""

    @property
    def pins(self) -> Mapping[str, str]: ...

    def remember_config(self, config: AppliedConfig, pins: Mapping[str, str], /) -> None: ...

    def remember_pins(self, pins: Mapping[str, str], /) -> None: ...


class _InForce(msgspec.Struct, frozen=True):
    """The configuration in force, by what, its pins, what it names and is not here, and since when (wall seconds)."""

    config: Config | None = None
    chosen: Chosen | None = None
    pins: Mapping[str, str] = {}
    unmatched: tuple[str, ...] = ()
    since: float | None = None


class Adoption:
    """Takes what was read, judges it against the hardware, and says what is in force.

    ``last_good`` is the configuration that was in force when the predecessor stopped, ``last_chosen`` by what that was
    chosen; ``left`` is a newer one that it had still to judge. ``count_edit`` counts results: applied, refused,
    unchanged. ``choose_delay_s`` says how long a valid edit waits, so that nodes that share a file do not all change at
    once; what comes first of all never waits.
    """

    def __init__(
        self,
        *,
        last_good: Config | None,
        memory: Memory,
        log: Log,
        count_edit: Callable[[str], None],
        wall: Callable[[], float],
        clock: Callable[[], float],
        choose_delay_s: Callable[[], float] = lambda: 0.0,
        last_chosen: Chosen | None = None,
        left: ConfigRead | None = None,
    ) -> None:
        self._last_good = last_good
        self._last_chosen = last_chosen
        self._memory = memory
        self._log = log
        self._count_edit = count_edit
        self._wall = wall
        self._clock = clock
        self._choose_delay_s = choose_delay_s
        self._hurried_at = float("-inf")
        self._due_at = self._due_wall = 0.0
        self._candidate = Candidate(memory, left=left)
        self._in_force = self._before = _InForce()
        self._pre_start_check = PreStartCheck.NONE
        self._to_remember: AppliedConfig | None = None
        self._refusals = Refusals(log=log, count_edit=count_edit, find_kept=self._find_kept)

    @property
    def config(self) -> Config | None:
        return self._in_force.config

    @property
    def has_last_good(self) -> bool:
        """Whether one of a predecessor stands in where the newest cannot be had."""
        return self._last_good is not None or self._candidate.is_left

    @property
    def pins(self) -> Mapping[str, str]:
        return self._in_force.pins

    @property
    def checks_starts(self) -> bool:
        """Whether GPUs must be idle before containers start: as the first configuration in force said, for good.

        The kubelet asks for it when a resource registers, and never again. Nothing is offered before it is known.
        """
        return self._pre_start_check is PreStartCheck.IDLE

    @property
    def unmatched(self) -> tuple[str, ...]:
        """A sentence about each thing that the file names and this node does not have."""
        return self._in_force.unmatched

    @property
    def expected(self) -> Config | None:
        """The configuration in force, or the one that will be as soon as there are GPUs to judge it by."""
        last_good = self._last_good if self._refusals.is_any else None
        return self.config or self._candidate.config or last_good

    @property
    def status(self) -> ConfigStatus:
        config, newest = self.expected, self._refusals
        _, chosen = self._find_kept() if config is not None else (None, None)
        pending = self._candidate.config if self.config is not None else None
        return ConfigStatus(
            valid=config is not None and newest.first is None,
            hash=config.hash if config is not None else "",
            source=config.name if config is not None else "",
            entry=chosen.entry if chosen is not None else "",
            chosen_by=chosen.by if chosen is not None else "",
            applied_at=self._in_force.since,
            refused=newest.first,
            problems=newest.count,
            missing=newest.is_missing,
            unknown=newest.is_unknown,
            waiting=newest.waiting,
            paused=config is not None and config.devices.paused,
            pending=pending.hash if pending is not None else "",
            pending_until=self._due_wall if pending is not None else None,
        )

    @property
    def due_at(self) -> float:
        """When the candidate is to be judged, or was: the change of the file that it came with, and its delay."""
        return self._due_at

    @property
    def next_at(self) -> float | None:
        """When there will be something to judge that waits now (monotonic seconds)."""
        return self._due_at if self._candidate.config is not None and self._due_at > self._clock() else None

    def hurry(self) -> None:
        """Let nothing wait any longer, nor what is only being read."""
        self._hurried_at = self._clock()
        self._due_at = min(self._due_at, self._hurried_at)

    def find_untold(self, inventory: Inventory, ailments: Mapping[str, Ailment]) -> frozenset[str]:
        """The GPUs and MIG devices that are none of ours, also before a configuration is in force."""
        config = self.expected
        if config is None:
            return frozenset()
        before = self.pins if self.config is not None else self._memory.pins
        return find_untold(config, inventory.gpus, pin_indices(config, inventory.gpus, ailments, before))

    def take(self, event: ConfigRead) -> None:
        """Take in what was read. A valid one is a candidate until it is judged."""
        if event.config is None:  # a candidate that was not judged yet stays the newest valid one, over a restart too
            self._due_at = event.at if self._candidate.stand_in() else self._due_at
            self._refusals.take(event)
            return
        was_refused, was_waiting = self._refusals.first is not None, bool(self._refusals.waiting)
        self._refusals.clear()
        if self.config is not None and event.config.hash == self.config.hash:
            self._candidate.forget()
            self._count_edit("unchanged")
            is_moved = self._follow_source(event.config, event)
            if was_refused or was_waiting or is_moved:
                how = "valid again" if was_refused else "the same content" if is_moved else "as before"
                tell_applied(event.config, event.chosen, f"{how}, nothing changed", log=self._log)
            return
        kept = self.config or self._last_good
        self._candidate.put(event, is_kept=kept is not None and event.config.hash == kept.hash)
        is_hurried = self._clock() - self._hurried_at < _READING_S
        delay_s = 0.0 if self.config is None or is_hurried else self._choose_delay_s()
        self._due_at, self._due_wall = event.at + delay_s, self._wall() + delay_s

    def judge(self, inventory: Inventory, ailments: Mapping[str, Ailment]) -> Config | None:
        """The configuration that comes into force now, if any: the candidate, or the last good one in its place.

        ``confirm`` it once its lists are out, or ``reject`` it.
        """
        if self.next_at is not None:
            return None
        read = self._candidate.take_out()
        if read is not None and read.config is not None:
            if self._is_fit(read.config, inventory, ailments):
                self._to_remember = build_applied(read.config, read)
                return self._adopt(read.config, read.chosen, inventory, ailments)
            self._candidate.forget()
        if self.config is None and self._refusals.is_any and self._last_good is not None:
            last_good, self._last_good = self._last_good, None
            self._due_at = self._clock()
            return self._adopt(last_good, self._last_chosen, inventory, ailments)
        return None

    def confirm(self, config: Config, changes: str) -> None:
        """``config``, which came into force, is given out: remember it, and tell what it changed."""
        applied, self._to_remember = self._to_remember, None
        if applied is not None:
            self._count_edit("applied")
            self._memory.remember_config(applied, self.pins)
        else:
            changes += "; the last good one, as before the restart"
        tell_applied(config, self._in_force.chosen, changes, log=self._log)
        tell_remarks(config, log=self._log)
        self._tell_of_next_start(config)

    def reject(self, why: str) -> None:
        """What came into force could not be planned with: it is refused, and the one before is in force again."""
        assert self.config is not None
        name, self._in_force, self._to_remember = self.config.name, self._before, None
        self._candidate.forget()
        self._memory.remember_pins(self.pins)
        self._refusals.refuse((f"{name}: {why}",))

    def follow(self, inventory: Inventory, ailments: Mapping[str, Ailment]) -> None:
        """Pin references that name a GPU only now, and tell which name none."""
        if self.config is None:
            return
        try:
            pins = resolve_pins(self.config, inventory.gpus, ailments, self.pins)
            unmatched = allot(self.config, inventory, pins).unmatched
        except Exception as error:  # noqa: BLE001 - a defect that a card brings to light leaves everything as it is
            text = f"{type(error).__name__}: {error}"
            self._log(Reason.SERVICE_RESTARTED, f"following references failed, they stay as they were: {text}")
            return
        self._memory.remember_pins(pins)
        known = set(self.unmatched)
        news = [sentence for sentence in unmatched if sentence not in known]
        for sentence in news[:_MOST_TOLD]:
            self._log(Reason.CONFIG_REFERENCE_UNMATCHED, sentence)
        if len(news) > _MOST_TOLD:
            self._log(Reason.CONFIG_REFERENCE_UNMATCHED, f"and {len(news) - _MOST_TOLD} more; nvdp plan shows them all")
        self._in_force = msgspec.structs.replace(self._in_force, pins=pins, unmatched=unmatched)

    def _is_fit(self, candidate: Config, inventory: Inventory, ailments: Mapping[str, Ailment]) -> bool:
        """Whether the hardware has nothing against it. What was in force before a restart is not judged again.

        Else a GPU that was plugged in since, and that the lists have no room for, would take all others away.
        """
        if self._last_good is not None and candidate.hash == self._last_good.hash:
            return True
        try:
            pins = resolve_pins(candidate, inventory.gpus, ailments, self._memory.pins)
            problem = find_unfit(candidate, inventory, pins)
            unfit = None if problem is None else str(problem)
        except Exception as error:  # noqa: BLE001 - a defect that a file brings to light must not take away the one before
            unfit = f"{candidate.name}: judging it failed: {type(error).__name__}: {error}"
        if unfit is not None:
            self._refusals.refuse((unfit,))
        return unfit is None

    def _adopt(
        self, config: Config, chosen: Chosen | None, inventory: Inventory, ailments: Mapping[str, Ailment]
    ) -> Config:
        self._before = self._in_force
        if self._before.config is None:
            self._pre_start_check = config.allocation.pre_start_check
        self._in_force = _InForce(config, chosen, self._memory.pins, since=self._wall())
        self.follow(inventory, ailments)
        return config

    def _tell_of_next_start(self, config: Config) -> None:
        """Say it once if the file has changed what only a new process can follow."""
        wanted, before = config.allocation.pre_start_check, self._before.config
        known = before.allocation.pre_start_check if before is not None else self._pre_start_check
        if wanted not in {known, self._pre_start_check}:
            tell_of_next_start(config, until=self._pre_start_check, log=self._log)

    def _follow_source(self, config: Config, read: ConfigRead) -> bool:
        """Whether what is in force has another name now, or is chosen by something else; then that is remembered."""
        assert self.config is not None
        if (config.name, read.chosen) == (self.config.name, self._in_force.chosen):
            return False
        self._in_force = msgspec.structs.replace(self._in_force, config=config, chosen=read.chosen)
        self._memory.remember_config(build_applied(config, read), self.pins)
        return True

    def _find_kept(self) -> tuple[Config | None, Chosen | None]:
        """What stays if nothing better comes, and by what it was chosen."""
        if self.config is not None:
            return self.config, self._in_force.chosen
        if self._candidate.config is not None:
            return self._candidate.config, self._candidate.chosen
        return self._last_good, self._last_chosen

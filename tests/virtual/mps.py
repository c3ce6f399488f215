"""``nvdp mps`` beside a virtual node: takes what is granted, gives back what no pod holds, and tells a moment later."""

from __future__ import annotations

from collections.abc import Callable

from nvdp.model.inventory import ComputeMode
from nvdp.model.mps import DaemonReport, DaemonSpec, Grant, MpsGrants, MpsView, Phase
from nvdp.services.events import GrantsWritten, MpsSeen
from tests.virtual.clock import Clock

AWAY = "nvdp mps does not run on this node"
HEARS_S = 0.7  # from a grant to its being read
ACTS_S = 0.3  # from then to what is done about it
TELLS_S = 0.5  # from then to its being seen


class VirtualMps:
    """Stands in for both services, for what the plugin hears and for what it tells; the same over its restarts.

    Grants are in their file at once, unless the disk is full. It reads them ``HEARS_S`` after they came, does what they
    say ``ACTS_S`` after that, and is heard ``TELLS_S`` later: it may act on grants that have just been replaced. It is
    not there before ``come``, and silent after ``go``: its daemons run on, and nobody tells of them.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._running: dict[str, DaemonSpec] = {}
        self._down: frozenset[str] = frozenset()
        self.is_there = False
        self._told: MpsView | None = None
        self._heard = ""
        self._life = 0
        self._file = MpsGrants()
        self._is_full = self._is_halted = False
        self.grants: list[MpsGrants] = []
        self.used: list[bool] = []

    # The plugin's side.

    @property
    def found(self) -> MpsGrants:
        return self._file

    def want(self, grants: MpsGrants) -> None:
        if not self.grants or grants != self.grants[-1]:
            self.grants.append(grants)
            self._write()

    def _write(self) -> None:
        if not self._is_full and self.grants:
            self._file = self.grants[-1]
            self._clock.put(GrantsWritten(grants=self._file, at=self._clock.now))
            self._later(HEARS_S, self._hear)

    def use(self, *, is_used: bool) -> None:
        if not self.used or self.used[-1] is not is_used:
            self.used.append(is_used)

    # What a test does.

    def fill_disk(self, *, is_full: bool) -> None:
        """No grants can be written any more, or the newest ones again."""
        self._is_full = is_full
        self._write()

    def lose_file(self) -> None:
        """The state directory of the plugin is lost."""
        self._file = MpsGrants()

    def halt(self, *, is_halted: bool) -> None:
        """It tells how everything is, and reads nothing any more, or again."""
        self._is_halted = is_halted
        self._later(HEARS_S, self._hear)

    def come(self) -> None:
        """It starts, and finds what it had."""
        self.is_there, self._heard = True, ""
        self._life += 1
        self._later(HEARS_S, self._hear)

    def pass_time(self, seconds: float) -> None:
        """There is no plugin for so long: what was on its way here happens, and nobody hears of it."""
        end = self._clock.now + seconds
        while due := [entry for entry in self._due if entry[0] <= end]:
            entry = min(due, key=lambda one: one[0])
            self._clock.now = max(self._clock.now, entry[0])
            self._happen(entry)
        self._clock.now = end
        self._clock.forget()
        due, self._due = self._due, []
        for at, action in due:
            self._later(at - end, action)

    def go(self) -> None:
        """It is killed: nobody tells any more, and what it had it has."""
        self.is_there = False
        self._life += 1
        self._tell()

    def fail(self, *resources: str) -> None:
        """These daemons, and no others, do not answer."""
        self._down = frozenset(resources)
        self._tell()

    @property
    def view(self) -> MpsView:
        """What is to be seen now."""
        gpus = {uuid: ComputeMode.DEFAULT.value for spec in self._running.values() for uuid in spec.gpus}
        if not self.is_there:
            return MpsView(problem=AWAY, claims=gpus)
        daemons = {name: self._build_report(name) for name in sorted({*self._running, *self._file.resources})}
        return MpsView(daemons=daemons, claims=gpus, heard=self._heard)

    def _build_report(self, resource: str) -> DaemonReport:
        running = self._running.get(resource)
        if running is None:
            return DaemonReport(phase=Phase.WAITING, text="its GPUs are not free")
        if resource in self._down:
            return DaemonReport(phase=Phase.FAILED, text="ended", exit_code=1, running=running)
        return DaemonReport(phase=Phase.READY, running=running, pid=7)

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        """It happens whatever becomes of the plugin meanwhile."""
        entry = (self._clock.now + seconds, action)
        self._due.append(entry)
        self._clock.after(seconds, lambda: self._happen(entry))

    def _happen(self, entry: tuple[float, Callable[[], None]]) -> None:
        self._due.remove(entry)
        entry[1]()

    def _hear(self) -> None:
        if self.is_there and self.grants and not self._is_halted:
            told, life = self._file, self._life
            self._later(ACTS_S, lambda: self._obey(told, life))

    def _obey(self, told: MpsGrants, life: int) -> None:
        """Do what it was told in this life of its own."""
        if not self.is_there or life != self._life:
            return
        wishes, self._heard = told.resources, told.digest
        for resource, running in [*self._running.items()]:
            grant = wishes.get(resource, Grant())
            if grant.wanted != running and (grant.at_once or not grant.held):
                del self._running[resource]
        for resource, grant in wishes.items():
            taken = {uuid for spec in self._running.values() for uuid in spec.gpus}
            if grant.wanted is None or resource in self._running or taken.intersection(grant.wanted.gpus):
                continue
            if grant.at_once or set(grant.wanted.gpus) <= {*grant.free, *grant.held}:
                self._running[resource] = grant.wanted
        self._tell()

    def say(self, view: MpsView) -> None:
        """This is seen, whatever there is."""
        self._told = view
        self._clock.put(MpsSeen(view=view, at=self._clock.now))

    def _tell(self) -> None:
        self._later(TELLS_S, self._post)

    def _post(self) -> None:
        if self.view != self._told:
            self.say(self.view)

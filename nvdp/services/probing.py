"""GPUs that ail are looked at alone, each time by a child of its own, so that the others are not disturbed.

A session of NVML may never get a lost GPU back, and one that asks a hanging GPU hangs: a fresh child tells.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec

from nvdp.errors import HostError
from nvdp.model.inventory import GpuRef
from nvdp.nvml.children import NvmlChildren
from nvdp.nvml.frames import Probe
from nvdp.nvml.outcomes import Outcome
from nvdp.planning.places import Silenced
from nvdp.planning.presence import Presence

FIRST_DELAY_S: Final = 1.0
_LONGEST_DELAY_S: Final = 60.0
# A GPU that ails again within so many of its last delays goes on where it stopped.
_RELAPSE_DELAYS: Final = 10


def find_patients(presence: Presence, silenced: Mapping[str, Silenced]) -> dict[str, GpuRef]:
    """Everybody to be probed: who ails, who is silenced (by the same key), and who cannot be read."""
    count = sum(sighting.has_index for sighting in presence.sightings) + len(presence.unreadable)
    refs = [
        GpuRef(index=sighting.gpu.index, count=count, pci=sighting.gpu.pci, uuid=sighting.gpu.uuid)
        for sighting in presence.sightings
        if sighting.ailment is not None
    ]
    refs += [GpuRef(index=gpu.index, count=count, pci=gpu.pci) for gpu in presence.unreadable]
    return {str(ref): ref for ref in refs} | {key: entry.ref for key, entry in silenced.items()}


class ProbeDone(msgspec.Struct, frozen=True):
    """What came of the probe of the GPU with this key; None if no child could be started."""

    key: str
    outcome: Outcome | None


class _Patient:
    def __init__(self, ref: GpuRef, delay_s: float, now: float) -> None:
        self.ref = ref
        self.delay_s = delay_s
        self.due_at = now + delay_s
        self.running = False


class Probing:
    """When which GPU is probed. Used by one thread; each probe runs in a thread of its own, named ``gpu-probe``.

    ``report`` is called from there.
    """

    def __init__(
        self,
        children: NvmlChildren,
        *,
        report: Callable[[ProbeDone], None],
        clock: Callable[[], float],
        first_delay_s: float = FIRST_DELAY_S,
    ) -> None:
        self._children = children
        self._report = report
        self._clock = clock
        self._first_delay_s = first_delay_s
        self._patients: dict[str, _Patient] = {}
        self._former: dict[str, tuple[float, float]] = {}

    @property
    def next_due_at(self) -> float | None:
        """Monotonic seconds of the next probe to start; None if there is none."""
        return min((patient.due_at for patient in self._patients.values() if not patient.running), default=None)

    def follow(self, ailing: Mapping[str, GpuRef]) -> None:
        """From now on it is these GPUs that are probed, by key."""
        now = self._clock()
        for key in self._patients.keys() - ailing.keys():
            self._former[key] = (self._patients.pop(key).delay_s, now)
        self._former = {key: past for key, past in self._former.items() if _is_recent(*past, now)}
        for key, ref in ailing.items():
            if key in self._patients:
                self._patients[key].ref = ref
            else:
                self._patients[key] = _Patient(ref, self._choose_first_delay(key), now)

    def start_due(self, skip: Collection[tuple[str, GpuRef]], *, limit_s: float) -> None:
        """Start the probes that are due. ``skip`` are GPUs not to touch, with their keys; nobody skips itself."""
        now = self._clock()
        for key, patient in self._patients.items():
            if patient.running or patient.due_at > now:
                continue
            patient.running = True
            command = Probe(gpu=patient.ref, skip=tuple(ref for other, ref in skip if other != key))
            try:
                threading.Thread(target=self._run, args=(key, command, limit_s), name="gpu-probe", daemon=True).start()
            except RuntimeError:  # no thread can be started just now: as good as a probe without a result
                self.finish(key)

    def finish(self, key: str) -> None:
        """A probe was reported: the next one of this GPU, if it still ails, comes after twice the time."""
        patient = self._patients.get(key)
        if patient is not None:
            patient.running = False
            patient.delay_s = min(_LONGEST_DELAY_S, 2 * patient.delay_s)
            patient.due_at = self._clock() + patient.delay_s

    def _choose_first_delay(self, key: str) -> float:
        past = self._former.pop(key, None)
        return self._first_delay_s if past is None else min(_LONGEST_DELAY_S, 2 * past[0])

    def _run(self, key: str, command: Probe, limit_s: float) -> None:
        outcome: Outcome | None = None
        try:
            child = self._children.spawn()
            try:
                outcome = child.call(command, limit_s=limit_s)
            finally:
                self._children.end(child)
        except HostError:
            pass  # no child can be started just now: as good as a probe without a result
        finally:
            self._report(ProbeDone(key, outcome))


def _is_recent(delay_s: float, since: float, now: float) -> bool:
    return now - since < _RELAPSE_DELAYS * delay_s

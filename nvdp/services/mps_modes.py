"""The compute modes of the GPUs that control daemons have: taken before a daemon starts, put back after its end.

A claim, with the mode that the GPU had, is on the disk before the mode is changed: whatever ends this process, the next
one puts it back. The driver may hang, so that all of it happens in a thread of its own.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeAlias

import msgspec

from nvdp.errors import HostError, NvmlError
from nvdp.log import Log
from nvdp.model.inventory import ComputeMode, Inventory
from nvdp.model.reasons import Cause, Reason
from nvdp.service_thread import ServiceThread
from nvdp.services.mps_events import ModesSeen, MpsPost
from nvdp.services.mps_running import is_power_of_two

_WANTED: Final = ComputeMode.EXCLUSIVE_PROCESS
_MOST_DELAY_S: Final = 30.0
_WORD_S: Final = 2.0
"""How long the plugin's word counts for a claim, in seconds: where nobody answers for longer, it gives GPUs away."""
_SCANS_UNTIL_SURE: Final = 2  # the first one that ends after a change may have looked before it
_UNCERTAIN: Final = frozenset({Cause.CALL_TIMEOUT.value, Cause.CALL_FAILED.value})

FindTakeable: TypeAlias = Callable[[], Collection[str] | None]
"""Reads which GPUs the plugin lets be taken, at this moment; None where it never said anything. Raises HostError."""
SetModes: TypeAlias = Callable[[Mapping[str, ComputeMode]], Mapping[str, NvmlError]]
"""Sets the modes of GPUs by UUID, and gives back why it failed for some (``nvml.compute_mode``). Blocks."""


class _Retry(msgspec.Struct, frozen=True):
    """A GPU whose mode could not be set, how often in a row, why, and when it may be tried again."""

    failures: int
    text: str
    due_at: float


class _Asked(msgspec.Struct, frozen=True):
    """What the main thread said last. ``wanted`` is None before it said anything: then nothing is put back.

    ``number`` counts what it wanted.

    ``found`` are the modes of the last scan, None while the driver is not to be asked; of the ``unsure`` it is not
    certain that the scan looked after our last change.
    """

    wanted: frozenset[str] | None = None
    number: int = 0
    found: Mapping[str, ComputeMode | None] | None = None
    unsure: Mapping[str, int] = {}


class ModeService:
    """``start`` it; it posts ``ModesSeen`` whenever something changed, at first at once.

    ``claims`` are those of an earlier process of this boot. ``persist`` has claims on the disk when it returns, or
    raises HostError. ``find_takeable`` is asked just before a GPU is taken: what is wanted may be old by then, as this
    process may have been stopped for a while. What failed is tried again after ``first_delay_s``, then with back-off.
    The methods may be called from any thread and do not block. An exception that nobody expected ends the thread
    ``mps-modes``; ``start`` goes on from what is known.
    """

    THREAD: Final = "mps-modes"

    def __init__(
        self,
        set_modes: SetModes,
        persist: Callable[[Mapping[str, str]], None],
        find_takeable: FindTakeable,
        *,
        claims: Mapping[str, str],
        post: MpsPost,
        log: Log,
        clock: Callable[[], float] = time.monotonic,
        first_delay_s: float = 1.0,
    ) -> None:
        self._first_delay_s = first_delay_s
        self._set_modes = set_modes
        self._persist = persist
        self._find_takeable = find_takeable
        self._post = post
        self._log = log
        self._clock = clock
        self._changed = threading.Condition()  # guards the next one, which is replaced as a whole
        self._asked = _Asked()
        self._thread: ServiceThread | None = None
        # What follows belongs to the thread.
        self._claims = dict(claims)
        self._done: set[str] = set()
        self._restored: dict[str, ComputeMode] = {}
        self._unclaimable: dict[str, _Retry] = {}
        self._unreleasable: dict[str, _Retry] = {}
        self._posted: ModesSeen | None = None

    def start(self) -> None:
        """Start the thread, or start it anew after a crash."""
        if self._thread is None or not self._thread.is_at_work:
            self._thread = ServiceThread(self._run, name=self.THREAD)
            self._thread.start()

    def want(self, gpus: Collection[str]) -> int:
        """These GPUs shall have the mode, by UUID, and all others their own. The number of this word."""
        wanted = frozenset(gpus)
        with self._changed:
            if wanted != self._asked.wanted:
                self._asked = msgspec.structs.replace(self._asked, wanted=wanted, number=self._asked.number + 1)
                self._changed.notify_all()
            return self._asked.number

    def see(self, inventory: Inventory | None) -> None:
        """The driver counts these GPUs, by a complete scan; None: it is not to be asked, or does not answer."""
        if inventory is None:
            self._tell(found=None)
            return
        with self._changed:
            unsure = {uuid: left - 1 for uuid, left in self._asked.unsure.items() if left > 1}
            self._tell(found={gpu.uuid: gpu.compute_mode for gpu in inventory.gpus}, unsure=unsure)

    def _tell(self, **changes: object) -> None:
        with self._changed:
            asked = msgspec.structs.replace(self._asked, **changes)
            if asked != self._asked:
                self._asked = asked
                self._changed.notify_all()

    # What follows runs in the thread.

    def _run(self) -> None:
        while True:
            with self._changed:
                asked = self._asked
            self._show(asked.number)
            if asked.wanted is not None and asked.found is not None and self._work(asked, asked.wanted, asked.found):
                continue
            with self._changed:
                if self._asked is asked:
                    self._changed.wait(self._find_timeout())

    def _work(self, asked: _Asked, wanted: frozenset[str], found: Mapping[str, ComputeMode | None]) -> bool:
        """Do what is due; whether there was anything."""
        now = self._clock()
        self._note_lost(found, asked.unsure)
        back = [uuid for uuid in self._claims if uuid not in wanted and uuid in found]
        back = [uuid for uuid in back if _is_due(self._unreleasable.get(uuid), now)]
        take = [uuid for uuid in sorted(wanted - self._done) if uuid in found]
        take = [uuid for uuid in take if _is_due(self._unclaimable.get(uuid), now)]
        if back:
            self._give_back(back)
        if take:
            self._take(take, found, asked.unsure)
        return bool(back or take)

    def _note_lost(self, found: Mapping[str, ComputeMode | None], unsure: Collection[str]) -> None:
        """A reset, or an administrator, has taken a mode away that a daemon needs: it is set again."""
        for uuid in [one for one in self._done if one not in unsure and found.get(one) not in {None, _WANTED}]:
            mode = found[uuid]
            self._done.discard(uuid)
            text = f"the compute mode became {mode.value if mode else 'unknown'} while MPS has the GPU; it is set again"
            self._log(Reason.MPS_UNSUPPORTED, text, device=uuid)

    def _take(self, gpus: list[str], found: Mapping[str, ComputeMode | None], unsure: Collection[str]) -> None:
        fresh = [uuid for uuid in gpus if uuid not in self._claims]
        for uuid in fresh:
            seen = self._restored.get(uuid) if uuid in unsure else found[uuid]
            self._claims[uuid] = (seen or ComputeMode.DEFAULT).value
        try:
            self._keep(fresh)
        except HostError as error:  # not kept, not changed: after a kill nobody would put it back
            self._forget(fresh)
            for uuid in gpus:
                self._fail(self._unclaimable, uuid, f"its compute mode is not changed: {error}")
            return
        failed = self._set(dict.fromkeys(gpus, _WANTED))
        for uuid in gpus:
            failure = failed.get(uuid)
            if failure is None:
                self._done.add(uuid)
                self._unclaimable.pop(uuid, None)
                continue
            self._fail(self._unclaimable, uuid, str(failure))
        # Where the driver has refused, nothing is to be put back.
        self._forget([uuid for uuid in fresh if uuid in failed and failed[uuid].kind not in _UNCERTAIN])

    def _keep(self, fresh: Collection[str]) -> None:
        """Have the claims on the disk. Raises HostError unless they are, and the fresh ones may be taken now."""
        ends_at = self._clock() + _WORD_S
        takeable = self._find_takeable() if fresh else None
        if takeable is not None and not set(fresh).issubset(takeable):
            raise HostError("the plugin has given the GPU away meanwhile")
        self._persist(dict(self._claims))
        if fresh and self._clock() > ends_at:
            raise HostError("this process was stopped for a while, or the disk is slow")

    def _give_back(self, gpus: list[str]) -> None:
        before = {uuid: _parse_mode(self._claims[uuid]) for uuid in gpus}
        failed = self._set({uuid: mode for uuid, mode in before.items() if mode is not _WANTED})
        for uuid, mode in before.items():
            self._done.discard(uuid)
            failure = failed.get(uuid)
            if failure is not None:
                self._fail(self._unreleasable, uuid, str(failure))
                continue
            self._restored[uuid] = mode
            self._unreleasable.pop(uuid, None)
        self._forget([uuid for uuid in gpus if uuid not in failed])

    def _forget(self, gpus: Collection[str]) -> None:
        """These are not ours, and have the mode that they had: the disk may say so a little later."""
        if not gpus:
            return
        for uuid in gpus:
            del self._claims[uuid]
        with contextlib.suppress(HostError):  # the next report has it; until then it is put back once more at worst
            self._persist(dict(self._claims))

    def _set(self, modes: Mapping[str, ComputeMode]) -> Mapping[str, NvmlError]:
        failed = self._set_modes(modes) if modes else {}
        with self._changed:
            unsure = {**self._asked.unsure, **dict.fromkeys(modes, _SCANS_UNTIL_SURE)}
            self._asked = msgspec.structs.replace(self._asked, unsure=unsure)
        return failed

    def _fail(self, retries: dict[str, _Retry], uuid: str, text: str) -> None:
        """Try again later; it is told the first time, the second, the fourth and so on."""
        before = retries.get(uuid)
        failures = 1 if before is None else before.failures + 1
        delay_s = min(_MOST_DELAY_S, self._first_delay_s * 2.0 ** min(failures - 1, 10))
        retries[uuid] = _Retry(failures, text, self._clock() + delay_s)
        if is_power_of_two(failures):
            self._log(Reason.MPS_UNSUPPORTED, text, device=uuid)

    def _find_timeout(self) -> float | None:
        """Seconds until a GPU may be tried again."""
        now = self._clock()
        retries = (*self._unclaimable.values(), *self._unreleasable.values())
        return min((retry.due_at - now for retry in retries if retry.due_at > now), default=None)

    def _show(self, followed: int) -> None:
        now = self._clock()
        seen = ModesSeen(
            claimed=frozenset(self._done & self._claims.keys()),
            unclaimable=_list_waiting(self._unclaimable, now),
            unreleasable={uuid: retry.text for uuid, retry in self._unreleasable.items()},
            claims=dict(self._claims),
            followed=followed,
        )
        if seen != self._posted:
            self._posted = seen
            self._post(seen)


def _is_due(retry: _Retry | None, now: float) -> bool:
    return retry is None or retry.due_at <= now


def _list_waiting(retries: Mapping[str, _Retry], now: float) -> dict[str, str]:
    """Those that are not to be tried yet: once they are, it is for the plan to want them again."""
    return {uuid: retry.text for uuid, retry in retries.items() if retry.due_at > now}


def _parse_mode(value: str) -> ComputeMode:
    """As a report has it; one that no version of ours writes means the mode that a GPU begins with."""
    try:
        return ComputeMode(value)
    except ValueError:
        return ComputeMode.DEFAULT

"""What outlives the process: kept in the state directory by a thread of its own, so that no disk holds up a turn.

Only the newest state is written. A disk that is full or a directory that cannot be written is told once and tried
again; nvdp goes on, and only a restart with a broken configuration would miss what was not kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from nvdp.errors import HostError
from nvdp.host.state import AppliedConfig, Seen, State
from nvdp.log import Log
from nvdp.model.inventory import Inventory
from nvdp.model.reasons import Reason
from nvdp.model.status import Trouble
from nvdp.planning.course import Record

DEFAULT_RETRY_S = 60.0


class Memory:
    """The state as it was found, changed by the main thread and saved by our own.

    ``save`` may raise HostError; it is then called again after ``retry_s``, or sooner with a newer state. Meanwhile
    there is a ``trouble``; any thread may read it. What was saved is saved again once it is not there any more: every
    ``retry_s``, and at the end, ``is_kept`` says whether it is, and raises nothing.
    """

    THREAD: Final = "remember"

    def __init__(
        self,
        found: State,
        save: Callable[[State], None],
        *,
        log: Log,
        is_kept: Callable[[], bool],
        boot_id: str = "",
        retry_s: float = DEFAULT_RETRY_S,
    ) -> None:
        self._state = found
        self._save = save
        self._is_kept = is_kept
        self._log = log
        self._boot_id = boot_id
        self._changed = threading.Condition()
        self._saved = found
        self._failed: State | None = None
        self._is_doubted = False
        self._retry_s = retry_s
        self.trouble: Trouble | None = None

    @property
    def names(self) -> frozenset[str]:
        """Resources that were ever given out on this node."""
        return frozenset(self._state.resources)

    @property
    def pins(self) -> Mapping[str, str]:
        """UUIDs behind references by index, by path and index."""
        return self._state.pins

    @property
    def indices(self) -> Mapping[str, Mapping[str, str]]:
        """The indices by which pods know what they hold, by resource and device ID."""
        return self._state.indices

    @property
    def parents(self) -> Mapping[str, str]:
        """The GPUs of MIG devices, also of some that are gone, by UUID."""
        return self._state.parents

    @property
    def by_cdi(self) -> Mapping[str, tuple[str, ...]]:
        """The device IDs that pods hold and may have got by CDI, by resource."""
        return self._state.by_cdi

    @property
    def by_mps(self) -> Mapping[str, tuple[str, ...]]:
        """The UUIDs of devices whose IDs were last on offer by MPS, by resource."""
        return self._state.by_mps

    def remember_names(self, names: Iterable[str]) -> None:
        self._replace(resources=tuple(sorted(self.names.union(names))))

    def remember_pins(self, pins: Mapping[str, str]) -> None:
        self._replace(pins=dict(pins))

    def remember_config(self, config: AppliedConfig, pins: Mapping[str, str]) -> None:
        """The configuration in force, as it was read: what a restart with a broken file goes on with.

        No other waits to be judged then.
        """
        self._replace(config=config, candidate=None, pins=dict(pins))

    def remember_candidate(self, candidate: AppliedConfig | None) -> None:
        """The valid configuration that waits to be judged, as it was read; None if there is none."""
        self._replace(candidate=candidate)

    def remember_health(self, records: Mapping[str, Record]) -> None:
        """What is known of the faults of each GPU."""
        self._replace(health=dict(records))

    def remember_inventory(self, inventory: Inventory) -> None:
        """The GPUs that are known while the driver answers, those that vanished included."""
        self._replace(seen=Seen(boot_id=self._boot_id, inventory=inventory))

    def remember_handed_out(
        self,
        *,
        indices: Mapping[str, Mapping[str, str]],
        by_cdi: Mapping[str, tuple[str, ...]],
        parents: Mapping[str, str],
    ) -> None:
        """By what pods have what they hold now, by index or by CDI, and the GPUs of MIG devices."""
        self._replace(indices=indices, by_cdi=by_cdi, parents=dict(parents))

    def remember_by_mps(self, by_mps: Mapping[str, tuple[str, ...]]) -> None:
        """The devices whose IDs were last on offer by MPS, which the IDs do not tell."""
        self._replace(by_mps=dict(by_mps))

    def start(self) -> None:
        """Start the thread, or start it anew after a crash."""
        threading.Thread(target=self._run, name=self.THREAD, daemon=True).start()

    def flush(self, timeout_s: float) -> bool:
        """Wait until the newest state is saved, and there; False if that failed, or did not come about in time."""
        with self._changed:
            self._is_doubted = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not (self._is_doubted or self._is_owed), timeout_s)
            return self._failed is None and self._saved == self._state

    def _replace(self, **changes: object) -> None:
        with self._changed:
            state = msgspec.structs.replace(self._state, **changes)
            if state != self._state:
                self._state = state
                self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_doubted or self._is_owed, self._retry_s)
                state, is_saved = self._state, self._failed is None and self._state == self._saved
            done = (is_saved and self._is_kept()) or self._try_to_save(state)
            with self._changed:
                self._saved, self._failed = (state, None) if done else (self._saved, state)
                self._is_doubted = False
                self._changed.notify_all()

    @property
    def _is_owed(self) -> bool:
        return self._state not in (self._saved, self._failed)

    def _try_to_save(self, state: State) -> bool:
        try:
            self._save(state)
        except HostError as error:
            text = f"{error}; nvdp goes on, but a restart with a broken file would find no last good one"
            self.trouble = Trouble(reason=Reason.STATE_DAMAGED.word, text=text)
            if self._failed is None:
                self._log(Reason.STATE_DAMAGED, text, error=str(error))
            return False
        self.trouble = None
        return True

"""What would keep a control daemon from its GPUs or its pipe: daemons of others, and one that nobody knows any more."""

from __future__ import annotations

from collections.abc import Callable, Collection

from nvdp.log import Log
from nvdp.model.reasons import Reason
from nvdp.mps.foreign import find_foreign
from nvdp.mps.places import Places
from nvdp.services.mps_running import Times, end_orphans


class Obstacles:
    """Looks for them, for one resource. Used by one thread. ``find_own_pids`` are the daemons of all actors."""

    def __init__(
        self,
        resource: str,
        places: Places,
        *,
        find_own_pids: Callable[[], Collection[int]],
        log: Log,
        times: Times,
    ) -> None:
        self._resource = resource
        self._places = places
        self._find_own_pids = find_own_pids
        self._log = log
        self._times = times
        self._told = ""

    def look(self, gpus: Collection[str]) -> str:
        """What is in the way of these GPUs, in a sentence that is told once; empty if nothing is.

        Daemons of our own that were left over are ended, which may take a few seconds.
        """
        own_pids = self._find_own_pids()
        end_orphans(self._places, own_pids, times=self._times)
        foreign = find_foreign(own_pids, self._places.pipe_dir, gpus)
        text = "" if foreign is None else f"{foreign} has these GPUs or this pipe; end it, or take them out of MPS"
        if text and text != self._told:
            self._log(Reason.MPS_UNSUPPORTED, text, resource=self._resource)
        self._told = text
        return text

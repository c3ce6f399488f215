"""What would keep a control daemon from its GPUs or its pipe: control daemons of others."""

from __future__ import annotations

from collections.abc import Callable, Collection

from nvdp.log import Log
from nvdp.model.reasons import Reason
from nvdp.mps.foreign import find_foreign
from nvdp.mps.places import Places


class Obstacles:
    """Looks for them, for one resource. Used by one thread. ``find_own_pids`` are the daemons of all actors."""

    def __init__(
        self,
        resource: str,
        places: Places,
        *,
        find_own_pids: Callable[[], Collection[int]],
        log: Log,
    ) -> None:
        self._resource = resource
        self._places = places
        self._find_own_pids = find_own_pids
        self._log = log
        self._told = ""

    def look(self, gpus: Collection[str]) -> str:
        """What is in the way of these GPUs, in a sentence that is told once; empty if nothing is."""
        foreign = find_foreign(self._find_own_pids(), self._places.pipe_dir, gpus)
        text = "" if foreign is None else f"{foreign} has these GPUs or this pipe; end it, or take them out of MPS"
        if text and text != self._told:
            self._log(Reason.MPS_UNSUPPORTED, text, resource=self._resource)
        self._told = text
        return text

"""Whether a kubelet knows its pods yet: one that has just started answers PodResources before it does.

It listens within milliseconds and lists no pod until it has heard from the API server and taken each pod in. Believed,
such an answer would take devices of running pods out of the lists, and crash the very kubelet that gave it (invariant
3). Its checkpoint, which it reads before it listens, names the holders all the while.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from nvdp.errors import HostError
from nvdp.model.held import Holding

SETTLE_S = 30.0


class Settling:
    """Completes answers of a new kubelet by its checkpoint, until it has named all holders of that, or for 30 s.

    A checkpoint may name pods that are gone, which is why the time is bounded. Belongs to one thread.
    """

    def __init__(self, load_checkpoint: Callable[[], tuple[Holding, ...]]) -> None:
        self._load_checkpoint = load_checkpoint
        self._settled: Hashable = None
        self._kubelet: Hashable = None
        self._first_answer_at = 0.0

    def complete(self, holdings: tuple[Holding, ...], *, kubelet: Hashable, now: float) -> tuple[Holding, ...]:
        """``kubelet`` tells kubelet processes apart; ``now`` is monotonic seconds. Reads the file if need be."""
        if kubelet == self._settled:
            return holdings
        if kubelet != self._kubelet:
            self._kubelet, self._first_answer_at = kubelet, now
        named = {(holding.resource, holding.device_id) for holding in holdings}
        missing = tuple(holding for holding in self._recorded() if (holding.resource, holding.device_id) not in named)
        if not missing or now - self._first_answer_at >= SETTLE_S:
            self._settled = kubelet
            return holdings
        return tuple(sorted((*holdings, *missing)))

    def _recorded(self) -> tuple[Holding, ...]:
        try:
            return self._load_checkpoint()
        except HostError:
            return ()  # a kubelet that could not read it either knows of no holders

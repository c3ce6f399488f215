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
        """``kubelet`` tells kubelet processes apart; ``now`` is monotonic seconds. Reads the file if need be.

        None is an answer of which nobody knows whether the kubelet before a restart gave it, or the one after it: it
        settles neither.
        """
        if kubelet is not None and kubelet == self._settled:
            return holdings
        recorded = self._recorded()
        named = {(holding.resource, holding.device_id) for holding in holdings}
        missing = tuple(one for one in recorded or () if (one.resource, one.device_id) not in named)
        if kubelet is not None and self._is_settled(kubelet, is_whole=recorded is not None and not missing, now=now):
            self._settled = kubelet
            return holdings
        return tuple(sorted((*holdings, *missing)))

    def _is_settled(self, kubelet: Hashable, *, is_whole: bool, now: float) -> bool:
        if kubelet != self._kubelet:
            self._kubelet, self._first_answer_at = kubelet, now
        return is_whole or now - self._first_answer_at >= SETTLE_S

    def _recorded(self) -> tuple[Holding, ...] | None:
        """None if it cannot be read now, which says nothing."""
        try:
            return self._load_checkpoint()
        except HostError:
            return None

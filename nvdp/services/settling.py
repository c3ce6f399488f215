"""Whether a kubelet knows its pods yet: one that has just started answers PodResources before it does.

It listens within milliseconds and lists no pod until it has heard from the API server, however long that is away, and
taken each pod in; its pods run on meanwhile. Believed, such an answer would take devices of running pods out of the
lists, and crash the very kubelet that gave it (invariant 3), or give them to others (invariant 4). Its checkpoint,
which it reads before it listens, names the holders all the while.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from nvdp.errors import HostError
from nvdp.model.held import Holding

DOUBT_S = 5.0
"""How long a kubelet that knows its pods takes at most, as a rule, to name them."""
_MOST_DOUBT_S = 600.0
_WRITTEN_S = 1.0  # from a doubt on, until the file has been written anew


class Settling:
    """Completes answers of a new kubelet by its checkpoint, until it has named all holders of that.

    The checkpoint may name pods that are gone. The kubelet leaves those out when it writes the file anew, which it does
    with each list that it is sent, once the API server has told it which pods there are and somebody has asked
    PodResources since; not before (seen with a kubelet 1.20). Belongs to one thread.

    ``look_at`` (monotonic seconds) is when another answer is worth having; None once the kubelet has settled.
    """

    def __init__(self, load_checkpoint: Callable[[], tuple[Holding, ...]]) -> None:
        self._load_checkpoint = load_checkpoint
        self._settled: Hashable = None
        self._kubelet: Hashable = None
        self._doubt_s = DOUBT_S
        self._doubted_at: float | None = None
        self.look_at: float | None = None

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
        if kubelet is not None:
            self._judge(kubelet, is_whole=recorded is not None and not missing, now=now)
        return tuple(sorted((*holdings, *missing))) if missing else holdings

    def take_doubt(self, now: float) -> bool:
        """Whether the file should be written anew, since it names whom the kubelet has not named for a while.

        Once so, it is not for a time that doubles with each.
        """
        if self._doubted_at is None or now < self._doubted_at + self._doubt_s:
            return False
        self._doubted_at, self._doubt_s = now, min(self._doubt_s * 2, _MOST_DOUBT_S)
        self.look_at = now + _WRITTEN_S
        return True

    def _judge(self, kubelet: Hashable, *, is_whole: bool, now: float) -> None:
        if kubelet != self._kubelet:
            self._kubelet, self._doubt_s, self._doubted_at = kubelet, DOUBT_S, None
        if is_whole:
            self._settled, self._doubted_at, self.look_at = kubelet, None, None
            return
        if self._doubted_at is None:
            self._doubted_at = now
        self.look_at = self._doubted_at + self._doubt_s

    def _recorded(self) -> tuple[Holding, ...] | None:
        """None if it cannot be read now, which says nothing."""
        try:
            return self._load_checkpoint()
        except HostError:
            return None

"""When to try again: the times of design invariant 7, and which streams the kubelet would be missed by."""

from __future__ import annotations

import enum
import random

import msgspec

from nvdp.kubelet.streams import Stream


class Retry(enum.Enum):
    """Why the next try waits: the first delay and the largest, in seconds.

    UNREACHABLE starts small: a kubelet that starts makes its socket a moment before it listens. Its limit may be
    large, because a kubelet that comes back is noticed by its new socket. LOST is what costs a node its GPUs, so even a
    stream that ends over and over is followed within 5 s (kubelet contract, requirement 15). DOUBTFUL is the end of a
    stream that may have been the kubelet's while another one that may be is open, or may yet come; the kubelet can be
    asked meanwhile (services/standing.py). UNOFFERED is a kubelet that took our list and does not offer it by its own
    word: if registering anew does not change that, its word may be what is wrong.
    """

    UNREACHABLE = (0.02, 30.0)
    REFUSED = (0.1, 30.0)
    LOST = (0.1, 4.0)
    DOUBTFUL = (3.0, 60.0)
    NOT_SERVED = (0.1, 5.0)
    UNOFFERED = (10.0, 3600.0)

    def __init__(self, first_s: float, limit_s: float) -> None:
        self.first_s = first_s
        self.limit_s = limit_s


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """The fixed times of the same rules, in seconds.

    ``settle_s``: from the end of a stream that we ended to the next Register with the same kubelet, whose late clean-up
    would otherwise take the new registration away. ``no_stream_s``: after which a registration without a ListAndWatch
    counts as failed. ``look_again_s``: from a new socket of ours to a look at it; if it was deleted before anybody saw
    it, those who watch the directory saw no change. ``stable_s``: a stream that lived this long ended for a reason of
    its own, and the back-off starts anew. ``probe_s``: for our own socket to answer. ``grace_s``: for calls to finish
    when a server stops. ``end_seen_s``: from the end of a stream to the kubelet's having seen it.
    """

    settle_s: float = 1.0
    no_stream_s: float = 10.0
    look_again_s: float = 1.5
    stable_s: float = 30.0
    probe_s: float = 2.0
    grace_s: float = 0.3
    end_seen_s: float = 0.3


class Backoff:
    """Delays that double from the first to the limit, each shifted by up to a fifth, so that nodes do not move in step.

    The shift never makes a delay shorter than the one before it, below the limit.
    """

    def __init__(self, retry: Retry, rng: random.Random) -> None:
        self._retry = retry
        self._rng = rng
        self._tries = 0

    def next_delay_s(self) -> float:
        delay_s = min(self._retry.limit_s, self._retry.first_s * 2.0 ** min(self._tries, 30))
        self._tries += 1
        return delay_s * self._rng.uniform(0.8, 1.2)

    def reset(self) -> None:
        self._tries = 0


class KubeletStreams:
    """Which of the open streams may be the kubelet's.

    The kubelet opens one after each Register and never otherwise. So its stream is the first that comes after Register
    was called, or, if somebody else was as quick, one of those that come within ``window_s`` of the kubelet's answer.
    Of all others, and of those before, the end means nothing: a kubelet that still reads an older one and drops us at
    its end (A.4 of the contract) ends the newer one too. If none is left open at all, we are lost in any case.
    """

    def __init__(self, *, window_s: float = 1.0) -> None:
        self._window_s = window_s
        self._open: set[Stream] = set()
        self._candidates: set[Stream] = set()
        self._asked_at = float("inf")
        self._answered_at: float | None = None
        self.came = False

    def begin(self, now: float) -> None:
        """Register is about to be called."""
        self._candidates.clear()
        self._asked_at = now
        self._answered_at = None
        self.came = False

    def answer(self, now: float) -> None:
        """The kubelet has accepted."""
        self._answered_at = now

    def add(self, stream: Stream) -> None:
        self._open.add(stream)
        if stream.opened_at < self._asked_at:
            return
        in_time = self._answered_at is None or stream.opened_at <= self._answered_at + self._window_s
        if in_time or not self.came:
            self._candidates.add(stream)
        self.came = True

    def remove(self, stream: Stream) -> Retry | None:
        """The stream ended; how urgent it is to register again, None if it need not be."""
        self._open.discard(stream)
        was_candidate = stream in self._candidates
        self._candidates.discard(stream)
        if not self._open or (was_candidate and not self._candidates):
            return Retry.LOST
        return Retry.DOUBTFUL if was_candidate else None

    @property
    def listed(self) -> bool:
        """Whether a stream that may be the kubelet's has taken a list."""
        return any(stream.taken for stream in self._candidates)

    @property
    def open(self) -> bool:
        """Whether a stream is open that may be the kubelet's."""
        return bool(self._candidates)

"""How one object of the API server is kept in sight: when to watch it, from which version on, and what is known of it.

Pure, for one thread: what happens goes in with its time, what to do next comes out. Times are monotonic seconds.

A watch without a version tells the present state and then goes on: one request for each object. It is followed for as
long as the server lets it live, about an hour, and then from the last version on. After a failure the next one waits,
by chance between a quarter and the whole of a bound that doubles from 2 s to 60 s; so of thousands of nodes that lose
the same server not all come back at once, and one node never asks more than ten times in a minute. The bound begins
anew only after a watch that lived for a while: a server that accepts and then ends each one is not hammered.
"""

from __future__ import annotations

import re
from random import Random
from typing import Final

import msgspec

from nvdp.errors import ClusterFault

_FIRST_BOUND_S: Final = 2.0
_LONGEST_BOUND_S: Final = 60.0
_LEAST_PART: Final = 0.25
_LIVED_S: Final = 20.0
_AGAIN_S: Final = (0.1, 1.0)  # after an end in good order, or a version that is too old: soon, but not all at once
RETRY_AFTER_MOST_S: Final = 120.0
_TRIES: Final = 3  # of one version at a server that answers
_OUTAGES: Final = frozenset({ClusterFault.UNREACHABLE, ClusterFault.THROTTLED, ClusterFault.DENIED})
_VERSION_FORM: Final = re.compile(r"[0-9]{1,30}")
QUIET_S: Final = 2.0
"""A watch without a version that tells nothing for so long is of an object that is not there, as a rule."""


class Following(msgspec.Struct, frozen=True, kw_only=True):
    """Where it stands. ``open_at`` is when the next watch is due, None while there is one. The server asked not to be
    asked before ``asked_until``.

    ``version`` is what that watch goes on from, empty for the present state. ``problem`` says why the object cannot be
    asked for now; what was seen of it before stands.
    """

    open_at: float | None
    asked_until: float = float("-inf")
    version: str = ""
    opened_at: float | None = None
    failures: int = 0
    too_old: int = 0
    problem: str = ""


def begin(now: float, *, first_delay_s: float = 0.0) -> Following:
    return Following(open_at=now + first_delay_s)


def hurry(state: Following, now: float, *, random: Random) -> Following:
    """Somebody does not want to wait any longer. What the server asked for is waited out all the same."""
    if state.open_at is None:
        return state
    soon_at = now if state.asked_until <= now else state.asked_until + random.uniform(*_AGAIN_S)
    return msgspec.structs.replace(state, open_at=min(state.open_at, soon_at))


def note_opened(state: Following, now: float) -> Following:
    """The server has accepted the watch. Whether it means it shows when something is heard, or nothing for a while."""
    return msgspec.structs.replace(state, open_at=None, opened_at=now)


def note_heard(state: Following, version: str = "") -> Following:
    """All is well: something came, an event or a bookmark of this version, or a while has passed in silence."""
    state = msgspec.structs.replace(state, problem="")
    return msgspec.structs.replace(state, version=version) if version else state


def goes_back(state: Following, version: str) -> bool:
    """Whether this version is older than what was heard: a server with another past, as after its etcd was restored,
    or one that tells things out of order. Versions of one resource grow, and are decimal numbers; of others it is not
    known.
    """
    versions = (version, state.version)
    return all(map(_VERSION_FORM.fullmatch, versions)) and int(version) < int(state.version)


def note_ended(state: Following, now: float, *, random: Random) -> Following:
    """The server ended the watch in good order, or the connection broke: as a rule it can be asked again."""
    if _has_lived(state, now):
        return _wait(_forgive(state), now, random.uniform(*_AGAIN_S))
    return _back_off(state, now, random=random)


def note_left(state: Following, now: float) -> Following:
    """A silent watch was left, for somebody doubts that a server is at its other end: ask for the present state."""
    state = _forgive(state) if _has_lived(state, now) else state
    return _wait(msgspec.structs.replace(state, version=""), now, 0.0)


def note_failed(
    state: Following,
    now: float,
    *,
    fault: ClusterFault,
    problem: str,
    retry_after_s: float | None = None,
    random: Random,
) -> Following:
    """No watch could be opened, or it told an error. ``problem`` is the sentence about it, for people.

    A version that is too old is none: the present state tells all that there is. If that happens again before a watch
    has lived, the server is not well. So it is with a version that the server refuses for whatever reason: it must not
    be asked for again for ever.
    """
    if _has_lived(state, now):
        state = _forgive(state)
    if fault is ClusterFault.GONE:
        state = msgspec.structs.replace(state, version="", too_old=state.too_old + 1)
        if state.too_old == 1:
            return _wait(state, now, random.uniform(*_AGAIN_S))
    is_version_doubted = fault not in _OUTAGES and (fault is not ClusterFault.FAILED or state.failures + 1 >= _TRIES)
    version = "" if is_version_doubted else state.version
    state = msgspec.structs.replace(state, problem=problem, version=version)
    return _back_off(state, now, random=random, least_s=min(RETRY_AFTER_MOST_S, max(0.0, retry_after_s or 0.0)))


def _has_lived(state: Following, now: float) -> bool:
    return state.opened_at is not None and now - state.opened_at >= _LIVED_S


def _forgive(state: Following) -> Following:
    return msgspec.structs.replace(state, failures=0, too_old=0)


def _back_off(state: Following, now: float, *, random: Random, least_s: float = 0.0) -> Following:
    """What the server asks for is the least: those that it asked together do not come back together."""
    bound_s = min(_LONGEST_BOUND_S, _FIRST_BOUND_S * 2.0 ** min(state.failures, 10))
    delay_s = least_s + random.uniform(_LEAST_PART * bound_s, bound_s)
    state = msgspec.structs.replace(state, failures=state.failures + 1, asked_until=now + least_s)
    return _wait(state, now, delay_s)


def _wait(state: Following, now: float, delay_s: float) -> Following:
    return msgspec.structs.replace(state, open_at=now + delay_s, opened_at=None)

"""When an ID may leave a list, and when a GPU may be offered in a new form.

Both rules protect pods and the kubelet itself. A kubelet of 1.34 to 1.36 crashes when an ID leaves the list during its
Allocate, and crash-loops after a restart under a topology policy when an ID that a pod holds is missing from the list
(kubelet contract, "More seen on a real kubelet"). And the kubelet knows IDs, not GPUs: only we can keep a GPU from
being promised twice, in an old form and a new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from nvdp.model.held import Held, Holding
from nvdp.planning.ledger import Given

UNHEALTHY_S = 5.0
"""How long an ID is Unhealthy, known to the kubelet, before it may leave."""
QUIET_S = 2.0
"""How long after an Allocate the kubelet may need until PodResources shows the holder."""
_MARGIN_S = 0.1  # between handing a list to grpc and the kubelet reading it
_IN_FLIGHT_S = 1.0  # how often to look whether an Allocate is over: one that is refused is told by nobody


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether it may be. If not: ``at`` is when time alone may change that (None: time alone will not), ``ask_since``
    that an answer about holders is missing that is requested then or later, ``holder`` the pod that holds the ID.
    """

    allowed: bool
    at: float | None = None
    ask_since: float | None = None
    holder: str = ""


_ALLOWED = Verdict(allowed=True)


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """The common circumstances of all verdicts of one plan."""

    held: Held
    holders: Mapping[str, Mapping[str, Holding]]
    remove_after_s: float
    now: float

    def find_holder(self, resource: str, device_id: str) -> str:
        """``namespace/pod`` that holds the ID, or an empty text."""
        holding = self.holders.get(resource, {}).get(device_id)
        return holding.holder if holding is not None else ""


def may_leave(given: Given, device_id: str, waiting: Waiting, *, proof: bool = False) -> Verdict:
    """Whether an ID that the plan does not want may leave the list of ``given``.

    It must have been Unhealthy for 5 s, with no Allocate in flight or answered in the last 2 s, and free by an answer
    requested after all that. Where the kubelet is up but neither source of holders could be read throughout
    ``removeAfter``, that time stands in for the answer, unless the last answer named a holder or ``proof`` is needed:
    the ID is what reminds us of a form in which its GPU may be held. While the kubelet is down nothing leaves.
    """
    now, held = waiting.now, waiting.held
    holder = waiting.find_holder(given.listed.resource, device_id)
    refusal = given.refusals.get(device_id)
    if refusal is None or refusal.known_at is None:
        return Verdict(allowed=False, holder=holder)
    ripe_at = max(refusal.known_at + UNHEALTHY_S + _MARGIN_S, _quiet_at(given, device_id))
    if now < ripe_at:
        return Verdict(allowed=False, at=_look_at(ripe_at, now), holder=holder)
    if held.unreadable_since is not None and not proof and not holder:
        substitute_at = max(held.unreadable_since, refusal.known_at) + waiting.remove_after_s
        return _ALLOWED if now >= substitute_at else Verdict(allowed=False, at=substitute_at)
    return _answered(given, device_id, waiting, since=ripe_at)


def may_change(given: Given, device_ids: Iterable[str], waiting: Waiting) -> Verdict:
    """Whether a GPU is free of these IDs of its old form, so that its new form may be offered.

    Allocate must refuse each of them already, none may be in flight or answered in the last 2 s, and an answer
    requested after that must show no holder. No time stands in for the answer here.
    """
    for device_id in device_ids:
        refusal = given.refusals.get(device_id)
        if refusal is None:  # it becomes Unhealthy with the list that is being planned now
            return Verdict(allowed=False, at=waiting.now, holder=waiting.find_holder(given.listed.resource, device_id))
        quiet_at = max(refusal.refused_at, _quiet_at(given, device_id))
        if waiting.now < quiet_at:
            holder = waiting.find_holder(given.listed.resource, device_id)
            return Verdict(allowed=False, at=_look_at(quiet_at, waiting.now), holder=holder)
        verdict = _answered(given, device_id, waiting, since=quiet_at)
        if not verdict.allowed:
            return verdict
    return _ALLOWED


def may_give_up(given: Given | None, device_ids: Iterable[str], waiting: Waiting, *, resource: str) -> Verdict:
    """Whether a GPU is free of these IDs of its old form, listed or not: ``may_change`` for all that may be held.

    What is held without being listed is free when its holder ends.
    """
    listed = given.listed.by_id if given is not None else {}
    ids = list(device_ids)
    for device_id in ids:
        if device_id not in listed and (holder := waiting.find_holder(resource, device_id)):
            return Verdict(allowed=False, holder=holder)
    mine = [device_id for device_id in ids if device_id in listed]
    return may_change(given, mine, waiting) if given is not None else _ALLOWED


def judge_unseen(given: Given, device_id: str, waiting: Waiting) -> Verdict:
    """Whether the newest answer about holders shows who got the ID: no Allocate of it is in flight, or came too late.

    If not, it is told when there can be such an answer.
    """
    quiet_at = _quiet_at(given, device_id)
    if waiting.now < quiet_at:
        return Verdict(allowed=False, at=_look_at(quiet_at, waiting.now))
    if waiting.held.requested_at < quiet_at:
        return Verdict(allowed=False, ask_since=quiet_at)
    return _ALLOWED


def _quiet_at(given: Given, device_id: str) -> float:
    """When the ID's last Allocate is 2 s old; infinity while one is in flight."""
    trace = given.allocations.get(device_id)
    if trace is None:
        return float("-inf")
    if trace.in_flight:
        return float("inf")
    return float("-inf") if trace.answered_at is None else trace.answered_at + QUIET_S


def _look_at(at: float, now: float) -> float:
    return now + _IN_FLIGHT_S if at == float("inf") else at


def _answered(given: Given, device_id: str, waiting: Waiting, *, since: float) -> Verdict:
    """The word of the newest answer about holders, if it was requested at or after ``since``."""
    holder = waiting.find_holder(given.listed.resource, device_id)
    if waiting.held.requested_at < since or waiting.held.source is None:
        return Verdict(allowed=False, ask_since=since, holder=holder)
    return Verdict(allowed=False, holder=holder) if holder else _ALLOWED

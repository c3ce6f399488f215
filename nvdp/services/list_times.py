"""How long lists take from their cause to the kubelet, and resources from a restart of the kubelet to it.

Belongs to the main thread; nothing blocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Protocol

import msgspec

from nvdp.kubelet.sockets import SocketIdentity
from nvdp.log import Log
from nvdp.model.reasons import Reason
from nvdp.services.events import ResourceReport

_MOST_SENT = 16  # lists of one resource, under way at once, that are timed; of more the latest


class TimesObserver(Protocol):
    """Counts and times what becomes of the lists (metrics/)."""

    def list_latency(self, cause: str, seconds: float) -> None: ...

    def config_applied(self, seconds: float) -> None: ...

    def kubelet_restarted(self) -> None: ...


class Cause(msgspec.Struct, frozen=True):
    """What lists change for (health, config, inventory), and when it was seen. Time and pods are no causes."""

    word: str
    at: float


class _Sent(msgspec.Struct, frozen=True):
    """A list on its way to the kubelet."""

    version: int
    cause: Cause


class _Return(msgspec.Struct):
    """A restart of the kubelet, and the resources that are not registered with the new one yet."""

    change: str
    at: float
    count: int
    missing: set[str]


class ListTimes:
    """Times what is ``sent`` by what is ``reported``."""

    def __init__(self, *, observer: TimesObserver, log: Log, clock: Callable[[], float]) -> None:
        self._observer = observer
        self._log = log
        self._clock = clock
        self._sent: dict[str, deque[_Sent]] = {}
        self._known_to: dict[str, SocketIdentity | None] = {}
        self._kubelet: SocketIdentity | None = None
        self._return: _Return | None = None

    def sent(self, resource: str, version: int, cause: Cause) -> None:
        """A list is on its way; for what, and since when."""
        self._sent.setdefault(resource, deque(maxlen=_MOST_SENT)).append(_Sent(version, cause))

    def kubelet_came(self, identity: SocketIdentity, resources: Collection[str], *, at: float) -> None:
        """The kubelet's socket is this one, seen ``at``; after another one, it has restarted.

        ``resources`` may have been quicker: their streams ended with the old kubelet, before its socket was looked at.
        """
        before, self._kubelet = self._kubelet, identity
        if before is None:
            return
        self._observer.kubelet_restarted()
        self._sent.clear()  # what comes now comes for this
        self._return = _Return(f"{before.inode} → {identity.inode}", at, len(resources), {*resources})
        for resource in resources:
            self._note_return(resource)

    def reported(self, report: ResourceReport) -> None:
        """Time what has reached the kubelet by now."""
        now = self._clock()
        sent = self._sent.get(report.resource, deque())
        # A newer list holds what those that it overtook had to say: the kubelet has it all.
        while sent and report.streams and report.taken_version >= sent[0].version:
            cause = sent.popleft().cause
            self._observer.list_latency(cause.word, now - cause.at)
            if cause.word == "config" and not self._is_edit_under_way():
                self._observer.config_applied(now - cause.at)
        self._known_to[report.resource] = report.kubelet if report.registered else None
        self._note_return(report.resource)

    def forget(self, resource: str) -> None:
        """It was withdrawn."""
        self._sent.pop(resource, None)
        self._known_to.pop(resource, None)
        if self._return is not None and resource in self._return.missing:
            self._return.missing.discard(resource)
            self._return.count -= 1
            self._tell_return()

    def _note_return(self, resource: str) -> None:
        found = self._return
        if found is None or resource not in found.missing or self._known_to.get(resource) != self._kubelet:
            return
        found.missing.discard(resource)
        self._observer.list_latency("kubelet", self._clock() - found.at)
        self._tell_return()

    def _tell_return(self) -> None:
        if self._return is None or self._return.missing:
            return
        found, self._return = self._return, None
        if found.count:
            seconds = self._clock() - found.at
            resources = f"{found.count} {'resource' if found.count == 1 else 'resources'}"
            text = f"kubelet.sock is new (inode {found.change}); {resources} registered again in {seconds:.3f}s"
            self._log(Reason.KUBELET_RESTARTED, text, seconds=round(seconds, 3))

    def _is_edit_under_way(self) -> bool:
        return any(one.cause.word == "config" for sent in self._sent.values() for one in sent)

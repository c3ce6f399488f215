"""What the twin saw, and waiting for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from nvdp.simulate.kubelet.history import History
from nvdp.simulate.kubelet.records import KubeletCrashedError, ListMessage, PluginCall, Registration

T = TypeVar("T")

_LOOK_EVERY_S = 0.05  # for conditions that are not the kubelet's: a file, a process
_JOURNAL_SHOWN = 30


class Observed:
    """The read side of the twin. All answers are copies, over all restarts."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._changes = history.changes
        self.crashed: str | None = None

    @property
    def registrations(self) -> tuple[Registration, ...]:
        with self._changes:
            return tuple(self._history.registrations)

    @property
    def calls(self) -> tuple[PluginCall, ...]:
        """GetPreferredAllocation, Allocate and PreStartContainer as they ended, over all restarts."""
        with self._changes:
            return tuple(self._history.calls)

    @property
    def journal(self) -> tuple[str, ...]:
        """The last lines of what it would log."""
        return self._history.journal

    def messages(self, resource: str) -> tuple[ListMessage, ...]:
        """Every list that came for ``resource``, over all restarts."""
        with self._changes:
            return tuple(self._history.messages.get(resource, ()))

    def wait_until(self, predicate: Callable[[], T], timeout_s: float = 5.0, *, what: str = "") -> T:
        """Wait until ``predicate`` is true, looked at with each change and a few times a second; return its value.

        It runs with the kubelet's lock held and must not call a plugin. Raise TimeoutError, with the journal.
        """
        deadline = time.monotonic() + timeout_s
        with self._changes:
            while True:
                self.assert_alive()
                found = predicate()
                if found:
                    return found
                left = deadline - time.monotonic()
                if left <= 0:
                    journal = "\n".join(self.journal[-_JOURNAL_SHOWN:])
                    raise TimeoutError(
                        f"not within {timeout_s} s: {what or predicate}; the kubelet's journal:\n{journal}"
                    )
                self._changes.wait(min(left, _LOOK_EVERY_S))

    def assert_alive(self) -> None:
        """Raise KubeletCrashedError if the plugin crashed it."""
        if self.crashed is not None:
            raise KubeletCrashedError(self.crashed)

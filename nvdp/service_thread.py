"""The thread of a service, which knows that its work is over a moment before the thread itself is."""

from __future__ import annotations

import threading
from collections.abc import Callable


class ServiceThread(threading.Thread):
    """Does ``work`` as a daemon thread of that ``name``.

    A crash is told by the dying thread (``threading.excepthook``), which is alive for a while yet, for long where the
    processor is scarce. Who asked ``is_alive`` then would take its service for one that runs and never start it again.
    """

    def __init__(self, work: Callable[[], None], *, name: str) -> None:
        super().__init__(target=work, name=name, daemon=True)
        self._is_over = False

    def run(self) -> None:
        try:
            super().run()
        finally:
            self._is_over = True

    @property
    def is_at_work(self) -> bool:
        """Whether its work is going on: neither over nor yet to begin. Any thread; does not block."""
        return self.is_alive() and not self._is_over

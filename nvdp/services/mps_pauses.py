"""Whether ``nvdp mps`` is paused, by an order or by the file, and since when it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from nvdp.config.schema import Config
from nvdp.model.pause import Pause
from nvdp.services.steering import FILE_KEY

SETTLED_S: Final = 3.0
"""After a pause has begun, so long at least until it is known what pods were given in its last moment.

The plugin sees the same pause and offers nothing from then on, but an Allocate may have been answered just before, and
its word about that comes with its next plan.
"""


class Pauses:
    """Belongs to the main thread. ``clock`` is monotonic, ``wall`` is for people."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._wall = wall
        self._ordered: Pause | None = None
        self._by_file: Pause | None = None
        self._began_at: float | None = None

    @property
    def current(self) -> Pause | None:
        """What it is paused by; None if it is not."""
        return self._ordered or self._by_file

    @property
    def is_settled(self) -> bool:
        """Whether nothing that was given out before the pause can be unknown any more."""
        return self._began_at is not None and self._clock() - self._began_at >= SETTLED_S

    def order(self, pause: Pause | None) -> None:
        """An operator's word; None: it stands no more."""
        self._ordered = pause
        self._note()

    def follow(self, config: Config | None) -> None:
        """What the file says that is, or will be, in force."""
        if config is None or not config.devices.paused:
            self._by_file = None
        elif self._by_file is None:
            self._by_file = Pause(by=f"{FILE_KEY} of {config.name}", since=self._wall())
        self._note()

    def _note(self) -> None:
        if self.current is None:
            self._began_at = None
        elif self._began_at is None:
            self._began_at = self._clock()

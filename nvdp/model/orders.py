"""What an operator may order through the control socket, and what comes of it."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an order: whether it is carried out by now, and one line for the person who gave it."""

    done: bool
    text: str


class Orders(Protocol):
    """Each blocks for ten seconds at most and may be called from any thread, several at once."""

    def pause(self, note: str) -> Carried:
        """Let go of the driver until ``resume``, over restarts of the plugin too. ``note`` says why, for people."""
        ...

    def resume(self) -> Carried:
        """Take the driver back, if nothing else says that it is paused."""
        ...

    def clear(self, device: str) -> Carried:
        """Forget the faults of one GPU, named by UUID, PCI address or index: the operator's word that it is well."""
        ...

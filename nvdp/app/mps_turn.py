"""Waits until no other ``nvdp mps`` keeps the daemons of the same MPS root: two would end each other's daemons."""

from __future__ import annotations

import queue
import signal
from collections.abc import Callable
from typing import Final

from nvdp.host.sole_owner import SoleOwner
from nvdp.log import Log
from nvdp.model.reasons import Level, Reason
from nvdp.services.events import Ping, ServiceCrashed, SignalReceived
from nvdp.services.mps_events import MpsEvent

_LOOK_S: Final = 0.5
_STOP_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT})
WAITING: Final = "another nvdp mps has this MPS root; this one waits, and touches nothing, until that one has ended"


def wait_for_turn(
    owner: SoleOwner, events: queue.SimpleQueue[MpsEvent], *, log: Log, restart: Callable[[], None]
) -> bool:
    """Wait as long as it takes; False if told to stop meanwhile. Main thread; HostError if nobody can tell.

    Pings are answered, and ``restart`` is called if the one service that runs by now has crashed.
    """
    is_told = False
    while not owner.try_own():
        if not is_told:
            log(Reason.STARTING, WAITING, level=Level.WARNING)
            is_told = True
        try:
            event = events.get(timeout=_LOOK_S)
        except queue.Empty:
            continue
        match event:
            case SignalReceived(number=number) if number in _STOP_SIGNALS:
                return False
            case Ping():
                event.answered.set()
            case ServiceCrashed():
                log(Reason.SERVICE_RESTARTED, f"{event.thread}: {event.error}", thread=event.thread, trace=event.trace)
                restart()
    return True

"""The shared memory of MPS is looked after: what keeps it away is told once and tried again."""

from __future__ import annotations

import queue

from nvdp.errors import HostError
from nvdp.services.mps_events import SharedMemorySeen
from nvdp.services.mps_shm import SharedMemoryService
from tests.daemon.process import wait_until


def test_what_keeps_it_from_being_mounted_is_told_once_and_over_once_it_is_there():
    posted, told = queue.SimpleQueue(), []
    failures = iter(["not permitted", "not permitted", None])

    def mount() -> str:
        failure = next(failures, None)
        if failure is not None:
            raise HostError(failure)
        return "pods do not see it"

    service = SharedMemoryService(
        mount, post=posted.put, log=lambda _reason, msg, /, **_: told.append(msg), look_s=0.01
    )
    service.start()
    try:
        assert posted.get(timeout=10) == SharedMemorySeen(problem="not permitted")
        assert posted.get(timeout=10) == SharedMemorySeen()
        wait_until(lambda: told == ["not permitted", "pods do not see it"], what="both told once")
    finally:
        service.stop()

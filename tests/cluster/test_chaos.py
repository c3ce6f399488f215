"""Everything at once, by chance: whatever befalls a watch, it ends with the newest state, and nothing is left open."""

from __future__ import annotations

import os
from random import Random

import pytest

from tests.cluster.server import ApiServer, answer, cut_after, drop, garbage, stream_error
from tests.cluster.test_watching import Sight
from tests.daemon.process import wait_until

FAULTS = (
    answer(401),
    answer(403),
    answer(410),
    answer(429, retry_after="0"),
    answer(500),
    cut_after(0.0),
    drop(),
    garbage(b"no answer"),
    garbage(b"no answer", raw=True),
    stream_error(410),
    stream_error(500),
)
STEPS = 25


class Instant(Random):
    """Waits for a hundredth of the least."""

    def uniform(self, a: float, b: float) -> float:
        return min(a, b) / 100


def befall(server: ApiServer, sight: Sight, chance: Random, *, number: int) -> None:
    """One thing that happens; some are waited for, others come on top of each other."""
    kind = chance.choice(["label", "label", "end", "break", "forget", "fault", "outage", "gone", "bookmark", "look"])
    if kind == "label":
        server.store.label("gpu-a3", step=str(number))
    elif kind == "end":
        server.end_watches()
    elif kind == "break":
        server.break_connections()
    elif kind == "forget":
        server.store.forget()
    elif kind == "fault":
        server.faults.add(chance.choice(FAULTS), verb="watch", times=chance.randint(1, 2))
    elif kind == "outage":
        server.stop()
        server.start()
    elif kind == "gone":
        server.store.remove("nodes", "gpu-a3")
        server.store.put("nodes", {"metadata": {"name": "gpu-a3", "labels": {"zone": "b"}}})
    elif kind == "bookmark":
        server.store.bookmark()
    else:
        sight.watch.look()
    if chance.random() < 0.5:
        asked = len(server.journal.of())
        server.end_watches()
        wait_until(lambda: len(server.journal.of()) > asked, what="another request")


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(100 if os.environ.get("NVDP_CAMPAIGN") == "full" else 2))
def test_whatever_happens_the_newest_state_is_seen_at_the_end(server: ApiServer, api, seed: int) -> None:
    chance = Random(seed)
    sight = Sight(api, random=Instant())
    sight.watch.start()
    for number in range(STEPS):
        befall(server, sight, chance, number=number)
    server.store.label("gpu-a3", step="last")
    wait_until(lambda: (sight.labels or {}).get("step") == "last", what="the newest state")
    wait_until(lambda: not sight.seen[-1].problem, what="that all is well")
    server.store.remove("nodes", "gpu-a3")
    wait_until(lambda: sight.seen[-1].object is None, what="its end")
    sight.watch.stop()
    sight.watch._thread.join(5)
    assert not sight.watch._thread.is_alive()
    api.close()
    wait_until(lambda: server.connections == 0, what="no connection")

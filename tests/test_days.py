"""Whole days on a node in virtual time: after whatever happened, what the file says is on offer, by itself."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from nvdp.kubelet.sockets import SocketIdentity
from nvdp.model.reasons import Cause
from nvdp.planning.presence import expire, merge_scan, recall
from tests.planning.files import Drawing, parse_file
from tests.planning.hardware import SLOTS, Machine
from tests.planning.list_checks import form_of
from tests.planning.oracle import Oracle
from tests.planning.walks import SPELLED
from tests.virtual.node import VirtualNode

REMOVE_AFTER_S = 300.0  # longer than a day's troubles: what nobody can be asked about in that time may leave
FULL = os.environ.get("NVDP_CAMPAIGN") == "full"


class Day:
    """A node on which things happen in an order that ``chance`` chooses. Files are edited over all of sharing."""

    def __init__(self, chance):
        self.chance = chance
        self.node = VirtualNode(runs_mps=True)
        self.node.recorded_s = chance.choice([0.0, 0.5, 1.9])
        self.machine = Machine(chance.choice([2, 3, 5]))
        self.oracle = Oracle()
        self.presence = None
        self.drawing = Drawing(chance, SPELLED, more={"devices": {"removeAfter": REMOVE_AFTER_S}})
        self.events = {
            self.allocate: 40,
            self.end_pod: 15,
            self.edit: 12,
            self.restart_kubelet: 8,
            self.change_cards: 8,
            self.scan: 8,
            self.read_or_not: 6,
            self.crash_actor: 6,
            self.restart_daemon: 4,
        }
        self.node.see_kubelet(self.node.kubelet)
        self.edit()
        self.scan()

    def live(self):
        """One thing happens, and a little time passes or none."""
        (event,) = self.chance.choices(list(self.events), weights=list(self.events.values()))
        event()
        self.node.run(self.chance.choice([0.0, 0.004, 0.1, 1.0, 3.0, 7.0]))
        self.check()

    def allocate(self):
        """A pod comes if the kubelet has anything for it."""
        used = set(self.node.pods.values())
        free = [
            (resource, device_id)
            for resource, actor in sorted(self.node.offers.actors.items())
            if actor.taken and self.node.kubelet is not None
            for device_id in self.node.healthy(resource)
            if (resource, device_id) not in used and self.is_healthy(resource, device_id)
        ]
        if free:
            resource, device_id = self.chance.choice(free)
            self.node.allocate(f"pod-{self.node.clock.now}-{len(self.node.pods)}", device_id, resource)

    def is_healthy(self, resource, device_id):
        device = self.node.actor(resource).feed.current.listed.by_id.get(device_id)
        return device is not None and device.healthy

    def end_pod(self):
        if self.node.pods:
            del self.node.pods[self.chance.choice(sorted(self.node.pods))]

    def edit(self):
        self.text = self.drawing.draw().text
        self.node.read(parse_file(self.text), text=self.text.encode())
        self.look()

    def restart_kubelet(self):
        up = self.chance.random() < 0.7
        self.node.see_kubelet(SocketIdentity(1, 100, self.chance.randrange(10**6)) if up else None)

    def change_cards(self):
        slot = self.chance.randrange(SLOTS)
        match self.chance.randrange(4):
            case 0:
                self.machine.pull(slot)
            case 1:
                self.machine.plug(slot, self.chance.randrange(2))
            case 2:
                self.machine.trouble(slot, self.chance.choice(["lost", "hung"]))
            case _:
                self.machine.heal()
        self.scan()

    def scan(self):
        scanned, silenced = self.machine.scan()
        now = self.node.clock.now
        seen = merge_scan(self.presence, scanned, silenced, now=now, wall=now)
        self.presence = expire(seen, now=now, remove_after_s=REMOVE_AFTER_S)
        self.node.scan(*self.presence.inventory.gpus, ailments=self.presence.ailments)
        self.look()

    def look(self):
        """The oracle learns what the daemon learns."""
        if self.presence is not None:
            gone = {uuid for uuid, ailment in self.presence.ailments.items() if ailment.cause is Cause.VANISHED}
            self.oracle.look(self.text, self.presence.inventory.gpus, gone=gone)

    def read_or_not(self):
        self.node.readable = self.chance.random() < 0.6

    def crash_actor(self):
        if self.node.offers.actors:
            name = self.chance.choice(sorted(self.node.offers.actors))
            self.node.actor(name).lose_stream()
            self.node.crash(f"resource {name}")

    def restart_daemon(self):
        """While somebody can say who holds what: else nobody can know it (see ``histories``)."""
        if self.node.readable and self.node.kubelet is not None:
            self.presence = recall(self.presence.inventory)
            self.node.restart_daemon(2.5)
            self.node.read(parse_file(self.text), text=self.text.encode())
            self.scan()

    def check(self):
        """What pods have is listed, and no card is on offer in another form than theirs."""
        promised = {}
        for resource, device_id in self.node.pods.values():
            assert device_id in self.node.offers.given[resource].listed.by_id
            gpu, form = form_of(resource, device_id)
            promised.setdefault(gpu, set()).add(form)
        for resource, given in self.node.offers.given.items():
            for device in given.listed.devices:
                if device.healthy:
                    gpu, form = form_of(resource, device.id)
                    promised.setdefault(gpu, set()).add(form)
                    assert gpu in self.oracle.said
                    assert gpu not in self.oracle.cordoned
        assert all(len(forms) == 1 for forms in promised.values()), f"a card is promised twice: {promised}"

    def end(self):
        """All is well again, and nobody holds anything."""
        self.node.pods.clear()
        self.node.readable = True
        self.node.see_kubelet(SocketIdentity(1, 100, 10**7))
        self.machine.heal()
        self.scan()
        self.node.run(REMOVE_AFTER_S)
        self.scan()  # what vanished is forgotten
        self.node.run(60.0)


@pytest.mark.campaign
@pytest.mark.invariant(3)
@pytest.mark.invariant(4)
@pytest.mark.parametrize("seed", range(60 if FULL else 5))
def test_after_any_day_exactly_what_the_file_says_is_on_offer_by_itself(seed):
    day = Day(random.Random(seed))
    for _ in range(150):
        day.live()
    day.end()

    expected = {}
    for uuid, said in day.oracle.said.items():
        is_cordoned = uuid in day.oracle.cordoned
        expected.setdefault(said.resource, Counter())[uuid, said.replicas > 1, not is_cordoned] = said.replicas
    found = {
        resource: Counter(
            (device.gpu_uuid, "::" in device.id, device.healthy) for device in day.node.taken(resource).devices
        )
        for resource in day.node.offers.actors
    }
    assert found == expected
    assert day.node.status.ready
    waits = day.node.clock.waits
    day.node.run(3600.0)
    assert day.node.clock.waits - waits <= 1

"""What is known of the connections between GPUs while some of them cannot be read."""

from __future__ import annotations

import itertools

import msgspec

from nvdp.host.state import Seen
from nvdp.model.inventory import Driver, Fault, Gpu, GpuRef, Inventory, UnreadableGpu
from nvdp.model.reasons import Cause
from nvdp.model.topology import Ancestor, Connection
from nvdp.planning.places import Silenced
from nvdp.planning.presence import expire, let_go, lose_driver, merge_scan, recall

LOST = Fault(call="nvmlDeviceGetName", kind="GpuIsLost", text="lost")
DRIVER = Driver(version="580.65.06", cuda_version="13.0")


def gpu(card: int, **facts) -> Gpu:
    return Gpu(uuid=f"GPU-{card}", index=card, pci=f"0000:{0x10 + card:02x}:00.0", **facts)


def link(a: int, b: int, *, ancestor: Ancestor | None = Ancestor.NODE, nvlinks: int = 4) -> Connection:
    return Connection(a=f"GPU-{a}", b=f"GPU-{b}", ancestor=ancestor, nvlinks=nvlinks)


def scan(*cards: int, bad: int | None = None, **more) -> Inventory:
    """All of them connected with each other, but for a ``bad`` one, of which nothing could be read."""
    connections = tuple(
        link(a, b, ancestor=None, nvlinks=0) if bad in {a, b} else link(a, b)
        for a, b in itertools.combinations(cards, 2)
    )
    gpus = tuple(gpu(card, fault=LOST if card == bad else None) for card in cards)
    return Inventory(driver=DRIVER, **({"gpus": gpus, "connections": connections} | more))


def merge(before, inventory, *silenced):
    return merge_scan(before, inventory, silenced, now=0.0, wall=0.0)


ALL = merge(None, scan(0, 1, 2))
CONNECTED = (link(0, 1), link(0, 2), link(1, 2))


def test_a_scan_of_all_is_what_connects_them():
    assert ALL.connections == ALL.inventory.connections == CONNECTED


def test_a_gpu_that_vanishes_is_lost_hangs_or_hides_keeps_its_connections():
    hung = Silenced(ref=GpuRef(index=1, count=3), uuid="GPU-1", cause=Cause.CALL_TIMEOUT, call="x", text="x")
    hidden = UnreadableGpu(index=1, pci="0000:11:00.0", fault=LOST)
    for now in (
        merge(ALL, scan(0, 2)),
        merge(ALL, scan(0, 1, 2, bad=1)),
        merge(ALL, scan(0, 2), hung),
        merge(ALL, scan(0, 2, unreadable=(hidden,))),
        lose_driver(ALL, "gone", wall=0.0),
        let_go(ALL, "paused", wall=0.0),
    ):
        assert now.inventory.connections == CONNECTED


def test_a_gpu_that_is_forgotten_is_connected_with_none():
    now = expire(merge(ALL, scan(0, 2)), now=300.0, remove_after_s=300.0)
    assert now.connections == (link(0, 2),)


def test_what_changed_between_gpus_that_are_well_is_taken_as_it_is():
    down = link(0, 1, nvlinks=3)
    now = merge(ALL, scan(0, 1, connections=(down,)))
    assert now.connections == (down, link(0, 2), link(1, 2))
    apart = merge(ALL, scan(0, 1, 2, connections=(link(0, 2),)))
    assert apart.connections == (link(0, 2),), "GPU 1 is in MIG mode now"


def test_a_common_ancestor_that_cannot_be_told_any_more_is_the_last_known():
    unknown = link(0, 1, ancestor=None, nvlinks=2)
    assert merge(ALL, scan(0, 1, connections=(unknown,))).connections[0] == link(0, 1, nvlinks=2)
    assert merge(None, scan(0, 1, connections=(unknown,))).connections == (unknown,)


def test_a_gpu_that_is_added_is_connected_in_the_order_of_uuids():
    now = merge(merge(None, scan(0, 2)), scan(0, 1, 2))
    assert now.connections == CONNECTED


def test_what_a_predecessor_knew_comes_with_its_connections_if_it_wrote_any():
    seen = Seen(boot_id="boot", inventory=ALL.inventory)
    kept = msgspec.json.decode(msgspec.json.encode(seen), type=Seen)
    assert recall(kept.inventory).connections == CONNECTED
    document = msgspec.json.decode(msgspec.json.encode(seen))
    del document["inventory"]["connections"]  # as a version wrote it that knew none
    older = msgspec.convert(document, Seen)
    assert recall(older.inventory).connections == ()
    assert older.inventory.gpus == ALL.inventory.gpus

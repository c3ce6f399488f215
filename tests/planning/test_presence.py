"""The rules of presence: who is known, who ails and since when, over any history of scans."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.model.inventory import Driver, Fault, Gpu, GpuRef, Inventory, UnreadableGpu
from nvdp.model.reasons import Cause
from nvdp.planning.places import Silenced
from nvdp.planning.presence import (
    Presence,
    expire,
    find_next_expiry,
    identify,
    lose_driver,
    merge_scan,
    silence,
)

DRIVER = Driver(version="580.65.06", cuda_version="13.0")
LOST = Fault(call="nvmlDeviceGetUUID", kind="GpuIsLost", text="lost")
FAILED = Fault(call="nvmlDeviceGetName", kind="ResetRequired", text="reset it")
REMOVE_AFTER_S = 300.0


def gpu(card: int, index: int | None = None, **facts) -> Gpu:
    return Gpu(
        uuid=f"GPU-{card}",
        index=card if index is None else index,
        pci=f"0000:{0x10 + card:02x}:00.0",
        product="NVIDIA A10",
        minor=card,
        **facts,
    )


def scan(*cards: int, **more) -> Inventory:
    return Inventory(driver=DRIVER, gpus=tuple(gpu(card, index) for index, card in enumerate(cards)), **more)


def merge(before: Presence | None, inventory: Inventory, *silenced: Silenced, now: float = 0.0) -> Presence:
    count = len(inventory.gpus) + len(inventory.unreadable) + len(silenced)
    return merge_scan(before, inventory, silenced, count=count, now=now, wall=1000.0 + now)


def causes(presence: Presence) -> dict[str, Cause]:
    return {uuid: ailment.cause for uuid, ailment in presence.ailments.items()}


def uuids(presence: Presence) -> list[str]:
    return [one.uuid for one in presence.inventory.gpus]


def test_a_clean_scan_is_what_there_is() -> None:
    presence = merge(None, scan(0, 1, 2))
    assert presence.inventory == scan(0, 1, 2)
    assert presence.ailments == {}


def test_a_gpu_that_is_not_counted_any_more_stays_known_in_its_place_until_its_time_is_over() -> None:
    presence = merge(merge(None, scan(0, 1, 2)), scan(0, 2), now=10)
    assert uuids(presence) == ["GPU-0", "GPU-1", "GPU-2"]
    assert causes(presence) == {"GPU-1": Cause.VANISHED}
    assert presence.ailments["GPU-1"].since == 1010
    presence = merge(presence, scan(0, 2), now=20)
    assert presence.ailments["GPU-1"].since == 1010, "it vanished then, not now"
    assert find_next_expiry(presence, remove_after_s=REMOVE_AFTER_S) == 310
    assert expire(presence, now=309, remove_after_s=REMOVE_AFTER_S) == presence
    assert uuids(expire(presence, now=310, remove_after_s=REMOVE_AFTER_S)) == ["GPU-0", "GPU-2"]


def test_a_gpu_that_comes_back_is_well_and_may_vanish_for_as_long_again() -> None:
    presence = merge(merge(merge(None, scan(0, 1)), scan(0), now=10), scan(0, 1), now=20)
    assert presence.ailments == {}
    assert find_next_expiry(presence, remove_after_s=REMOVE_AFTER_S) is None
    presence = merge(presence, scan(0), now=290)
    assert find_next_expiry(presence, remove_after_s=REMOVE_AFTER_S) == 590


def test_facts_that_cannot_be_read_now_keep_their_last_value() -> None:
    bad = Gpu(uuid="GPU-1", index=0, fault=FAILED)
    presence = merge(merge(None, scan(0, 1)), Inventory(driver=DRIVER, gpus=(bad, gpu(0, 1))))
    assert presence.inventory.gpus[0] == gpu(1, 0, fault=FAILED)
    assert causes(presence) == {"GPU-1": Cause.CALL_FAILED}
    assert presence.ailments["GPU-1"].text == "reset it"


def test_a_gpu_that_was_never_well_is_known_with_what_could_be_read() -> None:
    presence = merge(None, Inventory(driver=DRIVER, gpus=(Gpu(uuid="GPU-9", index=0, fault=FAILED),)))
    assert uuids(presence) == ["GPU-9"]
    assert causes(presence) == {"GPU-9": Cause.CALL_FAILED}


@pytest.mark.parametrize("pci", ["0000:11:00.0", None])
def test_an_unreadable_card_is_the_one_that_was_known_in_its_slot_or_place(pci) -> None:
    lost = UnreadableGpu(index=1, pci=pci, fault=LOST)
    inventory = Inventory(driver=DRIVER, gpus=(gpu(0), gpu(2)), unreadable=(lost,))
    presence = merge(merge(None, scan(0, 1, 2)), inventory)
    assert uuids(presence) == ["GPU-0", "GPU-1", "GPU-2"]
    assert causes(presence) == {"GPU-1": Cause.LOST}
    assert presence.unreadable == ()


def test_an_unreadable_card_that_was_never_known_is_shown_as_such() -> None:
    lost = UnreadableGpu(index=2, fault=LOST)
    presence = merge(merge(None, scan(0, 1)), Inventory(driver=DRIVER, gpus=scan(0, 1).gpus, unreadable=(lost,)))
    assert presence.unreadable == (lost,)
    assert presence.ailments == {}


def test_a_silenced_gpu_ails_whether_it_was_known_or_not() -> None:
    known = Silenced(
        ref=GpuRef(index=1, count=3), uuid="GPU-1", cause=Cause.CALL_TIMEOUT, call="nvmlDeviceGetName", text="no answer"
    )
    new = msgspec.structs.replace(known, ref=GpuRef(index=2, count=3, pci="0000:99:00.0"), uuid=None)
    presence = merge(merge(None, scan(0, 1)), scan(0), known, new)
    assert uuids(presence) == ["GPU-0", "GPU-1"]
    assert causes(presence) == {"GPU-1": Cause.CALL_TIMEOUT}
    assert presence.inventory.gpus[1].product == "NVIDIA A10"
    assert presence.unreadable == (
        UnreadableGpu(
            index=2,
            pci="0000:99:00.0",
            fault=Fault(call="nvmlDeviceGetName", kind="CallTimeout", text="no answer"),
        ),
    )


def test_a_gpu_is_marked_as_soon_as_its_call_does_not_return() -> None:
    entry = Silenced(
        ref=GpuRef(index=1, count=2, pci="0000:11:00.0"), uuid="GPU-1", cause=Cause.CALL_TIMEOUT, call="c", text="t"
    )
    presence = silence(merge(None, scan(0, 1)), entry, wall=5.0)
    assert causes(presence) == {"GPU-1": Cause.CALL_TIMEOUT}
    assert presence.ailments["GPU-1"].since == 5.0


def test_a_gpu_is_identified_by_name_by_slot_or_by_place() -> None:
    presence = merge(None, scan(0, 1))
    assert identify(presence, GpuRef(index=0, count=2, uuid="GPU-7")) == "GPU-7"
    assert identify(presence, GpuRef(index=0, count=2, pci="0000:11:00.0")) == "GPU-1"
    assert identify(presence, GpuRef(index=0, count=2)) == "GPU-0"
    assert identify(presence, GpuRef(index=0, count=1)) is None, "one of so many may be another"
    assert identify(presence, GpuRef(index=5, count=6)) is None
    assert identify(None, GpuRef(index=0, count=2)) is None


def test_a_lost_driver_is_an_ailment_of_all_that_are_there_and_takes_no_facts() -> None:
    before = merge(merge(None, scan(0, 1, 2)), scan(0, 1), now=10)
    presence = lose_driver(before, "nvmlInit: gone", wall=2000.0)
    assert presence.inventory == before.inventory
    assert causes(presence) == {
        "GPU-0": Cause.DRIVER_LOST,
        "GPU-1": Cause.DRIVER_LOST,
        "GPU-2": Cause.VANISHED,  # still: no index may be taken for its own
    }
    assert {uuid: ailment.since for uuid, ailment in presence.ailments.items()} == {
        "GPU-0": 2000.0,
        "GPU-1": 2000.0,
        "GPU-2": 1010.0,
    }
    back = merge(presence, scan(0, 1), now=20)
    assert causes(back) == {"GPU-2": Cause.VANISHED}


cards = st.lists(st.integers(0, 5), unique=True, max_size=6)


@pytest.mark.invariant(10)
@given(st.lists(cards, min_size=1, max_size=12))
def test_renumbering_moves_no_gpu_and_no_history_loses_one_before_its_time(history) -> None:
    presence: Presence | None = None
    for step, present in enumerate(history):
        presence = merge(presence, scan(*present), now=float(step))
        assert set(uuids(presence)) == {f"GPU-{card}" for seen in history[: step + 1] for card in seen}
        assert {one.uuid: one.pci for one in presence.inventory.gpus} == {
            f"GPU-{card}": gpu(card).pci for seen in history[: step + 1] for card in seen
        }
        assert set(presence.ailments) == set(uuids(presence)) - {f"GPU-{card}" for card in present}
        assert set(causes(presence).values()) <= {Cause.VANISHED}
    assert presence is not None
    later = expire(presence, now=len(history) + REMOVE_AFTER_S, remove_after_s=REMOVE_AFTER_S)
    assert set(uuids(later)) == {f"GPU-{card}" for card in history[-1]}


@pytest.mark.invariant(8)
@given(cards.map(sorted), st.data())
def test_absent_gpus_keep_the_order_of_the_list(all_cards, data) -> None:
    presence = merge(None, scan(*all_cards))
    left = data.draw(st.lists(st.sampled_from(all_cards), unique=True)) if all_cards else []
    assert uuids(merge(presence, scan(*sorted(left)))) == uuids(presence)


@pytest.mark.invariant(8)
@given(cards)
def test_the_same_scan_again_changes_nothing(present) -> None:
    once = merge(None, scan(*present))
    assert merge(once, scan(*present), now=1) == once
    fewer = merge(once, scan(*present[1:]), now=1)
    assert merge(fewer, scan(*present[1:]), now=2) == fewer

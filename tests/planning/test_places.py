"""Whose a place is where a GPU can be counted and nothing else, over histories in which one thing happens at a time."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.model.inventory import Driver, Fault, Gpu, GpuRef, Inventory, UnreadableGpu
from nvdp.model.reasons import Cause
from nvdp.planning.places import Missing, Silenced, Was, find_occupants, relocate
from nvdp.planning.presence import Presence, identify, lose_driver, merge_scan, recall, rename, silence

FAILED = Fault(call="nvmlDeviceGetHandleByIndex", kind="Unknown", text="no handle")
FAULTS = {"mute": FAILED, "lost": Fault(call=FAILED.call, kind="GpuIsLost", text="off the bus")}
CARDS = 5
STRANGER = 4  # a card whose UUID is never read


def look(before: Presence | None, cards: dict[int, str], *, now: float = 0.0) -> Presence:
    """A complete scan of ``cards`` by their slots: well, mute or lost (an error at once), or hung."""
    gpus, unreadable, silenced = [], [], []
    for index, card in enumerate(sorted(cards)):
        if cards[card] in FAULTS:
            unreadable.append(UnreadableGpu(index=index, fault=FAULTS[cards[card]]))
        elif cards[card] == "hung":
            silenced.append(hang(before, index, len(cards)))
        else:
            gpus.append(Gpu(uuid=f"GPU-{card}", index=index, pci=f"0000:{16 + card}:00.0", product="NVIDIA A10"))
    driver = Driver(version="580.65.06", cuda_version="13.0")
    inventory = Inventory(driver=driver, gpus=tuple(gpus), unreadable=tuple(unreadable))
    return merge_scan(before, inventory, silenced, count=len(cards), now=now, wall=1000.0 + now)


def hang(before: Presence | None, index: int, count: int) -> Silenced:
    ref = GpuRef(index=index, count=count)
    return Silenced(ref=ref, uuid=identify(before, ref), cause=Cause.CALL_TIMEOUT, call=FAILED.call, text="no answer")


def causes(presence: Presence) -> dict[str, Cause]:
    return {uuid: ailment.cause for uuid, ailment in presence.ailments.items()}


def doubted(presence: Presence) -> set[str]:
    return {sighting.gpu.uuid for sighting in presence.sightings if sighting.doubted}


def places(presence: Presence) -> dict[str, int]:
    return {sighting.gpu.uuid: sighting.gpu.index for sighting in presence.sightings if sighting.has_index}


WELL = dict.fromkeys(range(4), "well")


@pytest.mark.invariant(5)
@pytest.mark.invariant(10)
@pytest.mark.parametrize(("ill", "cause"), [("hung", Cause.CALL_TIMEOUT), ("mute", Cause.CALL_FAILED)])
def test_the_one_that_cannot_be_reached_stays_the_one_when_a_neighbour_goes(ill, cause) -> None:
    before = look(look(None, WELL), WELL | {1: ill})
    assert causes(before) == {"GPU-1": cause}
    left = {1: ill, 2: "well", 3: "well"}
    after = look(before, left, now=5)
    assert causes(after) == {"GPU-0": Cause.VANISHED, "GPU-1": cause}
    assert (places(after), after.unreadable) == ({"GPU-1": 0, "GPU-2": 1, "GPU-3": 2}, ())
    assert look(after, left, now=5) == after, "and again"
    assert identify(after, GpuRef(index=0, count=3)) == "GPU-1", "not the one that had that index and is gone"
    back = look(after, WELL | {1: ill})
    assert (causes(back), places(back)) == ({"GPU-1": cause}, {f"GPU-{n}": n for n in range(4)})


@pytest.mark.invariant(5)
@pytest.mark.parametrize("ill", ["hung", "mute"])
def test_one_that_cannot_be_reached_while_another_goes_may_be_either_and_neither_is_gone(ill) -> None:
    left = {1: ill, 2: "well", 3: "well"}
    presence = look(look(None, WELL), left)
    for _ in range(2):
        assert doubted(presence) == {"GPU-0", "GPU-1"}
        assert [gpu.index for gpu in presence.unreadable] == [0]
        assert places(presence) == {"GPU-2": 1, "GPU-3": 2}
        assert [gpu.uuid for gpu in presence.inventory.gpus] == [f"GPU-{n}" for n in range(4)]
        presence = look(presence, left)
    text = presence.ailments["GPU-0"].text
    assert text.startswith("NVML does not count it any more, or it is the GPU that cannot be read at index 0: no ")
    assert doubted(lose_driver(presence, "gone", wall=0)) == {"GPU-0", "GPU-1"}
    assert causes(lose_driver(presence, "gone", wall=0))["GPU-0"] is Cause.VANISHED, "its index may be another's"
    known = look(presence, left | {1: "well"}, now=9)
    assert (causes(known), doubted(known)) == ({"GPU-0": Cause.VANISHED}, set())
    assert known.sightings[0].absent_since == 9, "from when it is known"


def test_the_order_of_the_others_tells_who_cannot_be_reached_and_who_is_gone() -> None:
    presence = look(look(None, WELL), {0: "mute", 1: "well", 3: "well"})
    assert causes(presence) == {"GPU-0": Cause.CALL_FAILED, "GPU-2": Cause.VANISHED}
    assert (places(presence), presence.unreadable) == ({"GPU-0": 0, "GPU-1": 1, "GPU-3": 2}, ())


def test_one_that_is_back_and_cannot_be_reached_is_the_only_one_that_was_away() -> None:
    presence = look(look(look(None, WELL), dict.fromkeys(range(1, 4), "well")), WELL | {0: "hung"})
    assert causes(presence) == {"GPU-0": Cause.CALL_TIMEOUT}
    assert places(presence)["GPU-0"] == 0


def test_a_place_that_nobody_ever_had_is_nobodys_when_another_goes() -> None:
    before = look(look(None, WELL | {STRANGER: "mute"}), WELL | {STRANGER: "mute"})
    presence = look(before, {1: "well", 2: "well", 3: "well", STRANGER: "mute"})
    assert (causes(presence), doubted(presence)) == ({"GPU-0": Cause.VANISHED}, set())
    assert [gpu.index for gpu in presence.unreadable] == [3]


def test_what_was_blamed_on_a_gpu_in_a_scan_that_never_was_complete_counts_too() -> None:
    before = look(None, WELL)
    marked = silence(before, hang(before, 1, 4), wall=0)
    after = look(marked, {1: "hung", 2: "well", 3: "well"})
    assert causes(after) == {"GPU-0": Cause.VANISHED, "GPU-1": Cause.CALL_TIMEOUT}


@pytest.mark.parametrize("ill", ["lost", "hung"])
def test_one_that_was_lost_may_have_gone_when_another_cannot_be_read(ill) -> None:
    before = look(look(None, WELL), WELL | {0: "lost"})
    assert causes(before) == {"GPU-0": Cause.LOST}
    assert doubted(look(before, {1: ill, 2: "well", 3: "well"})) == {"GPU-0", "GPU-1"}


def test_who_starts_anew_takes_neither_for_gone_that_a_predecessor_doubted() -> None:
    left = {1: "hung", 2: "well", 3: "well"}
    before = recall(look(look(None, WELL), left).inventory)
    assert doubted(look(before, left)) == {"GPU-0", "GPU-1"}


def test_an_order_that_has_changed_tells_nothing() -> None:
    before = look(None, WELL)
    driver, gpus = before.driver, before.inventory.gpus
    moved = tuple(msgspec.structs.replace(gpus[n], index=index) for n, index in ((3, 1), (1, 2)))
    scanned = Inventory(driver=driver, gpus=moved, unreadable=(UnreadableGpu(index=0, fault=FAILED),))
    assert doubted(merge_scan(before, scanned, (), count=3, now=0, wall=0)) == {"GPU-0", "GPU-2"}
    scanned = Inventory(
        driver=driver,
        gpus=gpus[2:],
        unreadable=(UnreadableGpu(index=0, fault=FAILED), UnreadableGpu(index=1, pci=gpus[0].pci, fault=FAILED)),
    )
    after = merge_scan(before, scanned, (), count=4, now=0, wall=0)
    assert places(after) == {"GPU-1": 0, "GPU-0": 1, "GPU-2": 2, "GPU-3": 3}, "a slot tells more than a place"


U, L, D, T, A = Was.UNREACHED, Was.LOST, Was.DOUBTED, Was.THERE, Was.AWAY


@pytest.mark.parametrize(
    ("places", "strangers", "missing", "certain", "doubted"),
    [
        ([0], [], [(U, 0), (T, 0), (A, 0)], [0], []),
        ([0], [], [(T, 0), (A, 0)], [0], []),
        ([0], [], [(A, 0)], [0], []),
        ([0], [], [(T, 0), (T, 0)], [], [0, 1]),
        ([0, 0], [], [(U, 0), (U, 0)], [0, 1], []),
        ([0, 0], [], [(A, 0), (T, 0)], [], [0, 1]),
        ([0], [0], [(T, 0)], [], []),
        ([0], [0], [(U, 0)], [], [0]),
        ([0, 0], [0], [(T, 0), (A, 0)], [], [0]),
        ([0], [], [(D, 0)], [], [0]),
        ([0], [], [(L, 0)], [0], []),
        ([0], [], [(L, 0), (T, 0), (A, 0)], [], [0, 1]),
        ([0, 1], [], [(T, 0), (T, 1)], [0, 1], []),
        ([0], [], [(T, 0), (T, 1)], [0], []),
        ([0, 0], [], [(T, 0), (T, 1)], [], [0, 1]),
        ([1], [], [(T, 0)], [0], []),
    ],
)
def test_who_could_not_be_reached_comes_first_and_then_who_was_there(
    places, strangers, missing, certain, doubted
) -> None:
    """``missing`` are known by their number."""
    known = [Missing(uuid=str(number), was=was, gap=gap) for number, (was, gap) in enumerate(missing)]
    found = find_occupants(places, strangers=strangers, missing=known)
    assert [found.certain[place] for place in sorted(found.certain)] == [str(number) for number in certain]
    assert sorted(found.doubted) == [str(number) for number in doubted]


def test_a_gpu_that_is_left_out_is_followed_to_the_place_where_it_was_met() -> None:
    ref = GpuRef(index=2, count=4, pci="0000:18:00.0")
    named = Silenced(ref=ref, uuid="GPU-2", cause=Cause.CALL_TIMEOUT, call="c", text="t")
    bare = hang(None, 3, 4)
    met = GpuRef(index=1, count=3, pci="0000:18:00.0")
    assert [entry.ref for entry in relocate([named, bare], [met])] == [met]
    assert [entry.ref for entry in relocate([named, bare], [bare.ref])] == [bare.ref]
    before = look(look(None, WELL), WELL | {1: "hung"})
    entry = hang(before, 0, 3)
    assert entry.uuid is None, "three are not four"
    assert rename(look(before, {1: "hung", 2: "well", 3: "well"}), entry).uuid == "GPU-1"


EVENTS = st.lists(
    st.tuples(st.integers(0, CARDS - 1), st.sampled_from(["well", "mute", "lost", "hung", "out"])), max_size=12
)


@pytest.mark.invariant(5)
@pytest.mark.invariant(10)
@given(EVENTS, st.booleans())
def test_no_gpu_that_is_there_is_ever_taken_for_gone_and_none_has_the_index_of_another(events, has_stranger) -> None:
    cards = WELL | ({STRANGER: "mute"} if has_stranger else {})
    presence = look(None, cards)
    for card, state in events:
        if card == STRANGER and state == "well":
            continue
        cards.pop(card, None) if state == "out" else cards.update({card: state})
        presence = look(presence, cards)
        order = sorted(cards)
        for sighting in presence.sightings:
            number = int(sighting.gpu.uuid.removeprefix("GPU-"))
            if number in cards:
                assert sighting.absent_since is None
                assert sighting.ailment is None or cards[number] != "well"
                assert not sighting.has_index or order[sighting.gpu.index] in {number, STRANGER}
            assert sighting.ailment is not None or number in cards
        indices = [*places(presence).values(), *(gpu.index for gpu in presence.unreadable)]
        assert sorted(indices) == list(range(len(cards))), "each place once"


GAPS = st.lists(st.integers(0, 2), max_size=4)
MISSING = st.lists(st.tuples(st.sampled_from(Was), st.integers(0, 2)), max_size=5).map(
    lambda found: [Missing(uuid=f"GPU-{n}", was=was, gap=gap) for n, (was, gap) in enumerate(found)]
)


@given(GAPS, GAPS, MISSING)
def test_each_place_is_of_one_and_who_was_there_is_gone_only_if_places_are_too_few(places, strangers, missing):
    found = find_occupants(places, strangers=strangers, missing=missing)
    assert len(set(found.certain.values())) == len(found.certain)
    assert not set(found.certain.values()) & found.doubted.keys()
    assert set(found.certain) | set(found.doubted.values()) <= set(range(len(places)))
    if not places:
        assert (found.certain, found.doubted) == ({}, {})
    if not strangers and len(places) >= len(missing) > 0:
        stayed = {one.uuid for one in missing if one.was in {Was.UNREACHED, Was.THERE}}
        assert stayed <= {*found.certain.values(), *found.doubted}

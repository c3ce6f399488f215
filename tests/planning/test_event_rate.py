"""Events of the Node: few, each once, bounded, and none of what did not last."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.errors import ClusterFault
from nvdp.model.reasons import EventKind, Reason
from nvdp.model.status import ConfigStatus, ResourceStatus, Status, Strategy, Trouble
from nvdp.planning.event_rate import BURST, EVERY_S, MOST_SERIES, MOST_WAITING, NOTE_BYTES, EventRate, News, cut_note
from nvdp.planning.event_states import list_lasting
from nvdp.planning.write_pacing import Allowance, Backoff

START = 1000.0
WALL = 1_795_921_927.0
LOST = (Reason.REGISTRATION_FAILED, "nvidia.com/gpu")


class Server:
    """What is there after the writes of a rate, in a time of its own; ``events`` are by serial."""

    def __init__(self):
        self.now = START
        self.rate = EventRate()
        self.events = {}
        self.writes = []

    def tell(self, reason=Reason.DRIVER_MISSING, text="no driver", *, subject="", of_device=False, cause=""):
        news = News(
            reason=reason,
            type=reason.event,
            subject=subject,
            of_device=of_device,
            cause=cause,
            text=text,
            at=self.now,
            wall=WALL + self.now,
        )
        self.rate.take(news)

    def ail(self, number, text="XID 79", *, cause=""):
        uuid = f"GPU-{number:04d}"
        self.tell(Reason.DEVICE_UNHEALTHY, f"{uuid}: {text}", subject=uuid, of_device=True, cause=cause)

    def write_due(self):
        while (write := self.rate.next_write(self.now)) is not None:
            assert (write.serial in self.events) is write.again
            self.events[write.serial] = write
            self.writes.append((self.now, write))
            self.rate.written(write, now=self.now)
        following = self.rate.next_at(self.now)
        assert following is None or following > self.now, "it would ask again and again"
        return following

    def pass_time(self, seconds):
        """Let time pass, and write whenever something is due."""
        end = self.now + seconds
        while (following := self.write_due()) is not None and following <= end:
            self.now = following
        self.now = end
        self.write_due()

    @property
    def notes(self):
        return [event.note for event in self.events.values()]


@pytest.fixture
def server():
    return Server()


def test_what_happens_is_an_event_at_once(server):
    server.tell(Reason.DRIVER_MISSING, "libnvidia-ml.so.1 not found")
    server.tell(Reason.DRIVER_READY, "driver 580")
    server.write_due()
    assert [(event.reason, event.type, event.note, event.count) for event in server.events.values()] == [
        ("DriverMissing", "Warning", "libnvidia-ml.so.1 not found", 1),
        ("DriverReady", "Normal", "driver 580", 1),
    ]


def test_what_comes_again_raises_the_count_of_its_event_and_ever_less_often(server):
    for _ in range(3600):
        server.tell(Reason.ENTRY_WITHHELD, f"try {server.now:.0f}: no such GPU")
        server.pass_time(1.0)
    server.pass_time(600.0)
    (event,) = server.events.values()
    assert (event.count, event.last) == (3600, WALL + START + 3599)
    assert [round(at - START) for at, _ in server.writes] == [0, 30, 90, 210, 450, 930, 1530, 2130, 2730, 3330, 3930]


def test_what_says_something_else_or_concerns_another_is_another_event(server):
    server.tell(Reason.ENTRY_WITHHELD, "a")
    server.tell(Reason.ENTRY_WITHHELD, "b")
    server.tell(Reason.ENTRY_WITHHELD, "b", subject="nvidia.com/gpu")
    server.tell(Reason.RESOURCE_EMPTIED, "b")
    server.pass_time(100.0)
    assert [event.count for event in server.events.values()] == [1, 1, 1, 1]


def test_the_place_of_a_mistake_in_the_file_is_no_mere_figure(server):
    server.tell(Reason.CONFIG_REFUSED, "config.yaml:14:5: unknown key")
    server.tell(Reason.CONFIG_REFUSED, "config.yaml:15:5: unknown key")
    server.write_due()
    assert len(server.events) == 2


def test_after_a_quiet_while_it_is_a_new_event(server):
    server.tell()
    server.pass_time(901.0)
    server.tell()
    server.pass_time(901.0)
    assert [event.count for event in server.events.values()] == [1, 1]


def test_a_burst_of_ten_then_one_in_thirty_seconds(server):
    for number in range(14):
        server.tell(Reason.ENTRY_WITHHELD, chr(ord("a") + number))
    server.pass_time(200.0)
    assert [at - START for at, _ in server.writes] == [0.0] * 10 + [30.0, 60.0, 90.0, 120.0]
    assert server.notes == [chr(ord("a") + number) for number in range(14)]


def test_new_events_come_before_counts(server):
    server.tell(Reason.ENTRY_WITHHELD, "old")
    server.write_due()
    server.tell(Reason.ENTRY_WITHHELD, "old")
    for number in range(12):
        server.tell(Reason.ENTRY_WITHHELD, f"new {chr(ord('a') + number)}")
    server.pass_time(200.0)
    notes = [write.note for _, write in server.writes]
    assert notes == ["old", *(f"new {chr(ord('a') + number)}" for number in range(12)), "old"]
    assert server.writes[-1][1].again


def test_up_to_five_devices_are_told_one_by_one_after_a_moment(server):
    for number in range(5):
        server.ail(number)
    server.pass_time(1.9)
    assert server.notes == []
    server.pass_time(0.2)
    assert server.notes == [f"GPU-{number:04d}: XID 79" for number in range(5)]


def test_more_than_five_devices_are_one_event(server):
    for number in range(8):
        server.ail(number)
        server.pass_time(0.2)
    server.pass_time(5.0)
    others = ", ".join(f"GPU-{number:04d}" for number in range(1, 8))
    assert server.notes == [f"8 devices: GPU-0000: XID 79; as well as {others}"]


def test_what_befell_the_first_leaves_room_for_the_names_of_the_others(server):
    for number in range(8):
        server.ail(number, "words of it " * 500)
    server.pass_time(5.0)
    (note,) = server.notes
    assert note.startswith("8 devices: GPU-0000: words of it")
    assert note.endswith("; as well as " + ", ".join(f"GPU-{number:04d}" for number in range(1, 8)))


def test_the_same_device_several_times_is_one_of_them(server):
    for _ in range(20):
        server.ail(3)
    server.pass_time(5.0)
    (event,) = server.events.values()
    assert (event.note, event.count) == ("GPU-0003: XID 79", 2)


def test_what_is_told_once_more_of_one_fault_in_that_moment_is_its_event(server):
    server.ail(3, cause="XID")
    server.pass_time(0.5)
    server.ail(3, "XID 79; the driver asks for a reboot", cause="XID")
    server.ail(3, "off the bus", cause="Lost")
    server.pass_time(5.0)
    assert [(event.note, event.count) for event in server.events.values()] == [
        ("GPU-0003: XID 79; the driver asks for a reboot", 1),
        ("GPU-0003: off the bus", 1),
    ]


def test_the_event_of_many_devices_says_what_the_driver_asks_for(server):
    for text in ("XID 79", "XID 79; the driver asks for a reboot"):
        for number in range(8):
            server.ail(number, text, cause="XID")
        server.pass_time(0.5)
    server.pass_time(5.0)
    (note,) = server.notes
    assert note.startswith("8 devices: GPU-0000: XID 79; the driver asks for a reboot; as well as GPU-0001")


@pytest.mark.parametrize(
    "state",
    [LOST, (Reason.HOLDERS_UNKNOWN, ""), (Reason.CONFIG_MISSING, "")],
    ids=lambda state: state[0].word,
)
def test_some_states_are_told_only_if_they_last(server, state):
    reason, subject = state
    server.tell(reason, "the first line", subject=subject)
    server.rate.see({state}, now=server.now)
    server.pass_time(30.0)
    server.tell(reason, "another line", subject=subject)
    server.pass_time(29.9)
    assert server.notes == []
    server.pass_time(0.2)
    assert [(event.note, event.type) for event in server.events.values()] == [("the first line", "Warning")]


@pytest.mark.parametrize("after_s", [0.5, 1.9, 2.0, 30.0, 59.0])
def test_better_news_withdraw_them(server, after_s):
    server.tell(*LOST[:1], "no kubelet", subject=LOST[1])
    server.rate.see({LOST}, now=server.now)
    server.pass_time(after_s)
    server.rate.see(set(), now=server.now)
    server.pass_time(500.0)
    assert server.notes == []


def test_a_line_may_be_a_moment_ahead_of_the_state(server):
    server.rate.see(set(), now=server.now)
    server.tell(Reason.HOLDERS_UNKNOWN, "cannot tell")
    server.pass_time(1.0)
    server.rate.see(set(), now=server.now)
    server.pass_time(0.5)
    server.rate.see({(Reason.HOLDERS_UNKNOWN, "")}, now=server.now)
    server.pass_time(60.0)
    assert server.notes == ["cannot tell"]


def test_a_relapse_begins_its_minute_anew(server):
    server.tell(Reason.REGISTRATION_FAILED, "first", subject=LOST[1])
    server.rate.see({LOST}, now=server.now)
    server.pass_time(40.0)
    server.rate.see(set(), now=server.now)
    server.pass_time(10.0)
    server.tell(Reason.REGISTRATION_FAILED, "second", subject=LOST[1])
    server.rate.see({LOST}, now=server.now)
    server.pass_time(59.0)
    assert server.notes == []
    server.pass_time(2.0)
    assert server.notes == ["second"]


def test_an_event_that_is_gone_from_the_server_is_made_anew(server):
    server.tell(text="no driver: a")
    server.write_due()
    server.pass_time(30.0)
    server.tell(text="no driver: a")
    write = server.rate.next_write(server.now)
    assert write.again
    server.rate.lost(write, now=server.now)
    fresh = server.rate.next_write(server.now)
    assert (fresh.again, fresh.count, fresh.began) == (False, 1, WALL + START + 30.0)
    assert fresh.serial != write.serial


def test_an_event_that_the_server_does_not_want_is_in_nobodys_way(server):
    server.tell(text="poison")
    server.tell(text="good")
    server.rate.give_up(server.rate.next_write(server.now), now=server.now)
    server.pass_time(100.0)
    assert server.notes == ["good"]


def test_while_nothing_can_be_written_the_newest_are_kept(server):
    for number in range(MOST_WAITING + 36):
        server.tell(Reason.ENTRY_WITHHELD, "x" * number + ".")
    server.pass_time(3600.0)
    assert [len(note) - 1 for note in server.notes] == list(range(36, MOST_WAITING + 36))


def test_the_states_that_last_are_those_of_the_status():
    def resource(name, *, registered, planned=1):
        return ResourceStatus(
            name=name,
            planned=planned,
            healthy=1,
            unhealthy=0,
            registered=registered,
            streams=0,
            strategy=Strategy.NONE,
            replicas=(1,),
        )

    status = Status(
        resources=(
            resource("a", registered=False),
            resource("b", registered=True),
            resource("c", registered=False, planned=0),
        ),
        config=ConfigStatus(missing=True),
        troubles=(Trouble(reason="HoldersUnknown", text=""), Trouble(reason="PortTaken", text="")),
    )
    found = list_lasting(status)
    assert found == {
        (Reason.REGISTRATION_FAILED, "a"),
        (Reason.CONFIG_MISSING, ""),
        (Reason.HOLDERS_UNKNOWN, ""),
    }
    assert list_lasting(Status()) == frozenset()
    waiting = Status(config=ConfigStatus(waiting="node a: its label is not known yet"))
    assert list_lasting(waiting) == {(Reason.CONFIG_MISSING, "")}
    assert {reason for reason, _ in found} == {one for one in Reason if one.event is EventKind.LASTING}


@given(st.text(max_size=3000))
def test_a_note_fits_and_is_the_beginning_of_the_text(text):
    note = cut_note(text)
    assert len(note.encode()) <= NOTE_BYTES
    if len(text.encode("utf-8", "backslashreplace")) > NOTE_BYTES:
        assert text.startswith(note.removesuffix(" …"))


def test_a_long_note_ends_with_a_whole_word():
    assert cut_note("words of nine " * 200) == ("words of nine " * 73)[:1020].rpartition(" ")[0] + " …"


TOLD = [reason for reason in Reason if reason.event is not EventKind.NONE]
STEP = st.tuples(
    st.floats(0.0, 40.0) | st.just(0.0),
    st.sampled_from(TOLD),
    st.sampled_from(["", "nvidia.com/gpu", *(f"GPU-{number}" for number in range(9))]),
    st.text("ab1 é", max_size=4) | st.just("long " * 400),
    st.frozensets(st.just(LOST) | st.just((Reason.CONFIG_MISSING, "")), max_size=2) | st.none(),
)


@given(st.lists(STEP, max_size=300), st.integers(1, 40))
def test_whatever_comes_it_is_bounded_and_comes_to_an_end(steps, times):
    server = Server()
    for pause_s, reason, subject, text, lasting in steps:
        for _ in range(times if pause_s == 0 else 1):
            server.tell(reason, text, subject=subject, of_device=subject.startswith("GPU"))
        if lasting is not None:
            server.rate.see(lasting, now=server.now)
        server.pass_time(pause_s)
    assert len(server.rate._series) <= MOST_SERIES
    assert len(server.rate._delayed) <= MOST_WAITING
    server.pass_time(24 * 3600.0)
    assert server.rate.next_at(server.now) is None
    _check_rate([at for at, _ in server.writes])
    for _, write in server.writes:
        assert len(write.note.encode()) <= NOTE_BYTES
        assert write.type in {"Normal", "Warning"}
        assert write.last >= write.began
    for event in server.events.values():
        mine = [write for _, write in server.writes if write.serial == event.serial]
        assert [write.count for write in mine] == sorted({write.count for write in mine})
        assert [msgspec.structs.replace(write, count=1, last=0, again=False) for write in mine[1:]] == [
            msgspec.structs.replace(mine[0], count=1, last=0, again=False)
        ] * (len(mine) - 1)


def _check_rate(times):
    for first in range(len(times)):
        for last in range(first, min(len(times), first + 3 * BURST)):
            assert last - first + 1 <= BURST + math.floor((times[last] - times[first]) / EVERY_S + 1e-6)


@given(st.lists(st.tuples(st.sampled_from(TOLD), st.sampled_from("abc")), max_size=60))
def test_no_line_is_forgotten_and_none_is_told_twice(lines):
    """As long as no bound is reached, and of those that are neither gathered nor delayed."""
    server = Server()
    for reason, text in lines:
        if reason.event is not EventKind.LASTING:
            server.tell(reason, text)
            server.pass_time(1.0)
    server.pass_time(24 * 3600.0)
    expected = {(reason.word, text) for reason, text in lines if reason.event is not EventKind.LASTING}
    told = [(event.reason, event.note) for event in server.events.values()]
    assert len(told) == len(set(told))
    assert len(told) == len(expected) or len(expected) > MOST_WAITING
    if len(expected) <= MOST_WAITING:
        assert set(told) == expected
        assert sum(event.count for event in server.events.values()) == sum(
            reason.event is not EventKind.LASTING for reason, _ in lines
        )


@given(st.lists(st.floats(0.0, 100.0), max_size=200), st.integers(1, 12), st.floats(0.1, 60.0))
def test_an_allowance_is_a_burst_and_then_one_at_a_time(pauses, burst, every_s):
    allowance, now, used = Allowance(burst=burst, every_s=every_s), START, []
    for pause_s in pauses:
        now = max(now + pause_s, allowance.next_at(now))
        allowance.use(now)
        used.append(now)
    for first, begin in enumerate(used):
        for last in range(first, len(used)):
            assert last - first + 1 <= burst + (used[last] - begin) / every_s + 1e-6


@given(st.randoms(use_true_random=False), st.lists(st.sampled_from(ClusterFault), min_size=1, max_size=40))
def test_what_fails_is_tried_again_later_and_later_and_never_given_up(rng, faults):
    backoff = Backoff(rng)
    for count, fault in enumerate(faults):
        backoff.fail(fault, retry_after_s=None, now=START)
        delay_s = backoff.next_at - START
        if fault in {ClusterFault.DENIED, ClusterFault.MISSING, ClusterFault.REFUSED}:
            assert 600.0 <= delay_s <= 1200.0
        else:
            assert 0.2 <= delay_s <= min(60.0, 2.0**count)
    backoff.fail(ClusterFault.THROTTLED, retry_after_s=90.0, now=START)
    assert 90.0 <= backoff.next_at - START <= 150.0
    backoff.reset()
    assert backoff.next_at < START

"""Events of the Node on a real API server: what is there to be seen, and that nobody waits for it."""

from __future__ import annotations

import random
import threading
import time

import kubernetes_validate
import pytest

from nvdp.cluster.node_events import NodeEvents, build_event, name_event
from nvdp.log import configure_log
from nvdp.model.cluster import ObjectSeen
from nvdp.model.listing import Strategy
from nvdp.model.reasons import EventKind, Level, Reason
from nvdp.model.status import ResourceStatus, Status
from nvdp.planning.event_rate import EventWrite
from nvdp.services.node_events import EventLog, EventService, find_kind
from tests.cluster.server import answer, drop, hang
from tests.cluster.timing import WALL, Clock, Crashes, Lines, see, wait_ended, wait_soon
from tests.daemon.process import wait_until

NODE = "gpu-a3"
GPU = "GPU-9a1b77c0-d33e-4f0b-8f7e-2b1d6a0c9e55"


class Scene:
    """The service at work, its log, and what is on the server."""

    def __init__(self, server, api, **options):
        self.server = server
        self.clock = Clock()
        self.inner = Lines()
        self.log = EventLog(self.inner, clock=self.clock, wall=self.clock.wall)
        self.service = EventService(
            self.log,
            NodeEvents(api, node_name=NODE, instance="nvdp-x7k2p"),
            node_name=NODE,
            log=self.inner,
            rng=random.Random(7),
            batch_s=0.01,
            clock=self.clock,
            **options,
        )
        self.clock.services.append(self.service)
        self.service.start()

    @property
    def events(self):
        """By the time at which they began."""
        return sorted(self.server.store.list("events"), key=lambda one: (one["eventTime"], one["metadata"]["name"]))

    @property
    def notes(self):
        return [one["note"] for one in self.events]

    def wait_events(self, count):
        wait_soon(lambda: len(self.events) >= count, what=f"{count} events")
        return self.events

    def settle(self):
        """The thread has seen all there is at this time of the clock, and done what is due."""
        for _ in range(2):  # the second look begins when the first is done
            self.log.came.set()
            wait_soon(lambda: not self.log.came.is_set(), what="that the thread looks")

    def wait_written(self):
        """The service knows that all is written."""

        def is_written():
            series = list(self.service._rate._series.values())
            return series and all(one.written for one in series)

        wait_until(is_written, what="that it is written")


@pytest.fixture
def made():
    scenes = []
    yield scenes
    for scene in scenes:
        scene.service.stop()
    for scene in scenes:
        wait_ended(scene.service)


@pytest.fixture
def build(server, api, made):
    def build_scene(*, seen=True, **options):
        made.append(Scene(server, api, **options))
        if seen:
            see(server, made[-1].service)
        return made[-1]

    return build_scene


def find_versions():
    return ("1.28", kubernetes_validate.latest_version())


def test_a_line_of_the_log_is_an_event_of_the_node(build, server):
    scene = build()
    scene.log(Reason.DRIVER_MISSING, "libnvidia-ml.so.1 not found", trace="…")
    (event,) = scene.wait_events(1)
    assert {key: event[key] for key in event if key not in {"metadata", "eventTime"}} == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "type": "Warning",
        "reason": "DriverMissing",
        "action": "AdvertiseDevices",
        "note": "libnvidia-ml.so.1 not found",
        "regarding": {
            "apiVersion": "v1",
            "kind": "Node",
            "name": NODE,
            "uid": server.store.find("nodes", NODE)["metadata"]["uid"],
        },
        "reportingController": "nvdp/device-plugin",
        "reportingInstance": "nvdp-x7k2p",
    }
    assert event["eventTime"] == "2026-11-29T03:12:07.000000Z"
    assert event["metadata"]["namespace"] == "default"
    assert scene.inner.lines == [(Reason.DRIVER_MISSING, "libnvidia-ml.so.1 not found")]
    assert [entry.code for entry in server.journal.of()] == [201]


def test_the_note_is_the_sentence_of_the_log(build):
    scene = build()
    scene.log(Reason.DEVICE_UNHEALTHY, "XID 79", device=GPU, index=3, pci="0000:47:00.0", action="NodeReboot")
    scene.clock.pass_time(2.0)
    scene.wait_events(1)
    assert scene.notes == ["GPU-9a1b77c0 (index 3, 0000:47:00.0): XID 79  (action NodeReboot)"]


def test_what_the_driver_asks_for_is_in_the_one_event_of_a_fault_though_the_log_tells_it_later(build):
    scene = build()
    scene.log(Reason.DEVICE_UNHEALTHY, "XID 79", device=GPU, cause="XID")
    scene.settle()
    scene.log(Reason.DEVICE_UNHEALTHY, "XID 79", device=GPU, cause="XID", action="NodeReboot")
    scene.clock.pass_time(2.0)
    scene.wait_events(1)
    scene.wait_written()
    assert scene.notes == ["GPU-9a1b77c0: XID 79  (action NodeReboot)"]


def test_what_makes_no_event_costs_no_request(build, server):
    scene = build()
    for reason in Reason:
        if reason.event is EventKind.NONE:
            scene.log(reason, "x")
    scene.log(Reason.DRIVER_READY, "driver 580")
    scene.wait_events(1)
    assert [entry.verb for entry in server.journal.of()] == ["create"]


def write(**facts):
    known = {"reason": "DriverMissing", "type": "Warning", "note": "n", "began": WALL, "last": WALL, "count": 1}
    return EventWrite(**{"serial": 1, "again": False, **known, **facts})


@pytest.mark.parametrize("version", find_versions())
@pytest.mark.parametrize("count", [1, 12])
def test_it_is_as_the_published_schema_wants_it(version, count):
    event = build_event(write(count=count), node_name=NODE, uid="4711", instance="nvdp-x7k2p")
    kubernetes_validate.validate(event, version, strict=True)


def test_the_longest_names_still_make_a_name_of_an_object():
    name = name_event(write(serial=2**40), "a" * 199 + ".b" + "c" * 51)
    assert len(name) <= 253
    assert name.startswith("a" * 199 + ".")
    assert name != name_event(write(serial=2**40 + 1), "a" * 199 + ".b" + "c" * 51)


def test_without_a_pods_name_the_node_reports(api, server):
    NodeEvents(api, node_name=NODE, instance="").create(write(), "4711")
    (event,) = server.store.list("events")
    assert event["reportingInstance"] == NODE


def test_what_comes_again_changes_the_series_and_nothing_else(build, server):
    scene = build()
    scene.log(Reason.ENTRY_WITHHELD, "GPU 7 is not there")
    (before,) = scene.wait_events(1)
    scene.wait_written()
    for _ in range(11):
        scene.clock.pass_time(2.0)
        scene.log(Reason.ENTRY_WITHHELD, "GPU 8 is not there")
    scene.clock.pass_time(31.0)
    wait_until(lambda: "series" in scene.events[0], what="the series")
    (after,) = scene.events
    assert after["series"] == {"count": 12, "lastObservedTime": "2026-11-29T03:12:29.000000Z"}
    same = {key: value for key, value in after.items() if key not in {"series", "metadata"}}
    assert same == {key: value for key, value in before.items() if key != "metadata"}
    assert [entry.verb for entry in server.journal.of()] == ["create", "patch"]


def test_an_event_that_the_server_has_forgotten_is_made_anew(build, server):
    scene = build()
    scene.log(Reason.ENTRY_WITHHELD, "GPU 7 is not there")
    (event,) = scene.wait_events(1)
    scene.wait_written()
    server.store.remove("events", event["metadata"]["name"], namespace="default")
    scene.clock.pass_time(31.0)
    scene.log(Reason.ENTRY_WITHHELD, "GPU 7 is not there")
    scene.clock.pass_time(31.0)
    (again,) = scene.wait_events(1)
    assert "series" not in again
    assert again["eventTime"] == "2026-11-29T03:12:38.000000Z"


def test_a_write_whose_answer_was_lost_makes_no_second_event(api, server):
    events = NodeEvents(api, node_name=NODE, instance="p")
    events.create(write(), "4711")
    events.create(write(), "4711")
    assert len(server.store.list("events")) == 1


def test_the_uid_is_waited_for(build, server):
    scene = build(seen=False)
    scene.log(Reason.DRIVER_READY, "driver 580")
    scene.clock.pass_time(59.0)
    scene.service.see(ObjectSeen(problem="no API server", at=0.0))
    scene.settle()
    assert scene.events == []
    see(server, scene.service)
    (event,) = scene.wait_events(1)
    assert event["regarding"]["uid"] == server.store.find("nodes", NODE)["metadata"]["uid"]


def test_a_node_that_cannot_be_seen_is_named_as_the_kubelet_does(build):
    scene = build(seen=False)
    scene.log(Reason.DRIVER_READY, "driver 580")
    scene.clock.pass_time(60.0)
    (event,) = scene.wait_events(1)
    assert event["regarding"]["uid"] == NODE


def test_what_was_refused_is_told_once_the_node_is_in_sight_again(build, server):
    """A token that had expired, and was renewed."""
    scene = build()
    server.faults.add(answer(401, "Unauthorized"), verb="create")
    scene.log(Reason.DRIVER_READY, "driver 580")
    wait_until(lambda: scene.service.trouble, what="a refusal")
    scene.service.see(ObjectSeen(problem="watch node gpu-a3: 401", at=0.0))
    server.faults.clear()
    scene.settle()
    assert scene.events == []
    see(server, scene.service)
    scene.wait_events(1)


def test_nodes_that_start_at_once_do_not_write_at_once(build, server):
    scene = build(first_delay_s=50.0)
    scene.log(Reason.DRIVER_READY, "driver 580")
    times = []
    server.admit = lambda _: times.append(scene.clock.now)
    scene.clock.pass_time(49.0)
    scene.settle()
    scene.clock.pass_time(1.0)
    scene.wait_events(1)
    assert times == [scene.clock.now]


def test_a_short_loss_of_the_kubelet_is_no_event_and_a_long_one_is(build):
    def status(*, registered):
        known = {"planned": 1, "healthy": 1, "unhealthy": 0, "streams": 1, "strategy": Strategy.NONE, "replicas": (1,)}
        return Status(resources=(ResourceStatus(name="nvidia.com/gpu", registered=registered, **known),))

    scene = build()
    scene.log(Reason.REGISTRATION_FAILED, "no such socket; first", resource="nvidia.com/gpu")
    scene.service.follow(status(registered=False))
    scene.clock.pass_time(30.0)
    scene.service.follow(status(registered=True))
    wait_until(lambda: not scene.service._states, what="that the state is seen")
    scene.clock.pass_time(100.0)
    scene.log(Reason.REGISTRATION_FAILED, "no such socket; second", resource="nvidia.com/gpu")
    scene.service.follow(status(registered=False))
    wait_until(lambda: scene.service._rate._delayed, what="that the line is taken")
    scene.clock.pass_time(61.0)
    scene.wait_events(1)
    assert scene.notes == ["nvidia.com/gpu: no such socket; second"]


@pytest.mark.parametrize("fault", [drop(), answer(503), answer(429, retry_after="5"), answer(500)])
def test_what_fails_is_written_later(build, server, fault):
    scene = build()
    server.faults.add(fault, verb="create", times=2)
    scene.log(Reason.DRIVER_READY, "driver 580")
    for tries in (1, 2):
        wait_until(lambda tries=tries: len(server.journal.of()) >= tries, what="a try")
        wait_until(lambda: scene.service._attempts.next_at > scene.clock.now, what="that it is put off")
        scene.clock.pass_time(7.0)
    scene.wait_events(1)
    assert [entry.code for entry in server.journal.of()][2:] == [201]
    assert scene.inner.reasons == ["DriverReady"]
    assert scene.service.trouble is None


def test_a_missing_right_is_told_once_and_asked_for_every_ten_minutes(build, server):
    scene = build()
    server.faults.add(answer(403, "events is forbidden"), verb="create")
    scene.log(Reason.DRIVER_READY, "driver 580")
    wait_until(lambda: scene.service.trouble, what="that it is shown")
    for _ in range(30):
        scene.clock.pass_time(120.0)
        scene.log(Reason.DRIVER_READY, "driver 580")
        scene.settle()
    assert 3 <= len(server.journal.of()) <= 7
    assert scene.inner.reasons.count("NodeWriteFailed") == 1
    assert "events of the node cannot be written" in scene.service.trouble.text
    server.faults.clear()
    scene.service.look()
    scene.wait_events(1)
    wait_until(lambda: scene.service.trouble is None, what="that it is over")


def test_an_event_that_the_server_does_not_take_is_in_nobodys_way(build, server):
    scene = build()
    server.faults.add(answer(422, "note: Too long"), verb="create", times=1)
    scene.log(Reason.DRIVER_READY, "poison")
    scene.log(Reason.DRIVER_RESUMED, "good")
    scene.wait_events(1)
    assert scene.notes == ["good"]
    assert scene.inner.reasons.count("NodeWriteFailed") == 1


def test_after_an_outage_the_newest_are_told_within_the_rate(build, server):
    scene = build()
    server.stop()
    for number in range(300):
        scene.log(Reason.ENTRY_WITHHELD, "x" * number)
    wait_until(lambda: scene.service._attempts.next_at > scene.clock.now, what="a try that failed")
    server.start()
    scene.clock.pass_time(61.0)
    scene.wait_events(10)
    scene.clock.pass_time(1.0)
    assert len(server.journal.of(verb="create")) == 10
    assert min(len(note) for note in scene.notes) >= 300 - 64 - 10


def test_a_flood_neither_holds_up_who_logs_nor_reaches_the_server(build, server):
    """10,000 lines while the server hangs, which would hold up whoever waits for it."""
    released = threading.Event()
    server.faults.add(hang(released), verb="create", times=1)
    scene = build()
    began = time.monotonic()
    for number in range(10_000):
        scene.log(Reason.DEVICE_UNHEALTHY, f"XID {number}", device=f"GPU-{number % 100}")
        scene.log(Reason.DRIVER_MISSING, f"not found for the {number}th time")
    took_s = time.monotonic() - began
    released.set()
    assert took_s < 8.0, "the server holds up a request for 10 s"
    assert len(scene.inner.lines) == 20_000
    wait_until(lambda: scene.service._attempts.next_at > scene.clock.now, what="that the try has failed")
    scene.clock.pass_time(10.0)
    scene.wait_events(1)
    scene.clock.pass_time(3600.0)
    scene.wait_events(2)
    assert len(server.journal.of()) <= 12


def test_a_thread_that_died_goes_on_with_what_is_left(build, server, api):
    scene = build()
    writer = scene.service._writer

    class Broken:
        def create(self, *_):
            raise RuntimeError("a defect")

    with Crashes() as crashes:
        scene.service._writer = Broken()
        scene.log(Reason.DRIVER_READY, "driver 580")
        assert crashes.died.wait(15.0)
        wait_ended(scene.service)
    scene.service._writer = writer
    scene.service.start()
    scene.wait_events(1)
    assert scene.notes == ["driver 580"]


@pytest.mark.parametrize(
    ("reason", "level", "kind"),
    [
        (Reason.CONFIG_APPLIED, None, EventKind.NORMAL),
        (Reason.CONFIG_APPLIED, Level.INFO, EventKind.NORMAL),
        (Reason.CONFIG_APPLIED, Level.WARNING, EventKind.WARNING),
        (Reason.CONFIG_APPLIED, Level.DEBUG, EventKind.NONE),
        (Reason.DEVICE_UNHEALTHY, Level.INFO, EventKind.NONE),
        (Reason.REGISTRATION_FAILED, Level.ERROR, EventKind.LASTING),
        (Reason.STOPPED, Level.ERROR, EventKind.NONE),
    ],
)
def test_how_serious_a_line_is_decides_with_its_reason(reason, level, kind):
    assert find_kind(reason, level) is kind


def test_values_that_cannot_be_shown_do_no_harm(build):
    class Broken:
        def __str__(self):
            raise ValueError

    scene = build()
    scene.log(Reason.DRIVER_READY, "driver 580", more=Broken(), many={"a": [Broken()]})
    scene.wait_events(1)
    assert scene.notes[0].startswith("driver 580")


def test_the_real_log_gets_every_line_as_it_is(tmp_path):
    with (tmp_path / "log").open("w") as stream:
        log = EventLog(configure_log(format="json", stream=stream, clock=lambda: WALL))
        log(Reason.STOPPED, "cannot go on", level=Level.ERROR, error="x")
    assert (tmp_path / "log").read_text() == (
        '{"time":"2026-11-29T03:12:07.000Z","level":"error","reason":"Stopped","msg":"cannot go on","error":"x"}\n'
    )

"""The condition of the Node and its start-up taint on a real API server: what is written, when, and what is not."""

from __future__ import annotations

import random
import threading
import time

import kubernetes_validate
import msgspec
import pytest

from nvdp.cluster.node_status import NodeConditionWriter, NodeTaintRemover, format_time
from nvdp.model.cluster import ObjectSeen
from nvdp.model.listing import Strategy
from nvdp.model.status import ConfigStatus, DriverState, DriverStatus, ResourceStatus, Status
from nvdp.services.node_status import NodeStatusService
from nvdp.services.startup_taint import StartupTaintService
from tests.cluster.server import answer, drop, hang
from tests.cluster.timing import Changed, Clock, Crashes, Lines, see, wait_ended, wait_soon
from tests.daemon.process import wait_until

NODE, GPU = "gpu-a3", "nvidia.com/gpu"
TYPE, KEY = "nvidia.com/GPUReady", "nvidia.com/gpu-not-ready"
KUBELETS = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "is posting ready status"}
OTHERS = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
OURS = {"key": KEY, "effect": "NoSchedule", "value": "true"}
IN_FORCE = ConfigStatus(valid=True, hash="sha256:1f0c9a2e77b0", applied_at=1.0)


def advertised(healthy=4, *, registered=True, state=DriverState.READY):
    resource = ResourceStatus(
        name=GPU,
        planned=4,
        healthy=healthy,
        unhealthy=4 - healthy,
        registered=registered,
        streams=1,
        strategy=Strategy.NONE,
        replicas=(1,),
    )
    driver = DriverStatus(state=state, text="no driver")
    return Status(ready=registered, reason="", config=IN_FORCE, driver=driver, resources=(resource,))


class Scene:
    """A Node on the server, and a service that writes to it."""

    def __init__(self, server, api):
        self.server = server
        self.api = api
        self.clock = Clock()
        self.log = Lines()
        self.service = None
        self.written = []  # times of the clock
        server.admit = self._admit
        server.store.edit("nodes", NODE, lambda node: node.update(status={"conditions": [KUBELETS]}))
        server.store.edit("nodes", NODE, lambda node: node.update(spec={"taints": [OTHERS, OURS]}))
        server.journal.clear()

    def _admit(self, _):
        self.written.append(self.clock.now)

    def keep_condition(self, **options):
        self.service = NodeStatusService(
            NodeConditionWriter(self.api, node_name=NODE, condition_type=TYPE),
            condition_type=TYPE,
            format_time=format_time,
            log=self.log,
            rng=random.Random(7),
            clock=self.clock,
            wall=self.clock.wall,
            **options,
        )
        return self._start()

    def remove_taint(self, **options):
        self.service = StartupTaintService(
            NodeTaintRemover(self.api, node_name=NODE),
            key=KEY,
            node_name=NODE,
            log=self.log,
            rng=random.Random(7),
            clock=self.clock,
            **options,
        )
        return self._start()

    def _start(self):
        self.clock.services.append(self.service)
        self.service._changed = Changed()
        self.service.start()
        return self.service

    def write_first(self):
        """A service that has written once: all is advertised."""
        service = self.keep_condition()
        self.see()
        self.follow_for(1.0, advertised())
        self.wait_condition("PlanAdvertised", writes=1)
        return service

    def see(self):
        see(self.server, self.service)

    def follow_for(self, seconds, status):
        self.service.follow(status)
        self.clock.pass_time(seconds)

    def lose_condition(self):
        self.server.store.edit("nodes", NODE, lambda node: node["status"].update(conditions=[KUBELETS]))

    def pass_quietly(self, seconds):
        """Let time pass, in which nothing is to be written: the thread has seen it pass."""
        known = list(self.written)
        self.settle()
        self.clock.pass_time(seconds)
        self.settle()
        assert self.written == known

    def settle(self):
        changed = self.service._changed
        wait_soon(lambda: changed.is_idle or not self.service._thread.is_alive(), what="that the thread looks")

    @property
    def condition(self):
        conditions = self.server.store.find("nodes", NODE)["status"]["conditions"]
        return next((one for one in conditions if one["type"] == TYPE), {})

    @property
    def taints(self):
        return self.server.store.find("nodes", NODE)["spec"]["taints"]

    def wait_condition(self, reason, *, writes):
        wait_soon(lambda: self.condition.get("reason") == reason, what=f"{reason}, not {self.condition}")
        wait_soon(lambda: len(self.written) >= writes, what=f"{writes} writes")
        wait_soon(lambda: self.service._sight.there.reason == reason, what="that the service knows it")
        assert len(self.written) == writes

    def wait_failed(self):
        wait_until(lambda: self.service._attempts.next_at > self.clock.now, what="a try that failed")

    def wait_taints(self, *taints):
        wait_soon(lambda: self.taints == [*taints], what=f"{taints}, not {self.taints}")
        self.settle()

    def show_allocatable(self, count="4"):
        self.server.store.edit("nodes", NODE, lambda node: node["status"].update(allocatable={GPU: count}))
        self.see()


@pytest.fixture
def scene(server, api):
    made = Scene(server, api)
    yield made
    if made.service is not None:
        made.service.stop()
        wait_ended(made.service)


def test_the_condition_is_added_and_all_others_stay(scene, server):
    scene.write_first()
    node = server.store.find("nodes", NODE)
    assert node["status"]["conditions"] == [
        KUBELETS,
        {
            "type": TYPE,
            "status": "True",
            "reason": "PlanAdvertised",
            "message": "nvidia.com/gpu: 4 of 4 healthy",
            "lastTransitionTime": "2026-11-29T03:12:08Z",
            "lastHeartbeatTime": "2026-11-29T03:12:08Z",
        },
    ]
    assert node["spec"]["taints"] == [OTHERS, OURS]
    (entry,) = server.journal.of()
    assert (entry.verb, entry.resource, entry.name, entry.code) == ("patch", "nodes/status", NODE, 200)
    for version in ("1.28", kubernetes_validate.latest_version()):
        kubernetes_validate.validate(node, version, strict=True)


def test_the_time_is_that_of_the_last_change_of_the_status_not_of_the_reason(scene):
    scene.keep_condition()
    scene.see()
    for writes, (status, reason) in enumerate(
        [
            (advertised(registered=False), "NotRegistered"),
            (advertised(state=DriverState.MISSING), "DriverMissing"),
            (advertised(), "PlanAdvertised"),
            (advertised(0), "AllUnhealthy"),
        ],
        start=1,
    ):
        scene.follow_for(10.0, status)
        scene.wait_condition(reason, writes=writes)
        expected = {1: "17", 2: "17", 3: "37", 4: "47"}[writes]
        assert scene.condition["lastTransitionTime"] == f"2026-11-29T03:12:{expected}Z"


def test_a_start_whose_condition_is_there_already_writes_nothing(scene):
    first = scene.write_first()
    first.stop()
    before = scene.condition

    service = scene.keep_condition()
    scene.see()
    service.follow(Status())
    scene.pass_quietly(29.0)
    service.follow(advertised())
    scene.pass_quietly(3600.0)
    scene.follow_for(1.0, advertised(0))
    scene.wait_condition("AllUnhealthy", writes=2)
    assert before["lastTransitionTime"] < scene.condition["lastTransitionTime"]


def test_a_start_that_takes_long_is_said(scene):
    service = scene.keep_condition()
    scene.see()
    service.follow(Status())
    scene.pass_quietly(29.0)
    scene.clock.pass_time(1.0)
    scene.wait_condition("NotRegistered", writes=1)


def test_what_lasts_less_than_a_second_is_not_written(scene):
    service = scene.keep_condition()
    scene.see()
    for _ in range(8):
        service.follow(advertised(registered=False))
        scene.pass_quietly(0.9)
        service.follow(advertised())
        scene.pass_quietly(0.9)
    scene.clock.pass_time(0.1)
    scene.wait_condition("PlanAdvertised", writes=1)


def test_another_message_of_the_same_state_is_written_once_it_stays(scene):
    service = scene.write_first()
    for healthy in (3, 4, 3, 2, 3, 4, 3):
        service.follow(advertised(healthy))
        scene.pass_quietly(25.0)
    scene.clock.pass_time(5.0)
    wait_until(lambda: "3 of 4" in scene.condition["message"], what="the message")
    assert scene.condition["lastTransitionTime"] == "2026-11-29T03:12:08Z"
    assert len(scene.written) == 2


def test_nothing_is_written_before_the_node_was_seen(scene, server):
    service = scene.keep_condition()
    service.follow(advertised())
    service.see(ObjectSeen(problem="no API server", at=0.0))
    service.see(ObjectSeen(at=0.0))
    scene.pass_quietly(100.0)
    scene.see()
    scene.wait_condition("PlanAdvertised", writes=1)


def test_a_condition_that_is_gone_is_put_back(scene):
    scene.write_first()
    scene.lose_condition()
    scene.see()
    scene.wait_condition("PlanAdvertised", writes=2)


def test_an_old_sight_of_the_node_is_no_reason_to_write_again(scene, server):
    old = server.store.find("nodes", NODE)
    service = scene.write_first()
    scene.pass_quietly(30.0)
    service.see(ObjectSeen(object=old, at=0.0))
    service.see(ObjectSeen(object=old, problem="no API server", at=0.0))
    scene.pass_quietly(3600.0)
    scene.see()
    scene.follow_for(1.0, advertised(0))
    scene.wait_condition("AllUnhealthy", writes=2)


def test_a_server_that_was_restored_to_what_was_before_is_written_to_again(scene, server):
    old = server.store.find("nodes", NODE)
    service = scene.write_first()
    scene.pass_quietly(3600.0)
    scene.lose_condition()
    service.see(ObjectSeen(object=old, at=0.0))
    scene.wait_condition("PlanAdvertised", writes=2)


def test_a_write_that_comes_to_a_lower_version_is_written_once(scene, server):
    """The server was restored between the sight of the Node and the write."""
    service = scene.keep_condition()
    seen = server.store.find("nodes", NODE)
    seen["metadata"]["resourceVersion"] = "900000"
    service.see(ObjectSeen(object=seen, at=0.0))
    scene.follow_for(1.0, advertised())
    scene.wait_condition("PlanAdvertised", writes=1)
    scene.pass_quietly(3600.0)


def test_versions_that_are_no_numbers_are_given_a_moment(scene, server):
    """Nobody promises that they are; then what is seen just after a write may be what was there before."""
    old = server.store.find("nodes", NODE)
    old["metadata"]["resourceVersion"] = "opaque"
    service = scene.write_first()
    scene.pass_quietly(9.0)
    service.see(ObjectSeen(object=old, at=0.0))
    scene.pass_quietly(3600.0)
    service.see(ObjectSeen(object=old, at=0.0))
    scene.wait_condition("PlanAdvertised", writes=2)


def test_two_that_write_the_same_condition_cost_a_request_a_minute(scene):
    scene.write_first()
    for _ in range(80):
        scene.clock.pass_time(15.0)
        scene.lose_condition()
        scene.see()
        scene.settle()
    assert 15 <= len(scene.written) <= 5 + 20


@pytest.mark.parametrize("fault", [drop(), answer(503), answer(409)])
def test_after_an_outage_the_newest_state_is_written_once(scene, server, fault):
    service = scene.keep_condition()
    scene.see()
    server.faults.add(fault)
    scene.follow_for(1.0, advertised(registered=False))
    for number in range(5):
        scene.wait_failed()
        scene.follow_for(61.0, advertised(number % 5))
    scene.wait_failed()
    assert service.trouble is not None
    server.faults.clear()
    scene.follow_for(61.0, advertised())
    scene.wait_condition("PlanAdvertised", writes=1)
    wait_until(lambda: service.trouble is None, what="that it is over")
    assert scene.log.lines == []


def test_a_missing_right_is_told_once(scene, server):
    service = scene.keep_condition()
    scene.see()
    server.faults.add(answer(403, "nodes/status is forbidden"))
    scene.follow_for(1.0, advertised())
    wait_until(lambda: service.trouble, what="that it is shown")
    for _ in range(30):
        scene.pass_quietly(120.0)
    assert 3 <= len(server.journal.of()) <= 7
    assert scene.log.reasons == ["NodeWriteFailed"]


@pytest.mark.parametrize(
    ("fault", "away"),
    [(answer(401, "Unauthorized"), {"problem": "watch node gpu-a3: 401"}), (answer(404, "not found"), {})],
    ids=["a token that expired", "a Node that was deleted"],
)
def test_what_was_refused_is_tried_again_once_the_node_is_in_sight_again(scene, server, fault, away):
    """The kubelet renews the token a moment after a server was back, and nobody is told: it must not take 20 min."""
    service = scene.keep_condition()
    scene.see()
    server.faults.add(fault, verb="patch")
    scene.follow_for(1.0, advertised())
    scene.wait_failed()
    service.see(ObjectSeen(at=0.0, **away))
    server.faults.clear()
    scene.pass_quietly(60.0)
    scene.see()
    scene.wait_condition("PlanAdvertised", writes=1)


def test_a_right_that_is_missing_is_not_asked_for_whenever_the_node_changes(scene, server):
    scene.keep_condition()
    scene.see()
    server.faults.add(answer(403, "nodes/status is forbidden"))
    scene.follow_for(1.0, advertised())
    scene.wait_failed()
    for _ in range(50):
        scene.see()
        scene.pass_quietly(10.0)
    assert len(server.journal.of()) == 1


def test_nobody_waits_for_a_server_that_hangs(scene, server):
    released = threading.Event()
    server.faults.add(hang(released))
    service = scene.keep_condition()
    scene.see()
    scene.follow_for(1.0, advertised())
    began = time.monotonic()
    for number in range(2000):
        service.follow(advertised(number % 5))
        scene.see()
    took_s = time.monotonic() - began
    released.set()
    server.faults.clear()
    assert took_s < 8.0, "the server holds up a request for 10 s"


def test_nodes_that_start_at_once_do_not_write_at_once(scene):
    service = scene.keep_condition(first_delay_s=50.0)
    scene.see()
    service.follow(advertised())
    scene.pass_quietly(49.0)
    scene.clock.pass_time(1.0)
    scene.wait_condition("PlanAdvertised", writes=1)


@pytest.mark.parametrize("which", ["keep_condition", "remove_taint"])
def test_a_thread_that_died_goes_on(scene, which):
    class Broken:
        def write(self, *_, **__):
            raise RuntimeError("a defect")

        remove = write

    service = getattr(scene, which)()
    name = "_writer" if which == "keep_condition" else "_remover"
    whole = getattr(service, name)
    with Crashes() as crashes:
        setattr(service, name, Broken())
        scene.see()
        scene.follow_for(31.0, advertised())
        assert crashes.died.wait(15.0)
        wait_ended(service)
    setattr(service, name, whole)
    service.start()
    wait_until(lambda: len(scene.written) == 1, what="the write")


def test_the_taint_goes_once_the_node_shows_what_the_plan_says(scene, server):
    service = scene.remove_taint()
    scene.see()
    for status in (Status(), advertised(registered=False), advertised(0)):
        service.follow(status)
        scene.pass_quietly(3600.0)
    service.follow(advertised(3))
    began = scene.clock.now
    scene.pass_quietly(5.0)
    scene.show_allocatable()
    scene.wait_taints(OTHERS)
    assert scene.written == [began + 5.0]
    assert scene.log.lines[0][1] == (
        "node gpu-a3: taint nvidia.com/gpu-not-ready:NoSchedule removed; advertised: 3 of nvidia.com/gpu"
    )
    assert scene.log.reasons == ["StartupTaintRemoved"]
    (entry,) = server.journal.of()
    assert (entry.verb, entry.resource, entry.name, entry.code) == ("patch", "nodes", NODE, 200)


def test_a_kubelet_that_does_not_show_them_is_waited_for_half_a_minute(scene):
    service = scene.remove_taint()
    scene.show_allocatable("0")
    service.follow(advertised())
    scene.pass_quietly(29.0)
    scene.clock.pass_time(1.0)
    scene.wait_taints(OTHERS)


def test_what_is_advertised_no_more_has_its_half_minute_anew(scene):
    service = scene.remove_taint()
    scene.see()
    service.follow(advertised())
    scene.pass_quietly(20.0)
    service.follow(advertised(registered=False))
    scene.pass_quietly(20.0)
    service.follow(advertised())
    scene.pass_quietly(29.0)
    scene.clock.pass_time(1.0)
    scene.wait_taints(OTHERS)


def test_a_taint_of_several_effects_goes_as_a_whole(scene, server):
    taints = [OURS, OTHERS, {"key": KEY, "effect": "NoExecute"}, {"key": f"{KEY}-2", "effect": "NoExecute"}]
    server.store.edit("nodes", NODE, lambda node: node["spec"].update(taints=taints))
    service = scene.remove_taint()
    scene.show_allocatable()
    service.follow(advertised())
    scene.wait_taints(OTHERS, taints[-1])
    assert "nvidia.com/gpu-not-ready:NoSchedule, nvidia.com/gpu-not-ready:NoExecute removed" in scene.log.lines[0][1]


def test_a_taint_that_is_not_there_costs_nothing(scene, server):
    server.store.edit("nodes", NODE, lambda node: node.update(spec={}))
    service = scene.remove_taint()
    scene.see()
    service.follow(advertised())
    scene.settle()
    assert (scene.written, scene.log.lines) == ([], [])


def test_it_goes_once_and_what_comes_later_is_somebody_elses(scene, server):
    service = scene.remove_taint()
    scene.show_allocatable()
    service.follow(advertised())
    scene.wait_taints(OTHERS)
    server.store.edit("nodes", NODE, lambda node: node["spec"].update(taints=[OURS]))
    service.start()
    scene.see()
    service.follow(advertised(3))
    scene.pass_quietly(3600.0)
    scene.wait_taints(OURS)
    assert len(scene.written) == 1


@pytest.mark.parametrize("is_missed", [False, True], ids=["seen to go", "not seen to go"])
def test_a_node_that_is_made_anew_with_the_taint_loses_it_once_it_shows_them_again(scene, server, is_missed):
    """As by a kubelet that starts again after somebody deleted the Node; nvdp has run on."""
    service = scene.remove_taint()
    scene.show_allocatable()
    service.follow(advertised())
    scene.wait_taints(OTHERS)
    scene.clock.pass_time(3600.0)
    server.store.remove("nodes", NODE)
    if not is_missed:
        service.see(ObjectSeen(at=0.0))
    server.store.put("nodes", {"metadata": {"name": NODE}, "spec": {"taints": [OURS]}, "status": {}})
    scene.see()
    scene.pass_quietly(29.0)
    scene.show_allocatable()
    scene.wait_taints()
    server.store.edit("nodes", NODE, lambda node: node["spec"].update(taints=[OURS]))
    scene.see()
    scene.pass_quietly(3600.0)
    assert scene.log.reasons == ["StartupTaintRemoved"] * 2


def test_taints_that_have_moved_meanwhile_are_looked_at_again(scene, server):
    """The place of the taint is another one's by then: nothing is removed before that was seen."""
    service = scene.remove_taint()
    scene.show_allocatable()
    added = {"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}
    server.store.edit("nodes", NODE, lambda node: node["spec"].update(taints=[OURS, OTHERS, added]))
    service.follow(advertised())
    scene.wait_failed()
    assert scene.taints == [OURS, OTHERS, added]
    scene.see()
    scene.clock.pass_time(1.0)
    scene.wait_taints(OTHERS, added)
    assert scene.log.reasons == ["StartupTaintRemoved"]
    assert [entry.code for entry in server.journal.of(verb="patch")] == [422, 200]


def test_a_refusal_for_good_is_told_and_asked_for_ever_less_often(scene, server):
    service = scene.remove_taint()
    scene.show_allocatable()
    server.faults.add(answer(422, "no"))
    service.follow(advertised())
    for tries in range(1, 7):
        wait_until(lambda tries=tries: len(server.journal.of()) >= tries, what="a try")
        scene.wait_failed()
        scene.clock.pass_time(61.0)
    wait_until(lambda: scene.log.lines, what="that it is told")
    assert service._attempts.next_at >= scene.clock.now - 61.0 + 600.0
    assert scene.log.reasons == ["NodeWriteFailed"]
    server.faults.clear()
    service.look()
    scene.wait_taints(OTHERS)


def test_a_node_that_is_deleted_and_comes_again_is_waited_for(scene):
    service = scene.remove_taint()
    scene.see()
    service.see(ObjectSeen(at=0.0))
    service.follow(advertised())
    scene.pass_quietly(100.0)
    scene.show_allocatable()
    scene.wait_taints(OTHERS)


def test_the_main_thread_is_told_nothing_that_it_must_wait_for(scene):
    """The whole of a turn: far below what a turn may take."""
    condition, taint = scene.keep_condition(), scene.remove_taint()
    many = tuple(msgspec.structs.replace(advertised().resources[0], name=f"nvidia.com/{n}") for n in range(20))
    status = msgspec.structs.replace(advertised(), resources=many)
    began = time.thread_time()
    for _ in range(1000):
        condition.follow(status)
        taint.follow(status)
    assert (time.thread_time() - began) / 1000 < 0.001
    condition.stop()

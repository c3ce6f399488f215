"""MPS as the plugin has it, in virtual time: on offer while its daemon answers, and never beside another form."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as within
from hypothesis import strategies as st

from nvdp.model.mps import DaemonSpec, MpsGrants
from nvdp.model.reasons import Cause, Reason
from tests.planning.values import GPU, SHARED, gpu, parse, sliced, uuid
from tests.virtual.mps import AWAY
from tests.virtual.node import VirtualNode

A, B = uuid(0), uuid(1)
TWO = (gpu(0), gpu(1))
MPS = f"{GPU}.mps"
ALL = [f"{one}::{number}" for one in (A, B) for number in range(2)]
SOON_S = 5.0
LOOK_S = 0.25
RESTARTS_S = 3.0  # at most, of a daemon for a change that is undone


def by_mps(*, mode_change: str = "when-free", **entry: object):
    """All cards shared by two with MPS, or those that the entry names."""
    resource = {"name": GPU, "replicas": 2, **entry}
    text = msgspec.json.encode(
        {"sharing": {"mps": {"resources": [resource]}}, "allocation": {"modeChange": mode_change}}
    ).decode()
    return parse(text)


MIXED = parse(
    f"sharing: {{mps: {{resources: [{{name: {GPU}, rename: {MPS}, devices: [0], replicas: 2}}]}}, "
    f"timeSlicing: {{resources: [{{name: {GPU}, rename: {SHARED}, devices: [1], replicas: 2}}]}}}}"
)


def started(config, *, runs_mps: bool = True, **options) -> VirtualNode:
    """A node that has been up for a minute."""
    node = VirtualNode(runs_mps=runs_mps, **options)
    node.see_kubelet(node.kubelet)
    node.read(config, text=b"version: v1")
    node.scan(*TWO)
    node.run(60.0)
    return node


def causes(node: VirtualNode, resource: str = GPU) -> set[Cause | None]:
    return {device.cause for device in node.taken(resource).devices}


def is_by_mps(node: VirtualNode, resource: str = GPU) -> bool:
    return node.actor(resource).taken[-1][1].facts.mps is not None


def holds(node: VirtualNode) -> frozenset[str]:
    """The GPUs that ``nvdp mps`` has."""
    return frozenset(node.mps.view.claims)


# a daemon that comes, goes and fails


def test_nothing_is_registered_before_its_daemon_answers_and_soon_after_it_is():
    node = started(MIXED, runs_mps=False)
    assert (MPS in node.offers.actors, node.healthy(SHARED)) == (False, [f"{B}::0", f"{B}::1"])
    assert (node.status.ready, node.status.reason) == (False, "NotRegistered")
    assert AWAY in next(one.missing for one in node.status.resources if one.name == MPS)
    assert [AWAY in text for text in node.record.texts(Reason.MPS_DAEMON_FAILED)] == [True]
    node.mps.come()
    node.run(SOON_S)
    assert node.healthy(MPS) == [f"{A}::0", f"{A}::1"]
    assert node.status.ready
    assert len(node.record.texts(Reason.MPS_DAEMON_READY)) == 1


def test_a_daemon_that_fails_takes_its_devices_and_no_others_and_gives_them_back():
    node = started(MIXED)
    lists = len(node.actor(SHARED).taken)
    node.mps.fail(MPS)
    node.run(SOON_S)
    assert causes(node, MPS) == {Cause.MPS_DAEMON_FAILED}
    assert node.status.ready
    assert [one.withheld for one in node.status.devices] == ["MPSDaemonFailed", ""]
    node.mps.fail()
    node.run(SOON_S)
    assert node.healthy(MPS) == [f"{A}::0", f"{A}::1"]
    assert len(node.actor(SHARED).taken) == lists


def test_a_silence_of_nvdp_mps_takes_the_devices_away_until_it_is_heard_again():
    node = started(MIXED)
    node.mps.go()
    node.run(SOON_S)
    assert causes(node, MPS) == {Cause.MPS_DAEMON_FAILED}
    assert node.status.mps.problem == AWAY
    node.mps.come()
    node.run(SOON_S)
    assert causes(node, MPS) == {None}


def test_the_end_of_the_pods_that_a_daemon_waits_for_is_seen_soon():
    node = started(by_mps())
    node.allocate("a", f"{A}::0", GPU)
    node.read(by_mps(defaultActiveThreadPercentage=20), text=b"version: v1")
    node.run(60.0)
    assert node.holders.waiting
    assert node.mps.view.daemons[GPU].running.thread_percent == 50
    del node.pods["a"]
    node.run(SOON_S)
    assert node.mps.view.daemons[GPU].running.thread_percent == 20
    assert not node.holders.waiting


def test_clients_that_come_and_go_make_no_plan():
    node = started(MIXED)
    plans = node.record.plans
    report = node.mps.view.daemons[MPS]
    for clients in range(5):
        view = msgspec.structs.replace(node.mps.view, daemons={MPS: msgspec.structs.replace(report, clients=clients)})
        node.mps.say(view)
        node.run(0.5)
    assert node.status.mps.daemons[0].clients == 4
    assert node.record.plans == plans


def test_a_restart_of_the_plugin_with_pods_takes_nothing_away_in_between():
    node = started(by_mps())
    node.allocate("one", f"{A}::0", GPU)
    node.run(10.0)
    node.restart_daemon(1.0)
    node.scan(*TWO)
    node.read(by_mps(), text=b"version: v1")
    node.run(30.0)
    assert all(device.healthy for _, listed in node.actor(GPU).taken for device in listed.devices)
    assert node.mps.grants[-1].resources[GPU].held == (A,)
    assert holds(node) == {A, B}


def test_who_is_allowed_what_is_told_even_if_it_is_nothing_and_the_reports_are_followed_while_mps_is_in_use():
    node = started(parse())
    assert [one.resources for one in node.mps.grants] == [{}]
    node.read(by_mps())
    node.run(30.0)
    grant = node.mps.grants[-1].resources[GPU]
    assert isinstance(node.mps.grants[-1], MpsGrants)
    assert isinstance(grant.wanted, DaemonSpec)
    assert (grant.free, grant.held) == ((A, B), ())
    node.read(parse())
    node.run(30.0)
    assert node.mps.used == [False, True, False]


# changes of form


@pytest.mark.invariant(4)
def test_time_slices_wait_for_pods_of_mps_under_the_same_name_and_ids_through_a_restart():
    node = started(by_mps())
    node.allocate("by-mps", f"{A}::0", GPU)
    node.run(10.0)
    node.read(sliced(2), text=b"version: v1 # sliced")
    node.run(30.0)
    assert node.healthy(GPU) == []
    assert holds(node) == {A, B}  # one daemon has both
    assert node.status.waits
    node.restart_daemon(1.0)
    node.scan(*TWO)
    node.read(sliced(2), text=b"version: v1 # sliced")
    node.run(30.0)
    assert node.healthy(GPU) == []
    assert holds(node) == {A, B}
    del node.pods["by-mps"]
    node.run(15.0)
    assert (sorted(node.healthy(GPU)), is_by_mps(node), holds(node)) == (ALL, False, frozenset())


@pytest.mark.invariant(4)
def test_mps_waits_for_pods_of_time_slices_under_the_same_name_and_ids_through_a_restart():
    node = started(sliced(2))
    node.allocate("sliced", f"{A}::0", GPU)
    node.run(10.0)
    node.read(by_mps(), text=b"version: v1 # mps")
    node.run(30.0)
    assert A not in holds(node)
    assert not {f"{A}::0", f"{A}::1"}.intersection(node.healthy(GPU))
    assert node.status.ready
    node.restart_daemon(1.0)
    node.scan(*TWO)
    node.read(by_mps(), text=b"version: v1 # mps")
    node.run(30.0)
    assert A not in holds(node)
    del node.pods["sliced"]
    node.run(15.0)
    assert (sorted(node.healthy(GPU)), is_by_mps(node), holds(node)) == (ALL, True, {A, B})


@pytest.mark.invariant(4)
def test_a_whole_card_that_becomes_one_of_mps_without_limits_keeps_its_id_and_waits_all_the_same():
    node = started(parse())
    node.allocate("whole", A, GPU)
    node.run(10.0)
    node.read(by_mps(replicas=1))
    node.run(30.0)
    assert A not in holds(node)
    assert A not in node.healthy(GPU)
    del node.pods["whole"]
    node.run(15.0)
    assert (node.healthy(GPU), holds(node)) == ([A, B], {A, B})


@pytest.mark.invariant(4)
def test_gpus_stay_with_mps_until_the_file_that_lets_them_be_taken_could_be_written_anew_and_was_heard():
    """Somebody may believe that file whenever it is read, as an nvdp mps that comes only later."""
    node = started(by_mps(), runs_mps=False)
    node.mps.fill_disk(is_full=True)
    node.read(sliced(2), text=b"version: v1 # sliced")
    node.run(60.0)
    assert node.healthy(GPU) == []
    assert {device.withheld for device in node.status.devices} == {"Held"}
    assert node.mps.used == [True]
    node.mps.come()
    node.run(SOON_S)
    assert (node.healthy(GPU), holds(node)) == ([], {A, B})
    node.mps.fill_disk(is_full=False)
    node.run(SOON_S)
    assert (sorted(node.healthy(GPU)), is_by_mps(node), holds(node)) == (ALL, False, frozenset())
    assert node.mps.used[-1] is False


def test_while_nobody_is_there_to_hear_it_the_file_is_enough_and_who_comes_later_makes_nothing_flap():
    node = started(by_mps(), runs_mps=False)
    node.read(sliced(2), text=b"version: v1 # sliced")
    node.run(SOON_S)
    assert sorted(node.healthy(GPU)) == ALL
    lists = len(node.actor(GPU).taken)
    node.mps.come()
    node.run(10.0)
    assert len(node.actor(GPU).taken) == lists


def test_a_restart_of_the_plugin_in_the_middle_of_a_change_goes_on_waiting_for_nvdp_mps_to_hear():
    node = started(by_mps(replicas=3, devices=[0], rename=MPS))
    node.allocate("by-mps", f"{A}::0", MPS)
    node.run(10.0)
    node.mps.halt(is_halted=True)
    node.read(by_mps(rename=MPS), text=b"version: v1 # both")
    node.run(SOON_S)
    assert node.mps.grants[-1].resources[MPS].free == (A, B)
    for is_restarted in (False, True):
        if is_restarted:
            node.restart_daemon(0.5)
            node.scan(*TWO)
        node.read(by_mps(replicas=3, devices=[0], rename=MPS), text=b"version: v1 # one")
        node.run(SOON_S)
        assert (node.healthy(GPU), node.status.devices[1].withheld) == ([], "Held")
    node.mps.halt(is_halted=False)
    node.run(SOON_S)
    assert node.healthy(GPU) == [B]


def test_pods_that_come_and_go_change_what_is_told_and_nothing_that_is_offered():
    node = started(MIXED)
    lists = {name: len(actor.taken) for name, actor in node.offers.actors.items()}
    told = len(node.mps.grants)
    for number in range(6):
        node.allocate(f"pod-{number}", f"{A}::{number % 2}", MPS)
        node.run(0.9)
        if number % 2:
            del node.pods[f"pod-{number}"], node.pods[f"pod-{number - 1}"]
            node.run(4.0)
    assert len(node.mps.grants) > told
    assert {name: len(actor.taken) for name, actor in node.offers.actors.items()} == lists
    node.run(5.0)
    plans = node.record.plans
    node.run(30.0)
    assert node.record.plans == plans


@pytest.mark.parametrize("name", ["team.org/a", MPS])
def test_a_daemon_that_pods_use_goes_on_though_the_state_directory_was_lost_and_the_file_says_nothing_of_it(name):
    """The daemon itself tells that the name is ours."""
    node = started(by_mps(rename=name))
    node.allocate("by-mps", f"{A}::0", name)
    node.run(10.0)
    node.record.forget()
    node.mps.lose_file()
    node.restart_daemon(1.0)
    node.scan(*TWO)
    node.read(parse(), text=b"version: v1 # whole")
    node.run(30.0)
    assert A in holds(node)
    assert node.unhealthy(GPU) == [A, B]
    assert node.unhealthy(name) == [f"{A}::0"]
    del node.pods["by-mps"]
    node.run(15.0)
    assert (node.healthy(GPU), holds(node)) == ([A, B], frozenset())


CONFIGS = {
    "whole": parse(),
    "sliced": sliced(2),
    "mps": by_mps(),
    "mps whole": by_mps(replicas=1),
    "mps of one": by_mps(devices=[0], rename=MPS),
    "mixed": MIXED,
}
STEPS = st.one_of(
    st.tuples(st.just("read"), st.sampled_from([*CONFIGS])),
    st.tuples(st.just("admit"), st.integers(0, 3)),
    st.tuples(st.just("end"), st.integers(0, 3)),
    st.tuples(st.just("restart"), st.sampled_from([*CONFIGS])),
    st.tuples(st.sampled_from(["go", "come", "fill", "free"]), st.none()),
    st.tuples(st.just("run"), st.sampled_from([0.3, 1.1, 2.5, 4.0, 20.0])),
)


class History:
    """What happens on one node, and what must hold after each of it."""

    def __init__(self) -> None:
        self.current = CONFIGS["whole"]
        self.node = started(self.current)
        self.forms: dict[str, tuple[str, bool]] = {}
        self.without_s: dict[str, float] = {}
        self.count = 0

    def do(self, step: tuple[str, object]) -> None:
        word, value = step
        if word == "read":
            self.current = CONFIGS[str(value)]
            self.node.read(self.current, text=f"version: v1 # {value}".encode())
        elif word == "admit":
            self._admit(int(str(value)))
        elif word == "end" and self.forms:
            pod = sorted(self.forms)[int(str(value)) % len(self.forms)]
            del self.forms[pod], self.node.pods[pod]
        elif word == "restart":
            self.current = CONFIGS[str(value)]
            self.node.restart_daemon(0.5)
            self.node.scan(*TWO)
            self.node.read(self.current, text=f"version: v1 # {value}".encode())
        elif word == "go":
            self.node.mps.go()
        elif word == "come":
            self.node.mps.come()
        elif word in {"fill", "free"}:
            self.node.mps.fill_disk(is_full=word == "fill")
        self.run(float(str(value)) if word == "run" else 0.1)

    def run(self, seconds: float) -> None:
        while seconds > 0:
            self.node.run(min(LOOK_S, seconds))
            seconds -= LOOK_S
            self.check()

    def _admit(self, choice: int) -> None:
        offers = [
            (resource, device.id)
            for resource, actor in sorted(self.node.offers.actors.items())
            if actor.taken
            for device in actor.feed.current.listed.devices
            if device.healthy and (resource, device.id) not in self.node.pods.values()
        ]
        if offers:
            resource, device_id = offers[choice % len(offers)]
            self.count += 1
            pod = f"pod-{self.count}"
            is_mps = self.node.actor(resource).feed.current.listed.facts.mps is not None
            self.node.allocate(pod, device_id, resource)
            self.forms[pod] = (device_id.partition("::")[0], is_mps)

    def check(self) -> None:
        """A card of another form is never with ``nvdp mps``, and one of MPS is, but while its daemon is started anew:
        an edit that is undone within seconds may do that to a pod that has just come.
        """
        held = holds(self.node)
        for pod, (gpu_uuid, is_mps) in self.forms.items():
            assert is_mps or gpu_uuid not in held, (pod, gpu_uuid)
            is_without = is_mps and gpu_uuid not in held and self.node.mps.is_there
            self.without_s[pod] = self.without_s.get(pod, 0.0) + LOOK_S if is_without else 0.0
            assert self.without_s[pod] <= RESTARTS_S, (pod, gpu_uuid)


@pytest.mark.invariant(4)
@within(max_examples=40, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=12))
def test_whatever_happens_a_card_is_with_its_daemon_exactly_while_pods_have_it_by_mps(steps):
    history = History()
    for step in steps:
        history.do(step)
    history.forms.clear()
    history.node.pods.clear()
    history.node.mps.fill_disk(is_full=False)
    history.node.mps.come()
    history.run(60.0)
    assert not any(
        device.cause is Cause.HELD
        for actor in history.node.offers.actors.values()
        for device in actor.taken[-1][1].devices
    )

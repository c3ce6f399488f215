"""What must be there before a device can be handed over: CDI specs on disk, device nodes, IMEX channels."""

from __future__ import annotations

import msgspec
import pytest

from nvdp.model.cdi import CdiClass, qualify
from nvdp.model.held import Held
from nvdp.model.reasons import Cause, Reason
from nvdp.services.specs import PATIENCE_S
from tests.planning.values import GPU, ailment, cut, gpu, parse, uuid
from tests.virtual.node import VirtualNode

A, B, C = uuid(0), uuid(1), uuid(2)
CDI = "flags: {plugin: {deviceListStrategy: cdi-cri}}"
ENVVAR = "flags: {plugin: {deviceListStrategy: envvar}}"
NODES = "flags: {plugin: {passDeviceSpecs: true}}"
BY_INDEX = "flags: {plugin: {deviceListStrategy: cdi-cri, deviceIDStrategy: index}}"


def name(device):
    return qualify(CdiClass.GPU, device)


def started(text="", *gpus, seconds=60.0, writes_specs_s=0.1, **scan):
    node = VirtualNode()
    node.writes_specs_s = writes_specs_s
    node.see_kubelet(node.kubelet)
    node.read(parse(text), text=text.encode())
    node.scan(*(gpus or (gpu(0), gpu(1))), **scan)
    node.run(seconds)
    return node


def told(node, reason):
    return node.record.texts(reason)


def names_wished(node):
    return [device.names for device in node.wishes[-1].devices]


def lists_of(node):
    """Each list that the kubelet took, by the IDs that were Healthy in it."""
    return [[device.id for device in listed.devices if device.healthy] for _, listed in node.actor(GPU).taken]


@pytest.mark.requirement(33)
def test_the_first_list_comes_when_the_specs_are_written_and_has_all_in_it():
    node = started(CDI, seconds=0.05)
    assert node.made == []
    node.run(60.0)
    assert lists_of(node) == [[A, B]]
    assert [device.names for device in node.wishes[-1].devices] == [(A,), (B,)]
    assert told(node, Reason.DEVICE_UNHEALTHY) == []


@pytest.mark.requirement(33)
def test_specs_that_do_not_come_make_devices_unhealthy_after_a_while_and_well_when_they_do():
    node = started(CDI, seconds=PATIENCE_S - 0.1, writes_specs_s=None)
    assert node.made == []
    node.run(1.0)
    assert (node.healthy(GPU), node.unhealthy(GPU)) == ([], [A, B])
    assert {device.cause for device in node.taken(GPU).devices} == {Cause.CDI_MISSING}
    (text,) = told(node, Reason.DEVICE_UNHEALTHY)
    assert text.startswith("2 devices (index 0, 1): the CDI specs are being written")
    node.tell_specs(name(A))
    node.run(1.0)
    assert (node.healthy(GPU), node.unhealthy(GPU)) == ([A], [B])
    assert "CDIMissing" in told(node, Reason.DEVICE_RECOVERED)[0]


@pytest.mark.requirement(46)
def test_what_a_predecessor_wrote_counts_when_the_writer_does_not_answer():
    node = started(CDI, seconds=0.1, writes_specs_s=None)
    node.tell_specs(name(A), answered=False)
    node.run(PATIENCE_S - 1.0)
    assert node.made == []
    node.run(2.0)
    assert lists_of(node) == [[A]]
    assert node.taken(GPU).by_id[B].cause is Cause.CDI_MISSING
    node.tell_specs(name(A), name(B))
    node.run(1.0)
    assert lists_of(node) == [[A], [A, B]]


def test_a_writer_that_says_why_it_cannot_write_is_not_waited_for():
    node = started(CDI, seconds=0.5, writes_specs_s=None)
    node.tell_specs(name(A), problem="/var/run/cdi is not there")
    node.run(0.5)
    assert (node.healthy(GPU), node.unhealthy(GPU)) == ([A], [B])
    assert "/var/run/cdi is not there" in node.taken(GPU).by_id[B].text


def test_an_edit_that_brings_in_cdi_takes_no_device_away_meanwhile():
    node = started()
    node.read(parse(CDI), text=b"cdi")
    node.run(60.0)
    assert lists_of(node) == [[A, B]]  # what the kubelet sees is the same; how devices are handed over is not
    assert node.actor(GPU).feed.current.listed.facts.device_list_strategies != ()
    assert node.wishes[-1].enabled
    node.read(parse(BY_INDEX), text=b"index")
    node.run(60.0)
    assert lists_of(node) == [[A, B]]
    assert [device.names for device in node.wishes[-1].devices] == [(A, "0"), (B, "1")]


def test_a_device_that_comes_later_is_listed_once_the_specs_have_it():
    node = started(CDI)
    node.scan(gpu(0), gpu(1), gpu(2))
    node.run(60.0)
    assert lists_of(node) == [[A, B], [A, B, C]]


@pytest.mark.parametrize("text", [CDI, BY_INDEX], ids=["a new GPU", "an edit"])
def test_what_is_wrong_with_other_devices_takes_none_away_that_the_writer_has_not_been_asked_for(text):
    node = started(CDI)
    node.tell_specs(name(A), name(B), problem="gds: not in the CDI specs")
    node.run(10.0)
    node.read(parse(text), text=text.encode())
    node.scan(gpu(0), gpu(1), gpu(2))
    node.run(10.0)
    assert all({A, B} <= set(healthy) for healthy in lists_of(node))
    assert lists_of(node)[-1] == [A, B, C]
    assert told(node, Reason.DEVICE_UNHEALTHY) == []


def test_an_index_is_handed_out_only_once_the_specs_have_the_gpu_that_has_it_now():
    node = started(BY_INDEX)
    node.writes_specs_s = None
    node.scan(gpu(1, index=0))
    node.run(PATIENCE_S - 1.0)
    assert lists_of(node) == [[A, B]]  # it waits
    assert node.wishes[-1].devices[0].names == (B, "0")
    node.run(2.0)
    assert node.taken(GPU).by_id[B].cause is Cause.CDI_MISSING
    node.tell_specs(name(B), name("0"), nodes={name("0"): ("/dev/nvidia1",)})
    node.run(1.0)
    assert node.healthy(GPU) == [B]


def test_lists_that_wait_for_the_specs_tell_what_happened_meanwhile():
    node = started(CDI)
    node.scan(gpu(0), gpu(1), gpu(2))
    node.run(0.05)
    node.scan(gpu(0), gpu(1), gpu(2), ailments={A: ailment(Cause.XID)})
    node.run(60.0)
    assert lists_of(node)[-1] == [B, C]


def test_lists_wait_for_a_writer_that_hangs_no_longer_however_many_devices_come_one_after_the_other():
    node = started(CDI)
    node.writes_specs_s = None
    began, gpus = node.clock.now, [gpu(0), gpu(1)]
    for number in range(2, 5):
        gpus.append(gpu(number))
        node.scan(*gpus)
        node.run(PATIENCE_S - 1.0)
    (_, first), (at, second) = node.actor(GPU).taken[:2]
    assert len(first.devices) == 2
    assert {device.id for device in second.devices} >= {A, B, uuid(2), uuid(3)}
    assert at == pytest.approx(began + PATIENCE_S, abs=0.1)
    node.run(PATIENCE_S)
    assert node.healthy(GPU) == [A, B]
    assert len(node.unhealthy(GPU)) == 3


@pytest.mark.requirement(14)
def test_a_fault_does_not_wait_for_the_specs_that_lists_wait_for():
    node = started(CDI)
    node.writes_specs_s = None
    node.scan(gpu(0), gpu(1), gpu(2))
    node.run(0.1)
    node.scan(gpu(0), gpu(1), gpu(2), ailments={A: ailment(Cause.XID)})
    node.run(0.5)
    assert (node.healthy(GPU), node.unhealthy(GPU)) == ([B], [A])
    assert node.taken(GPU).by_id[A].cause is Cause.XID
    node.run(60.0)
    assert (node.healthy(GPU), node.unhealthy(GPU)) == ([B], [A, C])


def test_what_pods_hold_stays_in_the_specs_though_it_is_gone_and_they_are_removed_when_nobody_holds_anything():
    node = started(CDI)
    node.allocate("pod", B, GPU)
    node.run(10.0)
    node.scan(gpu(0), gpu(1), ailments={B: ailment(Cause.VANISHED)})
    node.run(10.0)
    assert [device.names for device in node.wishes[-1].devices] == [(A,)]
    assert node.wishes[-1].keep == {B}
    node.read(parse(), text=b"envvar")
    node.run(60.0)
    assert (node.wishes[-1].enabled, node.wishes[-1].keep) == (False, {B})
    node.pods.clear()
    node.holders.ask()  # as the service does by itself
    node.run(60.0)
    assert (node.wishes[-1].enabled, node.wishes[-1].keep) == (False, frozenset())
    count = len(node.wishes)
    node.allocate("another", A, GPU)
    node.holders.ask()
    node.run(60.0)
    assert len(node.wishes) == count  # there is nothing left to follow


def test_specs_of_a_predecessor_are_not_given_up_before_it_is_known_who_holds_what():
    node = VirtualNode()
    node._last_answer, node.readable = Held(), False
    node._start(None)
    node.see_kubelet(node.kubelet)
    node.read(parse())
    node.scan(gpu(0))
    node.run(60.0)
    assert node.wishes == []


@pytest.mark.parametrize(
    ("text", "is_healthy"), [(NODES, False), (CDI, False), ("", True)], ids=["nodes", "cdi", "the runtime's matter"]
)
def test_a_device_whose_node_is_missing_is_unhealthy_where_nodes_are_handed_out(text, is_healthy):
    node = started(text, missing_nodes=("/dev/nvidia1",))
    assert node.healthy(GPU) == ([A, B] if is_healthy else [A])
    if not is_healthy:
        assert node.taken(GPU).by_id[B].cause is Cause.NODES_MISSING
        node.scan(gpu(0), gpu(1))
        node.run(5.0)
        assert node.healthy(GPU) == [A, B]


def test_a_channel_that_comes_is_handed_over_from_then_on():
    node = started("imex: {channelIDs: [0]}")
    assert node.actor(GPU).feed.current.listed.facts.imex_channels == ()
    node.scan(gpu(0), gpu(1), imex_channels=(0,))
    node.run(5.0)
    assert node.actor(GPU).feed.current.listed.facts.imex_channels == (0,)


def test_nodes_of_a_driver_container_are_not_looked_for_among_the_hosts():
    text = "flags: {nvidiaDriverRoot: /run/nvidia/driver, plugin: {passDeviceSpecs: true}}"
    assert started(text, missing_nodes=("/dev/nvidia1",)).healthy(GPU) == [A, B]


def test_capability_nodes_need_not_be_there_where_specs_tell_their_numbers():
    one = "/dev/nvidia-caps/nvidia-cap12"
    sliced = cut(0, "1g.5gb")
    (part,) = sliced.instances
    sliced = msgspec.structs.replace(sliced, instances=(msgspec.structs.replace(part, nodes=(one, one)),))
    text = "flags: {migStrategy: single, plugin: {deviceListStrategy: cdi-cri}}"
    assert started(text, sliced, missing_nodes=(one,)).healthy(GPU) == [part.uuid]
    text = "flags: {migStrategy: single, plugin: {passDeviceSpecs: true}}"
    assert started(text, sliced, missing_nodes=(one,)).healthy(GPU) == []


def test_a_gpu_all_of_whose_mig_devices_lack_their_nodes_is_told_once():
    node = started("flags: {migStrategy: mixed, plugin: {passDeviceSpecs: true}}", cut(0, "1g.5gb", "1g.5gb"), gpu(1))
    (text,) = told(node, Reason.DEVICE_UNHEALTHY)
    assert "capability nodes" in text
    assert node.healthy(GPU) == [B]


def test_without_its_imex_channel_no_device_is_offered_where_it_is_required():
    node = started("imex: {channelIDs: [0], required: true}")
    assert {device.cause for device in node.taken(GPU).devices} == {Cause.IMEX_MISSING}
    node.scan(gpu(0), gpu(1), imex_channels=(0,))
    node.run(5.0)
    assert node.healthy(GPU) == [A, B]


def test_a_fault_of_its_own_counts_before_what_is_in_the_way_of_a_device():
    node = started(NODES, missing_nodes=("/dev/nvidia1",), ailments={B: ailment(Cause.XID)})
    assert node.taken(GPU).by_id[B].cause is Cause.XID
    since = {device.uuid: device.changed_at for device in node.status.devices}
    node.scan(gpu(0), gpu(1), missing_nodes=("/dev/nvidia1",))
    node.run(5.0)
    assert node.actor(GPU).feed.current.listed.by_id[B].cause is Cause.NODES_MISSING
    assert {device.uuid: device.changed_at for device in node.status.devices} == since


# the wish


def wish_of(text, *gpus, ailments=None, held=(), seconds=60.0, **scan):
    node = VirtualNode()
    node.pods = {f"pod{number}": (GPU, device) for number, device in enumerate(held)}
    node._last_answer = node.answer(node.clock.now)
    node._start(None)
    node.see_kubelet(node.kubelet)
    node.read(parse(text), text=text.encode())
    node.scan(*gpus, ailments=ailments, **scan)
    node.run(seconds)
    return node.wishes[-1]


def test_the_specs_are_to_have_what_the_configuration_names_on_this_node():
    text = """\
    flags:
      nvidiaDriverRoot: /run/nvidia/driver
      gdsEnabled: true
      plugin: {deviceListStrategy: [cdi-cri], containerDriverRoot: /driver, nvidiaCTKPath: /opt/nvidia-cdi-hook}
    imex: {channelIDs: [0]}
    """
    wish = wish_of(text, gpu(0), gpu(1), imex_channels=(0,))
    assert (wish.driver_root, wish.dev_root, wish.container_driver_root) == (
        "/run/nvidia/driver",
        "/run/nvidia/driver",
        "/driver",
    )
    assert (wish.hook_path, wish.driver_version) == ("/opt/nvidia-cdi-hook", "580.65.06")
    assert (wish.features, wish.imex_channels) == ((CdiClass.GDS,), (0,))
    assert [(device.names, device.nodes, device.pci) for device in wish.devices] == [
        ((A,), ("/dev/nvidia0",), "0000:10:00.0"),
        ((B,), ("/dev/nvidia1",), "0000:11:00.0"),
    ]
    assert wish_of(text, gpu(0)).imex_channels == ()


def test_excluded_devices_are_in_no_spec_and_slices_have_the_nodes_of_their_gpu_and_themselves():
    text = f"flags: {{migStrategy: mixed, plugin: {{deviceListStrategy: cdi-cri}}}}\ndevices: {{exclude: [{B}]}}"
    (one, _) = (sliced := cut(0, "1g.5gb", "1g.5gb")).instances
    nodes = ("/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13")
    sliced = msgspec.structs.replace(sliced, instances=(msgspec.structs.replace(one, nodes=nodes),))
    (device,) = wish_of(text, sliced, gpu(1)).devices
    assert (device.names, device.nodes, device.pci) == ((one.uuid,), ("/dev/nvidia0", *nodes), None)


@pytest.mark.requirement(46)
def test_what_pods_may_start_with_again_is_kept_whatever_became_of_it():
    gone = wish_of(CDI, gpu(0), held=(A, C))
    assert gone.keep == {C}
    assert gone.keep_classes == frozenset(CdiClass) - {CdiClass.GPU}
    assert wish_of(CDI, gpu(0)).keep_classes == frozenset()
    assert wish_of("", gpu(0), held=(A,)).keep == {A}


@pytest.mark.requirement(46)
@pytest.mark.parametrize("edited", ["", CDI], ids=["by variable", "by UUID"])
def test_what_allocate_answers_with_while_an_edit_is_carried_out_stays_in_the_specs(edited):
    node = started(BY_INDEX + "\nimex: {channelIDs: [0]}", imex_channels=(0,))
    count = len(node.wishes)

    def admit():
        """A pod comes between the wish and the lists."""
        node.at_wish = lambda: None
        node.allocate("pod", B, GPU)

    node.at_wish = admit
    node.read(parse(edited), text=edited.encode())
    node.run(60.0)
    assert node.pods
    for wish in node.wishes[count:]:
        assert "1" in wish.keep | {one for device in wish.devices for one in device.names}
        assert CdiClass.IMEX_CHANNEL in wish.keep_classes
    node.pods.clear()
    node.holders.ask()
    node.run(60.0)
    wish = node.wishes[-1]
    assert wish.keep == frozenset()
    assert wish.keep_classes == frozenset()


@pytest.mark.requirement(46)
def test_an_index_by_which_a_pod_got_its_gpu_stays_a_name_of_that_gpu_unless_it_is_anothers():
    node = started(BY_INDEX)
    node.allocate("pod", B, GPU)
    node.read(parse(CDI), text=b"by UUID")
    node.run(10.0)
    assert set(names_wished(node)) == {(A,), (B, "1")}
    node.scan(gpu(0, index=1), gpu(1, index=0))
    node.run(10.0)
    assert set(names_wished(node)) == {(A,), (B, "1")}
    node.read(parse(BY_INDEX), text=b"by index")
    node.run(10.0)
    assert set(names_wished(node)) == {(A, "1"), (B, "0")}
    node.pods.clear()
    node.holders.ask()  # as the service does by itself
    node.read(parse(CDI), text=b"by UUID")
    node.run(60.0)
    assert set(names_wished(node)) == {(A,), (B,)}


@pytest.mark.requirement(46)
def test_what_pods_got_by_cdi_is_written_after_a_reboot_too_though_the_file_says_nothing_of_it_any_more():
    extras = "imex: {channelIDs: [0]}"
    node = started(f"{BY_INDEX}\n{extras}", imex_channels=(0,))
    node.allocate("pod", B, GPU)
    node.run(10.0)
    node.read(parse(extras), text=extras.encode())
    node.run(10.0)
    node.allocate("by variable", A, GPU)
    node.run(60.0)
    assert node.record.by_cdi == {GPU: (B,)}
    node.wishes.clear()
    node.restart_daemon(60.0)
    node.read(parse(extras), text=extras.encode())
    node.scan(gpu(0), gpu(1), imex_channels=(0,))
    node.run(10.0)
    wish = node.wishes[-1]
    assert (wish.enabled, wish.is_leftover, wish.imex_channels) == (True, True, (0,))
    assert names_wished(node) == [(B, "1")]
    assert (node.healthy(GPU), node.unhealthy(GPU)) == ([A, B], [])
    del node.pods["pod"]
    node.holders.ask()  # as the service does by itself
    node.run(10.0)
    assert not node.wishes[-1].enabled
    assert node.record.by_cdi == {}


@pytest.mark.requirement(46)
@pytest.mark.parametrize("is_in_flight", [True, False], ids=["during", "before"])
@pytest.mark.parametrize("recorded_s", [0.0, 1.5], ids=["seen", "unseen"])
def test_a_pod_that_gets_its_gpu_by_cdi_while_the_file_goes_back_is_remembered(is_in_flight, recorded_s):
    node = started(CDI)
    node.recorded_s = recorded_s
    if is_in_flight:
        with node.actor(GPU).feed.allocating([B]):
            node.read(parse(ENVVAR), text=ENVVAR.encode())
            node.run(0.5)
        node.run(recorded_s)
        node.pods["pod"] = (GPU, B)
    else:
        node.allocate("pod", B, GPU)
        node.read(parse(ENVVAR), text=ENVVAR.encode())
    node.run(60.0)
    node.holders.ask()  # as the service does by itself
    node.run(10.0)
    assert node.record.by_cdi == {GPU: (B,)}
    node.wishes.clear()
    node.restart_daemon(60.0)
    node.read(parse(ENVVAR), text=ENVVAR.encode())
    node.scan(gpu(0), gpu(1))
    node.run(10.0)
    assert names_wished(node) == [(B,)]


def test_what_a_pod_may_have_got_by_cdi_is_remembered_at_once_and_forgotten_when_nobody_has_it():
    node = started(CDI)
    node.allocate("pod", B, GPU)
    node.run(0.001)
    assert node.record.by_cdi == {GPU: (B,)}
    node.pods.clear()
    node.read(parse(ENVVAR), text=ENVVAR.encode())
    node.run(10.0)
    assert node.record.by_cdi == {}
    assert not node.wishes[-1].enabled


def test_what_pods_got_by_cdi_is_written_anew_when_it_comes_back():
    node = started(CDI)
    node.allocate("pod", B, GPU)
    node.read(parse(ENVVAR), text=ENVVAR.encode())
    node.run(10.0)
    node.scan(gpu(0), gpu(1), ailments={B: ailment(Cause.VANISHED)})
    node.run(10.0)
    assert (node.wishes[-1].enabled, node.wishes[-1].keep) == (False, {B})
    node.scan(gpu(0), gpu(1))
    node.run(10.0)
    assert names_wished(node) == [(B,)]


@pytest.mark.requirement(46)
def test_nothing_is_given_up_while_nobody_knows_who_holds_what():
    node = VirtualNode()
    node._last_answer, node.readable = Held(), False
    node._start(None)
    node.see_kubelet(node.kubelet)
    node.read(parse(CDI))
    node.scan(gpu(0))
    node.run(60.0)
    assert node.wishes[-1].keep_classes == frozenset(CdiClass)


# defects


@pytest.mark.invariant(1)
def test_a_defect_in_judging_what_is_in_the_way_takes_nothing_away_and_ends_nothing():
    node = started()
    broken = parse("imex: {channelIDs: [0], required: true}")
    imex = msgspec.structs.replace(broken.imex, channel_ids=None)
    node.read(msgspec.structs.replace(broken, imex=imex, hash="sha256:broken"), text=b"x")
    node.run(60.0)
    assert node.healthy(GPU) == [A, B]
    assert told(node, Reason.SERVICE_RESTARTED)
    assert len(told(node, Reason.SERVICE_RESTARTED)) < 4
    node.read(parse("devices: {cordon: [0]}"), text=b"y")
    node.run(5.0)
    assert node.healthy(GPU) == [B]


@pytest.mark.invariant(1)
def test_a_defect_in_what_is_asked_of_the_specs_takes_nothing_away_and_ends_nothing():
    node = started(CDI)

    def fail(_wish):
        raise ValueError("a defect")

    want, node.want = node.want, fail
    node.scan(gpu(0), gpu(1), gpu(2))
    node.run(60.0)
    assert node.healthy(GPU) == [A, B]
    assert any("a defect" in text for text in told(node, Reason.SERVICE_RESTARTED))
    node.want = want
    node.scan(gpu(0), gpu(1), gpu(3))
    node.run(60.0)
    assert node.healthy(GPU) == [A, B, uuid(3)]

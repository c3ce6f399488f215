"""What stands between a GPU that works and a container: nodes, specs and channels that are not there."""

from __future__ import annotations

import pytest

from nvdp.model.cdi import CdiState
from nvdp.model.inventory import Fault
from nvdp.model.reasons import Cause
from nvdp.planning.devices import Device
from nvdp.planning.provision import find_obstacle, find_unmet, list_nodes
from tests.planning.values import cut, device, gpu, parse, uuid

PASSING = "flags: {plugin: {passDeviceSpecs: true, deviceListStrategy: %s, deviceIDStrategy: %s}}"
CAPS = ("/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13")
VENDOR = "k8s.device-plugin.nvidia.com"


def obstacle(text, one, *, missing=(), channels=(), names=(), problem="", answered=True):
    cdi = CdiState(names=frozenset(names), problem=problem, answered=answered)
    return find_obstacle(parse(text), one, missing_nodes=missing, imex_channels=channels, cdi=cdi)


def part(nodes=CAPS, **facts):
    card = cut(3, "1g.10gb", **facts)
    (instance,) = card.instances
    return Device(gpu=card, instance=type(instance)(uuid=instance.uuid, index=0, nodes=nodes))


@pytest.mark.parametrize("one", [device(gpu(3)), part()])
@pytest.mark.parametrize("ways", ["envvar", "volume-mounts", "[volume-mounts, envvar]"])
def test_nothing_is_in_the_way_where_the_runtime_sees_to_the_nodes(one, ways):
    text = f"flags: {{plugin: {{deviceListStrategy: {ways}}}}}"
    assert obstacle(text, one, missing={"/dev/nvidia3", *CAPS}) is None


@pytest.mark.parametrize("ways", ["envvar", "[cdi-cri]", "[envvar, cdi-annotations]"])
def test_a_node_that_is_not_there_is_named_where_containers_are_given_nodes(ways):
    text = PASSING % (ways, "uuid")
    names = {f"{VENDOR}/gpu={one.uuid}" for one in (device(gpu(3)), part())}
    assert obstacle(text, device(gpu(3)), missing={"/dev/nvidia4"}, names=names) is None
    cause, told = obstacle(text, device(gpu(3)), missing={"/dev/nvidia3"}, names=names)
    assert cause is Cause.NODES_MISSING
    assert told == "/dev/nvidia3 is not on this node"
    assert obstacle(text, part(), names=names) is None
    found = obstacle(text, part(), missing=set(CAPS), names=names)
    if ways == "[cdi-cri]":
        assert found is None  # specs tell their numbers
    else:
        assert found == (Cause.NODES_MISSING, ", ".join(CAPS) + " are not on this node")


def test_a_mig_device_of_which_only_the_gpus_node_is_known_is_not_handed_out():
    cause, told = obstacle(PASSING % ("envvar", "uuid"), part(nodes=()))
    assert cause is Cause.NODES_MISSING
    assert told.startswith("its capability nodes are not known")
    assert obstacle("", part(nodes=())) is None


def test_a_gpu_whose_minor_number_cannot_be_read_is_not_handed_out():
    fault = Fault(call="nvmlDeviceGetMinorNumber", kind="Unknown", text="unknown error")
    cause, told = obstacle(PASSING % ("envvar", "uuid"), device(gpu(3, minor=None, fault=fault)))
    assert cause is Cause.NODES_MISSING
    assert "minor number" in told


def test_the_nodes_of_a_mig_device_are_its_gpus_and_its_own():
    assert list_nodes(part()) == ("/dev/nvidia3", *CAPS)
    assert list_nodes(device(gpu(3))) == ("/dev/nvidia3",)


@pytest.mark.requirement(33)
@pytest.mark.parametrize(("ids", "name"), [("uuid", uuid(3)), ("index", "3")])
def test_a_device_that_the_specs_do_not_have_is_not_handed_out_by_cdi(ids, name):
    text = PASSING % ("[cdi-cri]", ids)
    full = f"{VENDOR}/gpu={name}"
    assert obstacle(text, device(gpu(3)), names={full}) is None
    assert obstacle(text, device(gpu(3))) == (Cause.CDI_MISSING, "the CDI specs do not have it")
    assert obstacle(text, device(gpu(3)), answered=False) == (
        Cause.CDI_MISSING,
        "the CDI specs are being written",
    )
    assert obstacle(text, device(gpu(3)), problem="/var/run/cdi: read-only") == (
        Cause.CDI_MISSING,
        "/var/run/cdi: read-only",
    )
    assert obstacle(PASSING % ("envvar", ids), device(gpu(3))) is None


REQUIRED = "imex: {channelIDs: [0], required: true}"


def test_without_a_required_channel_no_device_is_handed_out():
    assert obstacle(REQUIRED, device(gpu(3)), channels=(0,)) is None
    assert obstacle(REQUIRED, device(gpu(3)), channels=(1,)) == (
        Cause.IMEX_MISSING,
        "/dev/nvidia-caps-imex-channels/channel0 is not on this node, and imex.required is true",
    )
    for text in ("imex: {channelIDs: [0]}", "imex: {required: true}", ""):
        assert obstacle(text, device(gpu(3))) is None


def test_a_required_channel_must_be_in_the_specs_as_well():
    text = "flags: {plugin: {deviceListStrategy: cdi-cri}}\n" + REQUIRED
    mine, channel = f"{VENDOR}/gpu={uuid(3)}", f"{VENDOR}/imex-channel=0"
    assert obstacle(text, device(gpu(3)), channels=(0,), names={mine, channel}) is None
    assert obstacle(text, device(gpu(3)), channels=(0,), names={mine}) == (
        Cause.CDI_MISSING,
        f"{channel}: the CDI specs do not have it",
    )


CHANNEL_NODE = "/dev/nvidia-caps-imex-channels/channel0"


def unmet(text, *, channels=(), cdi=None):
    return list(find_unmet(parse(text), imex_channels=channels, cdi=cdi))


def test_a_channel_that_is_only_wished_for_is_told_as_missing():
    told = f"imex.channelIDs: {CHANNEL_NODE} is not on this node; containers do without it"
    assert unmet("imex: {channelIDs: [0]}") == [told]
    assert unmet("imex: {channelIDs: [0]}", channels=(0,)) == []
    assert unmet(REQUIRED) == [], "devices are Unhealthy for it"
    assert unmet("") == []


def test_a_feature_for_which_there_is_no_spec_is_told_as_missing():
    text = "flags: {gdsEnabled: true, mofedEnabled: true, plugin: {deviceListStrategy: [cdi-cri]}}"
    some = CdiState(names=frozenset({f"{VENDOR}/mofed=all"}), answered=True)
    assert unmet(text, cdi=some) == [
        "flags.gdsEnabled: this node has no device nodes for it; containers do without them"
    ]
    for unknown in (None, CdiState(), CdiState(answered=True, problem="read-only")):
        assert unmet(text, cdi=unknown) == []
    assert unmet("flags: {gdsEnabled: true}", cdi=some) == [], "the runtime sees to it"


def test_what_nobody_can_tell_is_in_nobodys_way():
    config = parse(PASSING % ("[cdi-cri]", "uuid"))
    assert find_obstacle(config, device(gpu(3)), missing_nodes=(), imex_channels=(), cdi=None) is None

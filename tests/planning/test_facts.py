"""What Allocate answers from, besides the list."""

from __future__ import annotations

import msgspec
import pytest

from nvdp.model.listing import (
    AllocationFacts,
    DeviceIDStrategy,
    DeviceListStrategy,
    DeviceNode,
    GpuFacts,
    SharedPolicy,
    Strategy,
)
from nvdp.planning.allotment import allot
from nvdp.planning.facts import build_facts
from tests.planning.values import cut, device, gpu, inventory, mig_uuid, parse, sliced, uuid

CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm")


def facts_of(config, *gpus, leaving=False, **seen):
    assignments = [] if leaving else allot(config, inventory(*gpus), {}).assignments.values()
    return build_facts(config, [device(one) for one in gpus], assignments, CONTROL, **seen)


def node(path, host=None):
    return DeviceNode(container_path=path, host_path=host or path)


def test_without_a_file_containers_get_uuids_by_environment():
    assert facts_of(parse(), gpu(0), gpu(1, index=5)) == AllocationFacts(
        gpus=(GpuFacts(uuid=uuid(0), index="0"), GpuFacts(uuid=uuid(1), index="5")),
        weights=((0, 10), (10, 0)),
        device_list_strategies=(DeviceListStrategy.ENVVAR,),
        device_id_strategy=DeviceIDStrategy.UUID,
        strategy=Strategy.NONE,
        replicas=(1,),
        shared_policy=SharedPolicy.DISTRIBUTED,
    )


def test_device_nodes_are_handed_out_only_where_the_file_says_so():
    config = parse("flags: {nvidiaDevRoot: /run/driver/, plugin: {passDeviceSpecs: true}}")
    facts = facts_of(config, gpu(3), gpu(4, minor=None))
    assert facts.pass_device_specs
    assert facts.gpus[0].nodes == (node("/dev/nvidia3", "/run/driver/dev/nvidia3"),)
    assert facts.gpus[1].nodes == ()
    assert facts.control_nodes == tuple(node(path, f"/run/driver{path}") for path in CONTROL)


def test_without_a_dev_root_host_and_container_know_a_node_by_the_same_path():
    facts = facts_of(parse("flags: {plugin: {passDeviceSpecs: true}}"), gpu(3))
    assert facts.gpus[0].nodes == (node("/dev/nvidia3"),)


@pytest.mark.parametrize("ways", ["[cdi-cri]", "[cdi-annotations, cdi-cri]", "cdi-annotations"])
def test_where_cdi_alone_brings_the_devices_no_node_is_handed_out_as_well(ways):
    facts = facts_of(parse(f"flags: {{plugin: {{passDeviceSpecs: true, deviceListStrategy: {ways}}}}}"), gpu(3))
    assert (facts.pass_device_specs, facts.gpus[0].nodes, facts.control_nodes) == (False, (), ())
    beside = facts_of(parse("flags: {plugin: {passDeviceSpecs: true, deviceListStrategy: [cdi-cri, envvar]}}"), gpu(3))
    assert beside.gpus[0].nodes == (node("/dev/nvidia3"),)


def test_an_imex_channel_is_handed_out_if_the_node_has_it_with_the_hosts_path_under_the_dev_root():
    text = "imex: {channelIDs: [0]}\nflags: {nvidiaDevRoot: /run/driver, plugin: {passDeviceSpecs: true}}"
    facts = facts_of(parse(text), gpu(0), imex_channels=(0, 5))
    path = "/dev/nvidia-caps-imex-channels/channel0"
    assert facts.imex_channels == (0,)
    assert facts.imex_nodes == (node(path, f"/run/driver{path}"),)
    for without in (facts_of(parse(text), gpu(0), imex_channels=(5,)), facts_of(parse(), gpu(0), imex_channels=(0,))):
        assert (without.imex_channels, without.imex_nodes) == ((), ())


CDI = "flags: {gdsEnabled: true, mofedEnabled: true, gdrcopyEnabled: true, plugin: {deviceListStrategy: [%s]}}"
EXTRAS = [
    "k8s.device-plugin.nvidia.com/imex-channel=0",
    *(f"k8s.device-plugin.nvidia.com/{feature}=all" for feature in ("gdrcopy", "gds", "mofed")),
]


def test_what_comes_with_a_gpu_by_cdi_is_named_in_nvidias_order():
    text = CDI % "cdi-cri" + "\nimex: {channelIDs: [0]}"
    facts = facts_of(parse(text), gpu(0), imex_channels=(0,), cdi_names=frozenset(EXTRAS))
    assert facts.cdi_extras == tuple(EXTRAS)


@pytest.mark.requirement(33)
def test_a_name_that_no_spec_has_is_never_handed_out():
    text = CDI % "cdi-annotations" + "\nimex: {channelIDs: [0]}"
    facts = facts_of(parse(text), gpu(0), imex_channels=(0,), cdi_names={EXTRAS[2]})
    assert facts.cdi_extras == (EXTRAS[2],)
    assert facts.imex_channels == (0,), "other ways do without specs"
    assert facts_of(parse(text), gpu(0), imex_channels=(), cdi_names=EXTRAS).cdi_extras == tuple(EXTRAS[1:])
    assert facts_of(parse(CDI % "envvar"), gpu(0), cdi_names=EXTRAS).cdi_extras == ()


def test_the_prefix_of_annotations_is_the_files():
    facts = facts_of(parse("flags: {plugin: {cdiAnnotationPrefix: nvidia.cdi.k8s.io/}}"), gpu(0))
    assert facts.cdi_annotation_prefix == "nvidia.cdi.k8s.io/"


@pytest.mark.parametrize(
    ("key", "name"),
    [("gdrcopyEnabled", "NVIDIA_GDRCOPY"), ("gdsEnabled", "NVIDIA_GDS"), ("mofedEnabled", "NVIDIA_MOFED")],
)
def test_each_feature_has_its_variable(key, name):
    assert facts_of(parse(f"flags: {{{key}: true}}"), gpu(0)).feature_envs == ((name, "enabled"),)


def test_strategies_and_policy_are_the_files():
    facts = facts_of(
        parse("""\
            flags: {plugin: {deviceListStrategy: [volume-mounts, envvar], deviceIDStrategy: index}}
            allocation: {sharedPolicy: packed}
            """),
        gpu(0),
    )
    assert facts.device_list_strategies == (DeviceListStrategy.VOLUME_MOUNTS, DeviceListStrategy.ENVVAR)
    assert facts.device_id_strategy is DeviceIDStrategy.INDEX
    assert facts.shared_policy is SharedPolicy.PACKED


@pytest.mark.parametrize("word", ["failRequestsGreaterThanOne", "requireDistinctGPUs"])
@pytest.mark.parametrize(("replicas", "restricted"), [(1, False), (2, True)])
def test_requests_are_restricted_only_where_there_are_replicas(word, replicas, restricted):
    config = parse(f"sharing: {{timeSlicing: {{{word}: true, resources: [{{name: gpu, replicas: {replicas}}}]}}}}")
    facts = facts_of(config, gpu(0))
    keys = {facts.single_replica_key, facts.distinct_gpus_key}
    assert keys == {"", f"sharing.timeSlicing.{word}"} if restricted else keys == {""}
    assert facts.replicas == (replicas,)
    unrestricted = facts_of(sliced(2), gpu(0))
    assert (unrestricted.single_replica_key, unrestricted.distinct_gpus_key) == ("", "")


def test_gpus_of_one_name_may_have_different_numbers_of_replicas():
    config = parse("""        sharing:
          timeSlicing:
            resources:
            - {name: gpu, rename: gpu.ts, devices: [GPU-00000000-0000-0000-0000-000000000000], replicas: 8}
            - {name: gpu, rename: gpu.ts, replicas: 2}
        """)
    assert facts_of(config, gpu(0), gpu(1)).replicas == (2, 8)


def test_a_resource_that_only_leaves_is_shared_in_no_way():
    facts = facts_of(sliced(4), gpu(0), leaving=True)
    assert (facts.strategy, facts.replicas) == (Strategy.NONE, (1,))


def mig_facts(text):
    config = parse(f"flags: {{migStrategy: mixed, plugin: {{{text}}}}}")
    nodes = ("/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13")
    first, second = cut(3, "1g.10gb", "1g.10gb").instances
    card = cut(3, instances=(msgspec.structs.replace(first, nodes=nodes), second))
    allotment = allot(config, inventory(card), {})
    return build_facts(config, allotment.devices, allotment.assignments.values(), CONTROL).gpus


def test_a_mig_device_is_known_by_gpu_and_place_and_by_its_gpu():
    assert [(one.uuid, one.index, one.parent_uuid) for one in mig_facts("deviceIDStrategy: index")] == [
        (mig_uuid(3, 0), "3:0", uuid(3)),
        (mig_uuid(3, 1), "3:1", uuid(3)),
    ]


def test_a_mig_device_comes_with_the_node_of_its_gpu_and_those_that_give_access_to_its_part():
    first, second = mig_facts("passDeviceSpecs: true")
    caps = [node(f"/dev/nvidia-caps/nvidia-cap{number}") for number in (12, 13)]
    assert first.nodes == (node("/dev/nvidia3"), *caps)
    assert second.nodes == (node("/dev/nvidia3"),), "what the host does not tell cannot be handed out"
    assert [one.nodes for one in mig_facts("")] == [(), ()]

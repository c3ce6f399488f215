"""WSL2 and Tegra: one device for all that computes, from the plan to what a container gets."""

from __future__ import annotations

import msgspec
import pytest

from nvdp.errors import AllocationError
from nvdp.model.cdi_found import Found
from nvdp.model.driver_files import DriverFile, DriverFiles, Link
from nvdp.model.inventory import Driver, Fault, Gpu, Inventory, MigMode
from nvdp.model.platforms import Platform
from nvdp.model.reasons import Cause
from nvdp.planning.allotment import allot, resolve_pins
from nvdp.planning.cdi_wish import build_wish
from nvdp.planning.ledger import restore
from nvdp.planning.means import Means
from nvdp.planning.plan import build_plan
from nvdp.planning.preferred import choose_preferred
from nvdp.planning.presence import merge_scan
from nvdp.planning.response import build_allocation
from tests.planning.cdi_values import inject
from tests.planning.values import GPU, answer, holding, inputs, parse

ALL = Gpu(uuid="all", index=0, product="NVIDIA GeForce RTX 4090", mig=MigMode.UNSUPPORTED)
TEGRA = Gpu(uuid="tegra", index=0, product="tegra", mig=MigMode.UNSUPPORTED)
BOTH = pytest.mark.parametrize("one", [ALL, TEGRA], ids=["wsl", "tegra"])
NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")
SLICED = """\
sharing:
  timeSlicing:
    resources:
    - name: nvidia.com/gpu
      replicas: 3
"""


def node_of(one):
    platform = Platform.WSL if one is ALL else Platform.TEGRA
    return Inventory(driver=Driver(version="", cuda_version=""), platform=platform, gpus=(one,))


def plan_of(one, text="", **others):
    config = parse(text)
    pins = resolve_pins(config, (one,), {}, {})
    means = Means(control_nodes=NODES)
    return build_plan(inputs(config, one, inventory=node_of(one), pins=pins, means=means, **others))


def list_of(one, text="", **others):
    (listed,) = plan_of(one, text, **others).lists.values()
    return listed


@BOTH
def test_there_is_one_device_under_its_name(one):
    (device,) = list_of(one).devices
    assert (device.id, device.healthy, device.numa_node) == (one.uuid, True, None)


@BOTH
def test_it_is_shared_as_any_other_gpu(one):
    assert [device.id for device in list_of(one, SLICED).devices] == [f"{one.uuid}::{number}" for number in range(3)]


@BOTH
@pytest.mark.parametrize("strategy", ["single", "mixed"])
def test_the_mig_strategy_is_of_no_account(one, strategy):
    assert list_of(one, f"flags: {{migStrategy: {strategy}}}") == list_of(one)


@pytest.mark.parametrize(
    ("one", "strategy", "name"),
    [(ALL, "uuid", "all"), (ALL, "index", "all"), (TEGRA, "uuid", "tegra"), (TEGRA, "index", "0")],
)
def test_containers_are_told_the_name_that_the_runtime_of_the_platform_knows(one, strategy, name):
    listed = list_of(one, f"{SLICED}flags: {{plugin: {{deviceIDStrategy: {strategy}}}}}")
    allocation = build_allocation(listed, [f"{one.uuid}::2", f"{one.uuid}::0"])
    assert allocation.envs == {"NVIDIA_VISIBLE_DEVICES": name}


@pytest.mark.parametrize(("one", "nodes"), [(ALL, ["/dev/dxg"]), (TEGRA, [])])
def test_nodes_are_those_of_the_platform_and_never_the_drivers_own(one, nodes):
    listed = list_of(one, "flags: {nvidiaDevRoot: /host, plugin: {passDeviceSpecs: true}}")
    allocation = build_allocation(listed, [one.uuid])
    assert [node.container_path for node in allocation.devices] == nodes
    assert [node.host_path for node in allocation.devices] == [f"/host{path}" for path in nodes]


@BOTH
@pytest.mark.parametrize("policy", ["distributed", "packed"])
def test_a_request_gets_replicas_of_the_one_device_whatever_the_policy(one, policy):
    listed = list_of(one, f"{SLICED}flags: {{plugin: {{sharedDevicesAllocationPolicy: {policy}}}}}")
    ids = [device.id for device in listed.devices]
    preferred = choose_preferred(listed, held_elsewhere={}, available=ids[::-1], must_include=[ids[2]], size=2)
    assert preferred == (f"{one.uuid}::2", f"{one.uuid}::0")


@BOTH
def test_what_pods_hold_of_it_is_known_again_after_a_restart(one):
    held = answer(holding(f"{one.uuid}::1"), holding("alles"), at=99.0)
    given = restore(held, names=frozenset(), now=99.0)
    assert [device.id for device in given[GPU].listed.devices] == [f"{one.uuid}::1"]
    listed = list_of(one, held=held, given=given)
    assert [(device.id, device.cause) for device in listed.devices] == [
        (one.uuid, Cause.HELD),
        (f"{one.uuid}::1", Cause.WITHDRAWING),
    ]


@BOTH
def test_index_zero_names_the_one_device_in_the_file(one):
    assert plan_of(one, "devices: {exclude: [0]}").lists == {}
    (device,) = list_of(one, "devices: {cordon: [0]}").devices
    assert device.cause is Cause.CORDONED


@BOTH
def test_a_gpu_that_is_no_device_of_its_own_is_not_excluded_and_a_line_says_so(one):
    config = parse("devices: {exclude: [1, '0000:65:00.0', GPU-662077db-fa3f-0d8f-9502-21ab0ef058a2]}")
    allotment = allot(config, node_of(one), resolve_pins(config, (one,), {}, {}))
    assert allotment.assignments.keys() == {one.uuid}
    assert allotment.unmatched[0] == (
        "devices.exclude[0]: 1 names no device here: all GPUs of this system are one device, with index 0; "
        "what it means is handed out all the same (fine if other nodes share this file)"
    )
    assert len(allotment.unmatched) == 3


def test_patterns_match_the_product_that_nvidias_plugin_has_for_a_tegra_system():
    assert list_of(TEGRA, "resources: {gpus: [{pattern: tegra, name: nvidia.com/igpu}]}").resource == "nvidia.com/igpu"


def test_wsl_is_unhealthy_once_no_gpu_answers_and_keeps_its_product_meanwhile():
    first = merge_scan(None, node_of(ALL), (), now=0.0, wall=0.0)
    fault = Fault(call="nvmlDeviceGetHandleByIndex", kind="GpuIsLost", text="lost")
    lost = msgspec.structs.replace(ALL, product=None, fault=fault)
    second = merge_scan(first, msgspec.structs.replace(node_of(ALL), gpus=(lost,)), (), now=1.0, wall=1.0)
    assert second.ailments["all"].cause is Cause.LOST
    assert second.inventory.gpus[0].product == ALL.product
    assert second.inventory.platform is Platform.WSL
    listed = list_of(second.inventory.gpus[0], ailments=second.ailments)
    with pytest.raises(AllocationError, match="all is Unhealthy"):
        build_allocation(listed, ["all"])


def wish_of(one, text):
    config = parse(f"flags: {{plugin: {{deviceListStrategy: cdi-cri{text}}}}}")
    means = Means(control_nodes=NODES)
    plan = build_plan(inputs(config, one, inventory=node_of(one), means=means))
    return build_wish(config, plan, node_of(one), ailments={}, means=means)


def test_the_specs_give_a_container_of_wsl_its_node_and_the_libraries_of_windows():
    store = "/usr/lib/wsl/drivers/nv_dispi"
    driver = DriverFiles(
        version="",
        library_dirs=(store,),
        libraries=(DriverFile(f"{store}/libcuda.so.1.1", f"{store}/libcuda.so.1.1"),),
        links=(Link(f"{store}/nvidia-smi", "/usr/bin/nvidia-smi"),),
    )
    injected = inject(["all"], wish_of(ALL, ", deviceIDStrategy: index"), Found(driver=driver))
    assert list(injected.nodes) == ["/dev/dxg"]
    assert list(injected.mounts) == [f"{store}/libcuda.so.1.1"]
    assert [hook["args"][2] for hook in injected.hooks] == ["create-symlinks", "update-ldcache"]


@pytest.mark.parametrize("name", ["tegra", "0", "all"])
def test_the_specs_give_a_container_of_a_tegra_system_what_its_lists_name(name):
    lib = "/usr/lib/aarch64-linux-gnu/tegra/libcuda.so.1.1"
    driver = DriverFiles(version="", library_dirs=("/usr/lib",), libraries=(DriverFile(lib, lib),))
    found = Found(driver=driver, extra_nodes=("/dev/nvmap", "/dev/nvhost-gpu"))
    injected = inject([name], wish_of(TEGRA, ", deviceIDStrategy: index"), found)
    assert sorted(injected.nodes) == ["/dev/nvhost-gpu", "/dev/nvmap"]
    assert list(injected.mounts) == [lib]
    assert "NVIDIA_VISIBLE_DEVICES=void" in injected.env


@pytest.mark.invariant(4)
@pytest.mark.parametrize(("old", "new"), [("GPU-1::0", "tegra"), ("all", "tegra"), ("tegra::1", "GPU-1")])
def test_all_gpus_are_never_promised_together_with_one_of_them(old, new):
    gpus = {"tegra": TEGRA, "GPU-1": Gpu(uuid="GPU-1", index=0, minor=0, product="Orin (nvgpu)")}
    held = answer(holding(old), at=99.0)
    given = restore(held, names=frozenset(), now=90.0)
    waits = build_plan(inputs(parse(), gpus[new], held=held, given=given))
    listed = {device.id: device.cause for device in waits.lists[GPU].devices}
    assert listed == {new: Cause.HELD, old: Cause.WITHDRAWING}
    assert [change.holder for change in waits.changes] == ["team/pod"]
    free = build_plan(inputs(parse(), gpus[new], held=answer(at=99.0), given=given))
    assert free.lists[GPU].by_id[new].healthy

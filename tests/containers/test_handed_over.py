"""What containers really get of what nvdp hands over: containerd runs them, and the kubelet's twin asks for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.containers.cri import LIST_DEVICES, Injection, Runtime, parse_devices
from tests.containers.node import SMALL, Node
from tests.containers.podman import run_in_podman
from tests.daemon.compiled import VERSION
from tests.daemon.node import GPU, gpu_uuid
from tests.daemon.process import wait_until

pytestmark = pytest.mark.campaign

KIND = "k8s.device-plugin.nvidia.com/gpu"
CONTROL = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"}
COMPONENT = Path(__file__).parents[2] / "manifests/components/cdi/daemonset.yaml"


def load_strategy() -> str:
    """What the component for CDI has nvdp do."""
    (container,) = yaml.safe_load(COMPONENT.read_text())["spec"]["template"]["spec"]["containers"]
    return {variable["name"]: variable["value"] for variable in container["env"]}["DEVICE_LIST_STRATEGY"]


BY_CRI = {"deviceListStrategy": load_strategy()}


@pytest.fixture
def node(root: Path, cdi: Path) -> Iterator[Node]:
    found = Node(root, cdi)
    yield found
    found.stop()


def find_node(uuid: str) -> str:
    """The device node of a card."""
    return next(f"/dev/nvidia{number}" for number in range(4) if gpu_uuid(number) == uuid)


def wait_offered(node: Node) -> None:
    for resource in (GPU, SMALL):
        node.kubelet.wait_until(lambda resource=resource: node.kubelet.devices(resource), what=resource)


def test_a_container_gets_its_gpu_the_driver_and_nothing_else(node: Node, runtime: Runtime):
    node.start(**BY_CRI)
    wait_offered(node)
    pod, injection = node.admit("one", gpus=1)
    (uuid,) = pod.ids(GPU)
    assert injection == Injection(cdi_devices=(f"{KIND}={uuid}",))

    container = runtime.start(injection)
    assert container.devices() == dict.fromkeys({*CONTROL, find_node(uuid)}, "1:3")
    assert container.environment()["NVIDIA_VISIBLE_DEVICES"] == "void"
    library = f"/usr/lib64/libcuda.so.{VERSION}"
    assert container.run("cat", library) == f"{library}\n"
    assert container.run("cat", "/usr/bin/nvidia-smi") == "/usr/bin/nvidia-smi\n"
    mounts = [line.split() for line in container.run("cat", "/proc/mounts").splitlines()]
    (options,) = [fields[3] for fields in mounts if fields[1] == library]
    assert {"ro", "nosuid", "nodev"} <= set(options.split(","))


def test_the_hooks_run_before_the_container_does_as_nvidias_program_takes_them(node: Node, runtime: Runtime):
    node.start(**BY_CRI)
    wait_offered(node)
    _, injection = node.admit("one", gpus=1)
    assert node.hook_calls == []
    runtime.start(injection)
    calls = {call[1]: call[2:] for call in node.hook_calls}
    assert {call[0] for call in node.hook_calls} == {"hook"}
    assert calls["update-ldcache"][:2] == ["--folder", "/usr/lib64"]
    assert calls["enable-cuda-compat"] == [f"--host-driver-version={VERSION}"]
    assert "libcuda.so.1::/usr/lib64/libcuda.so" in calls["create-symlinks"]
    assert "disable-device-node-modification" in calls


def test_a_container_with_two_resources_of_one_node_gets_both(node: Node, runtime: Runtime):
    node.start(**BY_CRI)
    wait_offered(node)
    pod, injection = node.admit("both", gpus=2, parts=1)
    (part,) = pod.ids(SMALL)
    cards = {find_node(uuid) for uuid in pod.ids(GPU)}
    assert len(cards) == 2
    expected = {*CONTROL, *cards, "/dev/nvidia3", *node.part_nodes[part]}
    assert set(runtime.start(injection).devices()) == expected


def test_an_image_that_asks_for_all_gpus_sees_the_one_that_its_pod_asked_for(node: Node, runtime: Runtime):
    node.start(**BY_CRI)
    wait_offered(node)
    pod, injection = node.admit("one", gpus=1)
    container = runtime.start(injection, image_env={"NVIDIA_VISIBLE_DEVICES": "all"})
    assert container.environment()["NVIDIA_VISIBLE_DEVICES"] == "void"
    (uuid,) = pod.ids(GPU)
    assert set(container.devices()) == {*CONTROL, find_node(uuid)}


def test_the_device_all_is_every_gpu_and_every_mig_device(node: Node, runtime: Runtime):
    node.start(**BY_CRI)
    wait_offered(node)
    parts = {path for paths in node.part_nodes.values() for path in paths}
    found = runtime.start(Injection(cdi_devices=(f"{KIND}=all",))).devices()
    assert set(found) == {*CONTROL, *(f"/dev/nvidia{number}" for number in range(4)), *parts}


def test_a_channel_of_imex_comes_with_the_gpu_only_where_the_file_asks_for_it(node: Node, runtime: Runtime):
    node.start(**BY_CRI, blocks={"imex": {"channelIDs": [0]}})
    wait_offered(node)
    pod, injection = node.admit("one", gpus=1)
    (uuid,) = pod.ids(GPU)
    assert injection.cdi_devices == (f"{KIND}={uuid}", "k8s.device-plugin.nvidia.com/imex-channel=0")
    container = runtime.start(injection)
    assert set(container.devices()) == {*CONTROL, find_node(uuid)}
    assert container.run("ls", "/dev/nvidia-caps-imex-channels") == "channel0\n"


def test_annotations_give_what_the_field_gives(node: Node, runtime: Runtime):
    node.start(deviceListStrategy="cdi-annotations")
    wait_offered(node)
    pod, injection = node.admit("one", gpus=1, parts=1)
    assert not injection.cdi_devices
    assert len(injection.annotations) == 2, "one of each resource, and neither takes the other's place"
    ((uuid,), (part,)) = pod.ids(GPU), pod.ids(SMALL)
    assert set(runtime.start(injection).devices()) == {
        *CONTROL,
        find_node(uuid),
        "/dev/nvidia3",
        *node.part_nodes[part],
    }


def test_a_container_starts_again_with_what_it_got_while_nvdp_is_away_and_after(
    node: Node, cdi: Path, runtime: Runtime
):
    node.start(**BY_CRI)
    wait_offered(node)
    _, injection = node.admit("one", gpus=1, parts=1)
    container = runtime.start(injection)
    before = container.devices()
    container.stop()

    node.stop_daemon()
    container = runtime.start(injection)
    assert container.devices() == before
    container.stop()

    specs = {path.name: path.read_bytes() for path in cdi.iterdir()}
    node.run()
    assert {path.name: path.read_bytes() for path in cdi.iterdir()} == specs
    assert runtime.start(injection).devices() == before


def test_an_older_reader_of_specs_gives_a_container_the_same(node: Node, root: Path, cdi: Path, runtime: Runtime):
    node.start(**BY_CRI)
    wait_offered(node)
    _, injection = node.admit("one", gpus=1, parts=1)
    found = run_in_podman(root / "p", cdi=cdi, devices=injection.cdi_devices, command=["sh", "-c", LIST_DEVICES])
    assert parse_devices(found) == runtime.start(injection).devices()


def test_after_a_reboot_the_specs_are_there_before_the_kubelet_can_give_a_gpu_to_a_pod(
    node: Node, cdi: Path, runtime: Runtime
):
    node.start(**BY_CRI)
    wait_offered(node)
    _, injection = node.admit("one", gpus=1)
    node.stop_daemon()
    for path in cdi.iterdir():
        path.unlink()
    before = len(node.kubelet.registrations)
    node.run()
    (spec,) = cdi.iterdir()
    written_at = spec.stat().st_mtime - (time.time() - time.monotonic())
    assert written_at < min(found.at for found in node.kubelet.registrations[before:])
    assert set(runtime.start(injection).devices()) > CONTROL


def test_specs_that_somebody_deletes_are_there_again_for_the_next_container(node: Node, cdi: Path, runtime: Runtime):
    node.start(**BY_CRI)
    wait_offered(node)
    _, injection = node.admit("one", gpus=1)
    (spec,) = cdi.iterdir()
    before = spec.read_bytes()
    spec.unlink()
    wait_until(spec.exists, what="the spec")
    assert spec.read_bytes() == before
    assert set(runtime.start(injection).devices()) > CONTROL


def test_after_a_driver_upgrade_the_next_container_gets_the_new_one(node: Node, cdi: Path, runtime: Runtime):
    daemon = node.start(**BY_CRI)
    wait_offered(node)
    _, injection = node.admit("one", gpus=1)
    runtime.start(injection)
    node.upgrade("570.2.2")
    daemon.look()
    (spec,) = cdi.iterdir()
    wait_until(lambda: "libcuda.so.570.2.2" in spec.read_text(), what="a spec of the new driver")
    container = runtime.start(injection)
    assert container.run("ls", "/usr/lib64/libcuda.so.570.2.2")
    assert VERSION not in container.run("cat", "/proc/mounts")


def test_with_containerd_1_7_as_it_comes_the_pod_runs_without_a_gpu(
    node: Node, start_runtime: Callable[[str], Runtime]
):
    node.start(**BY_CRI)
    wait_offered(node)
    _, injection = node.admit("one", gpus=1)
    container = start_runtime("").start(injection)
    assert container.devices() == {}, "which nobody reports, but for nvdp's start-up check"

"""Devices by CDI, with the whole daemon: every name that a container was ever given resolves in the specs on disk."""

from __future__ import annotations

import os
import re
import shutil
import stat
from pathlib import Path

import pytest

from nvdp.model.cdi import CdiClass, qualify
from nvdp.simulate.kubelet import AdmissionError
from tests.cdi.validator import resolve
from tests.daemon.node import GPU, build_config, gpu_uuid, healthy
from tests.daemon.process import wait_until
from tests.host.layouts import build_tree

SPEC = CdiClass.GPU.file_name
DRIVER = """
usr/lib64/libcuda.so.1 -> libcuda.so.580.65.06
usr/lib64/libcuda.so.580.65.06
usr/lib64/libnvidia-ml.so.580.65.06
"""


@pytest.fixture
def driver(root):
    return build_tree(root / "driver", DRIVER)


@pytest.fixture
def cdi(root):
    return root / "cdi"


@pytest.fixture
def by_cdi(driver):
    plugin = {"deviceListStrategy": "cdi-cri", "containerDriverRoot": str(driver), "nvidiaCTKPath": "/opt/hook"}
    return build_config(flags={"nvidiaDriverRoot": "/run/driver", "nvidiaDevRoot": "/", "plugin": plugin})


def names_of(pod) -> list[str]:
    """What the kubelet hands on to the runtime, each time the container is started."""
    return [one.name for one in pod.allocations["c", GPU].response.cdi_devices]


@pytest.mark.parametrize("version", ["1.37"])
@pytest.mark.requirement(33)
@pytest.mark.requirement(46)
def test_names_that_pods_have_resolve_from_the_first_list_on_after_a_deletion_and_after_a_reboot(
    kubelet, start, cdi, by_cdi
):
    first = start(by_cdi, "--cdi-dir", cdi)
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 4, what="four Healthy devices")
    assert len(kubelet.messages(GPU)[0].healthy) == 4, "no list went out before the specs were there"
    pod = kubelet.admit("p", {"c": {GPU: 2}})
    given = names_of(pod)
    assert set(given) == {qualify(CdiClass.GPU, uuid) for uuid in pod.ids(GPU)}
    nodes = resolve(given, cdi).nodes
    assert nodes.keys() == {f"/dev/nvidia{number}" for number in range(4) if gpu_uuid(number) in pod.ids(GPU)}

    spec = (cdi / SPEC).read_bytes()
    (cdi / SPEC).unlink()
    wait_until(lambda: (cdi / SPEC).exists() and (cdi / SPEC).read_bytes() == spec, what="the spec anew")

    first.stop()
    assert resolve(given, cdi).nodes == nodes, "containers are started again while no plugin runs"
    shutil.rmtree(cdi)
    kubelet.reboot()
    lists = len(kubelet.messages(GPU))
    start(None, "--cdi-dir", cdi)
    kubelet.wait_until(lambda: len(kubelet.messages(GPU)) > lists, what="a list")
    assert (cdi / SPEC).read_bytes() == spec
    assert len(kubelet.messages(GPU)[lists].healthy) == 4


def test_what_cannot_be_handed_over_is_unhealthy_with_the_reason_until_it_can_be(kubelet, start, root, cdi, by_cdi):
    dev = root / "dev"
    dev.mkdir()
    make_nodes(dev, 0, 1, 2)
    cdi.write_text("in the way")
    containerd = root / "etc" / "containerd" / "config.toml"
    containerd.parent.mkdir(parents=True)
    containerd.write_text("version = 2\n")
    daemon = start(by_cdi, "--cdi-dir", cdi, "--host-dev", dev, "--host-etc", root / "etc")
    assert "enable_cdi" in daemon.log.wait_for("RuntimeUnsuited")["msg"]
    assert str(cdi) in daemon.log.wait_for("CDIFailed")["msg"]
    kubelet.wait_until(lambda: len(kubelet.devices(GPU)) == 4, what="a list")
    assert not healthy(kubelet)
    causes = [line["cause"] for line in daemon.log.of("DeviceUnhealthy")]
    assert sorted(causes) == ["CDIMissing", "NodesMissing"]
    (alike,) = daemon.log.of("DeviceUnhealthy", text=f"{cdi}: cannot be read: Not a directory")
    assert sorted(alike["devices"]) == sorted(gpu_uuid(number) for number in range(3))
    assert daemon.log.of("DeviceUnhealthy", text="/dev/nvidia3 is not on this node")
    with pytest.raises(AdmissionError):
        kubelet.admit("early", {"c": {GPU: 1}})

    cdi.unlink()
    kubelet.wait_until(lambda: healthy(kubelet) == {gpu_uuid(number) for number in range(3)}, what="three devices")
    make_nodes(dev, 3)
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 4, what="the fourth device")
    node = resolve(names_of(kubelet.admit("p", {"c": {GPU: 4}})), cdi).nodes["/dev/nvidia3"]
    assert (node["type"], node["major"], node["minor"]) == ("c", 1, 3)
    assert not daemon.log.of("DeviceFlapping")
    assert SPEC in daemon.log.wait_for("CDIWritten")["files"]


OTHER = "nvidia.com/gpu.other"


@pytest.mark.parametrize("version", ["1.37"])
@pytest.mark.requirement(34)
@pytest.mark.requirement(35)
def test_a_container_that_asks_for_two_resources_gets_the_devices_of_both(kubelet, start, cdi, by_cdi):
    other = {"name": GPU, "rename": OTHER, "devices": [3], "replicas": 1}
    by_cdi["flags"]["plugin"]["deviceListStrategy"] = ["cdi-annotations", "envvar"]
    start(by_cdi | {"sharing": {"timeSlicing": {"resources": [other]}}}, "--cdi-dir", cdi)
    kubelet.wait_until(lambda: len(healthy(kubelet, OTHER)) == 1 and len(healthy(kubelet)) == 3, what="both lists")
    pod = kubelet.admit("p", {"c": {GPU: 2, OTHER: 1}})
    answers = [pod.allocations["c", resource].response for resource in (GPU, OTHER)]
    assert [list(answer.cdi_devices) for answer in answers] == [[], []]
    annotations = {key: text for answer in answers for key, text in answer.annotations.items()}
    assert len(annotations) == 2, "the kubelet keeps one for each key"
    for key in annotations:
        assert re.fullmatch(r"cdi\.k8s\.io/nvidia-device-plugin_[0-9a-f-]{36}", key)
    names = ",".join(annotations.values()).split(",")
    assert set(names) == {qualify(CdiClass.GPU, uuid) for uuid in (*pod.ids(GPU), gpu_uuid(3))}
    assert len(resolve(names, cdi).nodes) == 3


def make_nodes(dev: Path, *numbers: int) -> None:
    """Device nodes of GPUs: /dev/null by other names."""
    for number in numbers:
        try:
            os.mknod(dev / f"nvidia{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        except PermissionError as error:
            pytest.skip(f"no device nodes for this user: {error}")

"""What is told of device nodes: numbers and permissions, and which belong to a GPU's display or to a feature."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from nvdp.host.node_facts import find_drm_nodes, find_feature_files, find_feature_nodes, load_node_facts
from nvdp.model.cdi import CdiClass
from nvdp.model.driver_files import DrmNodes, Link, NodeFacts
from tests.host.layouts import build_tree

DEVICES = """Character devices:
  1 mem
195 nvidia
234 nvidia-caps-imex-channels
237 nvidia-caps
509 nvidia-uvm

Block devices:
  8 sd
237 nvidia-caps-of-no-use
"""
CAP = "/dev/nvidia-caps/nvidia-cap21"
CHANNEL = "/dev/nvidia-caps-imex-channels/channel3"


def test_a_node_of_this_machine_is_told_as_it_is():
    found = Path("/dev/null").stat()
    assert load_node_facts(["/dev/null"], dev=Path("/dev"))["/dev/null"] == NodeFacts(
        type="c", major=1, minor=3, mode=stat.S_IMODE(found.st_mode), uid=found.st_uid, gid=found.st_gid
    )


@pytest.mark.parametrize(("kind", "letter"), [(stat.S_IFCHR, "c"), (stat.S_IFBLK, "b")])
def test_nodes_are_looked_for_where_this_process_sees_the_hosts(kind, letter):
    seen = SimpleNamespace(st_mode=kind | 0o660, st_rdev=os.makedev(195, 7), st_uid=0, st_gid=44)
    asked = []

    def stat_node(path):
        asked.append(path)
        return seen

    facts = load_node_facts(["/dev/nvidia7", CAP], dev=Path("/host-dev"), stat_node=stat_node)
    assert asked == ["/host-dev/nvidia7", "/host-dev/nvidia-caps/nvidia-cap21"]
    assert facts["/dev/nvidia7"] == NodeFacts(type=letter, major=195, minor=7, mode=0o660, uid=0, gid=44)


def test_what_is_no_device_node_or_is_not_there_has_no_facts(tmp_path):
    build_tree(tmp_path, "nvidia0\nnvidia1/\nnvidia2 -> /dev/null\n")
    paths = [f"/dev/nvidia{n}" for n in range(4)]
    assert load_node_facts(paths, dev=tmp_path) == {}


def test_nodes_that_the_driver_makes_on_demand_have_the_numbers_that_the_kernel_knows(tmp_path):
    (tmp_path / "devices").write_text(DEVICES)
    facts = load_node_facts([CAP, CHANNEL, "/dev/nvidia-caps/nvidia-capX", "/dev/nvidia9"], dev=tmp_path, proc=tmp_path)
    assert facts == {
        CAP: NodeFacts(type="c", major=237, minor=21),
        CHANNEL: NodeFacts(type="c", major=234, minor=3),
    }


@pytest.mark.parametrize(
    "devices", [None, "", "garbage\n\0 x\n237\nx nvidia-caps\n", "Block devices:\n237 nvidia-caps\n"]
)
def test_numbers_that_the_kernel_does_not_tell_are_not_made_up(tmp_path, devices):
    if devices is not None:
        (tmp_path / "devices").write_text(devices)
    assert load_node_facts([CAP, CHANNEL], dev=tmp_path, proc=tmp_path) == {}


def test_a_node_that_may_not_be_looked_at_is_not_there(tmp_path):
    def refuse(path):
        raise PermissionError(errno.EACCES, "no", path)

    assert load_node_facts(["/dev/nvidia0"], dev=tmp_path, stat_node=refuse) == {}


PCI = "0000:1b:00.0"
DISPLAY = f"""
sys/bus/pci/devices/{PCI} -> ../../../devices/pci0000:17/0000:17:01.0/{PCI}
sys/devices/pci0000:17/0000:17:01.0/{PCI}/drm/card1/
sys/devices/pci0000:17/0000:17:01.0/{PCI}/drm/renderD128/
sys/devices/pci0000:17/0000:17:01.0/{PCI}/drm/controlD65/
sys/devices/pci0000:17/0000:17:01.0/{PCI}/drm/version
dev/dri/card0
dev/dri/card1
dev/dri/controlD65
dev/dri/renderD128
dev/dri/by-path/pci-0000:03:00.0-card -> ../card0
dev/dri/by-path/pci-{PCI}-card -> ../card1
dev/dri/by-path/pci-{PCI}-render -> ../renderD128
dev/dri/by-path/README
"""


def test_a_gpu_has_the_display_nodes_and_links_of_its_slot(tmp_path):
    build_tree(tmp_path, DISPLAY)
    assert find_drm_nodes(PCI, dev=tmp_path / "dev", sys=tmp_path / "sys") == DrmNodes(
        nodes=("/dev/dri/card1", "/dev/dri/renderD128"),
        links=(
            Link("../card1", f"/dev/dri/by-path/pci-{PCI}-card"),
            Link("../renderD128", f"/dev/dri/by-path/pci-{PCI}-render"),
        ),
    )


def test_display_nodes_that_the_host_does_not_have_are_left_out_with_their_links(tmp_path):
    build_tree(tmp_path, DISPLAY.replace("dev/dri/card1\n", ""))
    found = find_drm_nodes(PCI, dev=tmp_path / "dev", sys=tmp_path / "sys")
    assert found.nodes == ("/dev/dri/renderD128",)
    assert [link.target for link in found.links] == ["../renderD128"]


def test_a_gpu_without_a_display_driver_has_no_display_nodes(tmp_path):
    build_tree(tmp_path, DISPLAY)
    assert find_drm_nodes("0000:99:00.0", dev=tmp_path / "dev", sys=tmp_path / "sys") == DrmNodes()
    assert find_drm_nodes(PCI, dev=tmp_path / "gone", sys=tmp_path / "gone") == DrmNodes()


def test_each_feature_has_its_nodes(tmp_path):
    build_tree(
        tmp_path,
        "gdrdrv\nnvidia-fs0\nnvidia-fs1\nnvidia0\ninfiniband/uverbs0\ninfiniband/rdma_cm\ninfiniband/umad0\n",
    )
    found = {feature: find_feature_nodes(feature, dev=tmp_path) for feature in CdiClass}
    assert {feature: nodes for feature, nodes in found.items() if nodes} == {
        CdiClass.GDRCOPY: ("/dev/gdrdrv",),
        CdiClass.GDS: ("/dev/nvidia-fs0", "/dev/nvidia-fs1"),
        CdiClass.MOFED: ("/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"),
    }


@pytest.mark.parametrize("feature", CdiClass)
def test_a_host_without_a_features_driver_has_no_nodes_of_it(tmp_path, feature):
    assert find_feature_nodes(feature, dev=tmp_path) == find_feature_nodes(feature, dev=tmp_path / "gone") == ()


def test_gds_comes_with_the_files_that_its_library_reads(tmp_path):
    build_tree(tmp_path, "run/udev/\netc/cufile.json -> /gone\n")
    assert find_feature_files(CdiClass.GDS, root=tmp_path) == ("/run/udev",)
    build_tree(tmp_path, "gone\n")
    assert find_feature_files(CdiClass.GDS, root=tmp_path) == ("/run/udev", "/etc/cufile.json")
    assert find_feature_files(CdiClass.MOFED, root=tmp_path) == ()

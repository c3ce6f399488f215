"""The specs of WSL2 and Tegra nodes, from the files of the system to what a runtime reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nvdp.errors import HostError
from nvdp.host.cdi_found import FoundFiles
from nvdp.model.cdi import CdiDevice, CdiWish
from nvdp.model.cdi_spec import encode_spec
from nvdp.model.platforms import WSL_NODE, Platform
from nvdp.planning.cdi import build_specs
from tests.cdi.validator import check_spec
from tests.host.layouts import build_tree

STORE = "usr/lib/wsl/drivers/nv_dispi.inf_amd64_1"
WINDOWS = f"usr/lib/wsl/lib/libdxcore.so\n{STORE}/libcuda.so.1.1\n{STORE}/nvidia-smi*\n"
LISTS = "etc/nvidia-container-runtime/host-files-for-container.d"
JETSON = f"""\
{LISTS}/devices.csv := dev, /dev/nvmap
{LISTS}/drivers.csv := lib, /usr/lib/aarch64-linux-gnu/tegra/libcuda.so.1.1
usr/lib/aarch64-linux-gnu/tegra/libcuda.so.1.1
"""
DEVICES = {
    Platform.WSL: CdiDevice(names=("all",), nodes=(WSL_NODE,)),
    Platform.TEGRA: CdiDevice(names=("tegra", "0"), nodes=()),
}


def write(tmp_path: Path, platform: Platform, tree: str):
    """What stands in the spec of class gpu, as a runtime reads it."""
    root = build_tree(tmp_path / "driver-root", tree)
    build_tree(tmp_path / "dev", "nvidiactl\nnvmap\ndxg\n")
    wish = CdiWish(platform=platform, devices=(DEVICES[platform],), container_driver_root=str(root))
    found = FoundFiles(host_dev=tmp_path / "dev", is_real=False).load(wish, {})
    (spec,) = build_specs(wish, found).values()
    return check_spec(json.loads(encode_spec(spec)))


@pytest.mark.parametrize(
    ("platform", "tree", "nodes", "mounts"),
    [
        (
            Platform.WSL,
            WINDOWS,
            {WSL_NODE},
            {f"/{STORE}/libcuda.so.1.1", f"/{STORE}/nvidia-smi", "/usr/lib/wsl/lib/libdxcore.so"},
        ),
        (
            Platform.TEGRA,
            JETSON,
            {"/dev/nvmap"},
            {"/usr/lib/aarch64-linux-gnu/tegra/libcuda.so.1.1"},
        ),
    ],
)
def test_a_spec_has_what_the_platform_needs_and_no_control_nodes(tmp_path, platform, tree, nodes, mounts):
    spec = write(tmp_path, platform, tree)
    devices = {device["name"]: device["containerEdits"] for device in spec["devices"]}
    assert devices.keys() == {*DEVICES[platform].names, "all"}
    for edits in devices.values():
        assert {node["path"] for node in edits["deviceNodes"]} == nodes
    assert {mount["hostPath"] for mount in spec["containerEdits"]["mounts"]} == mounts
    assert "deviceNodes" not in spec["containerEdits"]
    assert str(tmp_path) not in json.dumps(spec)


@pytest.mark.parametrize("platform", [Platform.WSL, Platform.TEGRA, Platform.NVML])
def test_files_that_are_not_there_are_one_line_for_any_platform(tmp_path, platform):
    root = build_tree(tmp_path, "usr/lib64/libc.so.6\n")
    wish = CdiWish(platform=platform, container_driver_root=str(root))
    with pytest.raises(HostError) as told:
        FoundFiles(host_dev=tmp_path / "dev").load(wish, {})
    assert "\n" not in str(told.value)

"""The specs of whole systems: from the files of a driver root to what a container gets of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvdp.host.driver_files import load_driver_files
from nvdp.model.cdi import CdiDevice, CdiWish
from nvdp.model.cdi_found import Found
from nvdp.model.cdi_spec import encode_spec
from nvdp.planning.cdi import build_specs
from tests.cdi.validator import resolve
from tests.host.layouts import LAYOUTS, build_tree

NAME = "k8s.device-plugin.nvidia.com/gpu=GPU-a"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_container_gets_the_driver_from_where_it_lies_on_the_host(layout, tmp_path):
    root = build_tree(tmp_path / "root", layout)
    driver = load_driver_files(root, version_hint="", driver_root=str(root), sys=tmp_path / "sys")
    wish = CdiWish(devices=(CdiDevice(names=("GPU-a",), nodes=("/dev/nvidia0",)),), driver_root=str(root))
    place = tmp_path / "cdi"
    place.mkdir()
    for name, spec in build_specs(wish, Found(driver=driver)).items():
        (place / name).write_bytes(encode_spec(spec))

    got = resolve([NAME], place)

    for mount in got.mounts.values():
        # Free of links, so that the runtime finds the file whatever root it looks from.
        assert os.path.lexists(mount["hostPath"])
        assert mount["hostPath"] == os.path.realpath(mount["hostPath"])
        assert not mount["containerPath"].startswith(str(root))
    names = {Path(path).name for path in got.mounts}
    assert {f"libcuda.so.{driver.version}", f"libnvidia-ml.so.{driver.version}", "nvidia-smi"} <= names
    libcuda = next(path for path in got.mounts if path.endswith(f"/libcuda.so.{driver.version}"))
    folders = next(hook["args"] for hook in got.hooks if "update-ldcache" in hook["args"])
    assert os.path.dirname(libcuda) in folders  # noqa: PTH120 - a path of the container, as a text
    assert any(env.startswith("NVIDIA_CTK_LIBCUDA_DIR=") and os.path.dirname(libcuda) in env for env in got.env)  # noqa: PTH120 - as above

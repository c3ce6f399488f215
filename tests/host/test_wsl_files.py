"""The driver's files on WSL2: which package of Windows' store counts, and what of it a container gets."""

from __future__ import annotations

import os

import pytest

from nvdp.errors import HostError
from nvdp.host.wsl_files import load_wsl_files
from nvdp.model.driver_files import DriverFile, Link
from tests.host.layouts import build_tree

STORE = "usr/lib/wsl/drivers"
NAMES = (
    "libcuda.so.1.1",
    "libcuda_loader.so",
    "libnvdxgdmal.so.1",
    "libnvidia-ml.so.1",
    "libnvidia-ml_loader.so",
    "libnvidia-ptxjitcompiler.so.1",
)
OLD, NEW = "nv_dispi.inf_amd64_aaaa", "nvltsi.inf_amd64_0000"


def build_package(root, name, *, age_s):
    build_tree(root, "".join(f"{STORE}/{name}/{file}\n" for file in (*NAMES, "nvcubins.bin", "libcuda.so.1")))
    build_tree(root, f"{STORE}/{name}/nvidia-smi*\n")
    library = root / STORE / name / "libcuda.so.1.1"
    os.utime(library, (1_700_000_000 - age_s,) * 2)


@pytest.fixture
def windows(tmp_path):
    root = build_tree(tmp_path, f"usr/lib/wsl/lib/libdxcore.so\n{STORE}/iigd_dch.inf_amd64_1/libcuda.so.1.1\n")
    build_package(root, OLD, age_s=1000)
    build_package(root, NEW, age_s=10)
    return root


def test_the_package_that_was_installed_last_is_handed_over_whole(windows):
    found = load_wsl_files(windows, version="581.29")
    package = f"/{STORE}/{NEW}"
    dxcore = DriverFile("/usr/lib/wsl/lib/libdxcore.so", "/usr/lib/wsl/lib/libdxcore.so")
    assert found.libraries == (*(DriverFile(f"{package}/{name}", f"{package}/{name}") for name in NAMES), dxcore)
    assert [file.path for file in (*found.binaries, *found.configs)] == [
        f"{package}/nvidia-smi",
        f"{package}/nvcubins.bin",
    ]
    assert found.links == (Link(f"{package}/nvidia-smi", "/usr/bin/nvidia-smi"),)
    assert found.library_dirs == (package, "/usr/lib/wsl/lib")
    assert (found.version, found.cuda_dirs, found.missing) == ("581.29", (package,), ())


def test_what_the_package_lacks_is_told_and_the_rest_is_handed_over(windows):
    (windows / STORE / NEW / "libnvdxgdmal.so.1").unlink()
    (windows / "usr/lib/wsl/lib/libdxcore.so").unlink()
    found = load_wsl_files(windows, version="")
    assert len(found.libraries) == len(NAMES) - 1
    assert [line.partition(":")[0] for line in found.missing] == ["libdxcore.so", "libnvdxgdmal.so.1"]


def test_without_a_driver_in_the_store_one_line_says_what_to_mount(tmp_path):
    build_tree(tmp_path, f"{STORE}/iigd_dch.inf_amd64_1/libcuda.so.1.1\n{STORE}/{OLD}/nvidia-smi\n")
    with pytest.raises(
        HostError, match=r"no driver with libcuda.so.1.1 in /usr/lib/wsl/drivers; mount the distribution"
    ):
        load_wsl_files(tmp_path, version="")

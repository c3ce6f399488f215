"""The lists of a Tegra system: which count, what their lines mean, and what is there of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.errors import HostError
from nvdp.host.tegra_csv import Entry, Kind, find_csv_files, load_tegra_files, parse_csv
from nvdp.model.driver_files import DriverFile, Link
from tests.host.layouts import build_tree

DIRECTORY = "etc/nvidia-container-runtime/host-files-for-container.d"
JETSON = f"""\
{DIRECTORY}/
usr/lib/aarch64-linux-gnu/tegra/libcuda.so.1.1
usr/lib/aarch64-linux-gnu/tegra/libnvrm_gpu.so
usr/lib/aarch64-linux-gnu/tegra/libnvos.so -> libnvos.so.2
usr/lib/aarch64-linux-gnu/tegra/libnvos.so.2
usr/lib/aarch64-linux-gnu/libcuda.so -> tegra/libcuda.so
usr/share/glvnd/egl_vendor.d/
lib/firmware/tegra23x/gpu.bin
"""
DEVICES = """\
# what the GPU is reached by
dev, /dev/nvmap
dev, /dev/nvhost-gpu
dev,/dev/dri/card*
dev, /dev/nvhost-as-gpu
"""
DRIVERS = """\
lib, /usr/lib/aarch64-linux-gnu/tegra/libcuda.so.1.1

lib, /usr/lib/aarch64-linux-gnu/tegra/libnvrm_gpu.so
lib, /usr/lib/aarch64-linux-gnu/tegra/libnvos.so
lib, /usr/lib/aarch64-linux-gnu/tegra/libgone.so
sym, /usr/lib/aarch64-linux-gnu/libcuda.so
sym, /usr/lib/aarch64-linux-gnu/tegra/libcuda.so.1.1
"""
L4T = """\
dir, /usr/share/glvnd/egl_vendor.d
dir, /usr/lib/aarch64-linux-gnu/tegra/libnvrm_gpu.so
lib, /lib/firmware/tegra23x/gpu.bin
"""
TEGRA = "/usr/lib/aarch64-linux-gnu/tegra"


@pytest.fixture
def jetson(tmp_path):
    root = build_tree(tmp_path / "root", JETSON)
    for name, text in (("devices.csv", DEVICES), ("drivers.csv", DRIVERS), ("l4t.csv", L4T)):
        (root / DIRECTORY / name).write_text(text, encoding="utf-8")
    build_tree(root / "dev", "nvmap\nnvhost-gpu\ndri/card0\ndri/card1\ndri/renderD128\n")
    return root


def look(root):
    return load_tegra_files(root, dev=root / "dev", otherwise=root / "nowhere")


def test_the_lists_are_three_in_one_order_where_their_directory_is(tmp_path):
    """NVIDIA's vector B8: which of the three exist does not matter."""
    here, there = tmp_path / "here", tmp_path / "there"
    build_tree(here, f"{DIRECTORY}/")
    expected = tuple(f"/{DIRECTORY}/{name}" for name in ("devices.csv", "drivers.csv", "l4t.csv"))
    assert find_csv_files(here, otherwise=there) == (here, expected)
    assert find_csv_files(there, otherwise=here) == (here, expected)
    assert find_csv_files(there, otherwise=there) is None


def test_nowhere_a_list_is_said_in_one_line_with_what_to_mount(tmp_path):
    with pytest.raises(HostError, match=r"has no /etc/nvidia-container-runtime/.*; mount the root of the node there"):
        look(tmp_path)


def test_what_the_lists_name_is_found_as_far_as_it_is_there(jetson):
    found = look(jetson)
    assert found.driver.libraries == (
        DriverFile("/lib/firmware/tegra23x/gpu.bin", "/lib/firmware/tegra23x/gpu.bin"),
        DriverFile(f"{TEGRA}/libcuda.so.1.1", f"{TEGRA}/libcuda.so.1.1"),
        DriverFile(f"{TEGRA}/libnvos.so", f"{TEGRA}/libnvos.so.2"),
        DriverFile(f"{TEGRA}/libnvrm_gpu.so", f"{TEGRA}/libnvrm_gpu.so"),
    )
    assert found.driver.configs == (DriverFile("/usr/share/glvnd/egl_vendor.d", "/usr/share/glvnd/egl_vendor.d"),)
    assert found.driver.links == (Link("tegra/libcuda.so", "/usr/lib/aarch64-linux-gnu/libcuda.so"),)
    assert (found.driver.library_dirs, found.driver.cuda_dirs) == ((TEGRA,), (TEGRA,))
    assert found.driver.version == ""


def test_device_nodes_come_as_they_are_there_with_those_that_wildcards_mean(jetson):
    assert look(jetson).nodes == ("/dev/nvmap", "/dev/nvhost-gpu", "/dev/dri/card0", "/dev/dri/card1")


def test_what_is_listed_and_not_there_is_told_and_nothing_else_is_lost(jetson):
    told = look(jetson).driver.missing
    assert told == tuple(
        f"{path}: in the lists of this system, and not there"
        for path in (f"{TEGRA}/libgone.so", f"{TEGRA}/libcuda.so.1.1", f"{TEGRA}/libnvrm_gpu.so")
    )


def test_without_any_of_its_device_nodes_it_says_which_and_where_it_looked(jetson, tmp_path):
    with pytest.raises(HostError) as told:
        load_tegra_files(jetson, dev=tmp_path / "empty")
    assert str(told.value) == (
        f"/{DIRECTORY}: devices.csv there names /dev/nvmap, /dev/nvhost-gpu, /dev/dri/card*, /dev/nvhost-as-gpu, "
        f"and none of them is in {tmp_path / 'empty'}; load the driver of the GPU, "
        "or mount the /dev of the node at /host-dev"
    )
    (jetson / DIRECTORY / "devices.csv").write_text("".join(f"dev, /dev/gpu{number}\n" for number in range(6)))
    with pytest.raises(HostError, match="/dev/gpu3 and 2 more, and none of them is in"):
        look(jetson)
    (jetson / DIRECTORY / "devices.csv").write_text("lib, /usr/lib/libcuda.so\n")
    with pytest.raises(HostError, match=r"no line of devices\.csv there names a device node"):
        look(jetson)


def test_links_that_lead_out_of_the_root_lead_nowhere(jetson, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("mine")
    (jetson / f"{TEGRA}/libgone.so".lstrip("/")).symlink_to("../../../../../secret")
    assert all("libgone" not in file.path for file in look(jetson).driver.libraries)


@pytest.mark.parametrize(
    "line",
    [
        "lib",
        "lib,",
        "lib, usr/lib/x.so",
        "lib, /usr/../etc/shadow",
        "lib, //usr/lib/x.so",
        "bin, /usr/bin/x",
        "dev, /etc/passwd",
        "dir, /",
        ",/x",
    ],
)
def test_a_line_that_means_nothing_is_named_with_its_place(line):
    entries, problems = parse_csv({"l4t.csv": f"lib, /a.so\n{line}\ndir, /b\n"})
    assert entries == (Entry(Kind.FILE, "/a.so"), Entry(Kind.DIRECTORY, "/b"))
    assert problems == (f"l4t.csv:2: {line!r} is none of dev, lib, dir and sym with a path",)


def test_entries_beyond_a_bound_are_left_out_and_said_to_be():
    entries, problems = parse_csv({"l4t.csv": "".join(f"lib, /{number}\n" for number in range(20_000))})
    assert len(entries) == 16_384
    assert problems == ("l4t.csv:16385: only 16384 entries are read, the others are left out",)


@given(st.text(max_size=200))
def test_no_text_is_too_odd_to_be_read(text):
    entries, problems = parse_csv({"devices.csv": text})
    assert len(entries) + len(problems) <= len(text.splitlines())
    assert all(entry.path.startswith("/") and ".." not in entry.path.split("/") for entry in entries)

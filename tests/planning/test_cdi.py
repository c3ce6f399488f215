"""What stands in the CDI specs for a wish and a node, read by the validator as runtimes read it."""

from __future__ import annotations

import json

import pytest

from nvdp.model.cdi import CdiDevice
from nvdp.model.cdi_spec import encode_spec
from nvdp.model.driver_files import DriverFile, DriverFiles, Link
from nvdp.model.platforms import Platform
from nvdp.planning.cdi import build_specs, find_problems
from tests.planning.cdi_values import (
    CAPS,
    CONTROL,
    FOUND,
    GPU_FILE,
    KIND,
    MIG,
    ONE,
    WISH,
    ZERO,
    build,
    devices_of,
    files,
    hooks_of,
    inject,
    node,
    replace,
    with_prior,
)


def test_each_gpu_has_its_nodes_and_those_by_which_it_draws():
    assert devices_of(build()[GPU_FILE])[ZERO] == {
        "deviceNodes": [
            {
                "path": "/dev/nvidia0",
                "type": "c",
                "major": 195,
                "minor": 0,
                "fileMode": 0o666,
                "permissions": "rwm",
                "gid": 0,
            },
            {
                "path": "/dev/dri/card1",
                "type": "c",
                "major": 226,
                "minor": 1,
                "fileMode": 0o660,
                "permissions": "rwm",
                "gid": 44,
            },
            {
                "path": "/dev/dri/renderD129",
                "type": "c",
                "major": 226,
                "minor": 129,
                "fileMode": 0o660,
                "permissions": "rwm",
                "gid": 105,
            },
        ],
        "hooks": [
            {
                "hookName": "createContainer",
                "path": "/usr/bin/nvidia-ctk",
                "args": [
                    "nvidia-ctk",
                    "hook",
                    "create-symlinks",
                    "--link",
                    "../card1::/dev/dri/by-path/pci-0000:41:00.0-card",
                ],
                "env": ["NVIDIA_CTK_DEBUG=false"],
            }
        ],
        "additionalGids": [44, 105],
    }


def test_the_device_all_is_every_device_at_once():
    one, every = inject([ZERO, ONE]), inject(["all"])
    assert every.nodes == one.nodes
    assert every.mounts == one.mounts
    assert (every.env, every.additional_gids) == (one.env, one.additional_gids)


@pytest.mark.parametrize("name", [ZERO, ONE, "all"])
def test_a_container_gets_the_driver_with_each_device_and_no_more_devices_by_its_image(name):
    got = inject([name])

    assert got.env == ["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_CTK_LIBCUDA_DIR=/usr/lib64"]
    assert set(CONTROL) < set(got.nodes)
    read_only = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
    assert {place: (mount["hostPath"], mount["options"]) for place, mount in got.mounts.items()} == {
        "/usr/lib64/libcuda.so.580.65.06": ("/usr/lib64/libcuda.so.580.65.06", read_only),
        "/lib64/libnvidia-ml.so.580.65.06": ("/usr/lib64/libnvidia-ml.so.580.65.06", read_only),
        "/usr/bin/nvidia-smi": ("/usr/bin/nvidia-smi", read_only),
        "/lib/firmware/nvidia/580.65.06/gsp_ga10x.bin": ("/lib/firmware/nvidia/580.65.06/gsp_ga10x.bin", read_only),
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json": ("/usr/share/glvnd/egl_vendor.d/10_nvidia.json", read_only),
        "/run/nvidia-persistenced/socket": (
            "/run/nvidia-persistenced/socket",
            ["nosuid", "nodev", "rbind", "rprivate", "noexec"],
        ),
    }


def test_a_mig_device_has_the_node_of_its_gpu_and_the_two_that_open_its_part():
    wish = replace(WISH, devices=(CdiDevice(names=(MIG, "0:1"), nodes=("/dev/nvidia0", *CAPS)),))
    devices = devices_of(build(wish)[GPU_FILE])

    assert devices[MIG] == devices["0:1"] == devices["all"]
    nodes = {one["path"]: one for one in devices[MIG]["deviceNodes"]}
    assert set(nodes) == {"/dev/nvidia0", *CAPS}
    # One that does not exist yet: its numbers are told, so that no runtime has to find it on the host.
    assert nodes[CAPS[0]] == {"path": CAPS[0], "type": "c", "major": 234, "minor": 12, "permissions": "rwm"}


def test_host_paths_are_those_of_the_host_whatever_this_process_sees():
    wish = replace(
        WISH, driver_root="/run/nvidia/driver/", dev_root="/run/nvidia/driver", container_driver_root="/driver-root"
    )
    document = build(wish)[GPU_FILE]
    mounts = {one["containerPath"]: one["hostPath"] for one in document["containerEdits"]["mounts"]}
    assert mounts["/lib64/libnvidia-ml.so.580.65.06"] == "/run/nvidia/driver/usr/lib64/libnvidia-ml.so.580.65.06"
    nodes = {one["path"]: one.get("hostPath") for one in devices_of(document)[ONE]["deviceNodes"]}
    assert nodes == {"/dev/nvidia1": "/run/nvidia/driver/dev/nvidia1"}
    assert "driver-root" not in json.dumps(document)


@pytest.mark.parametrize(
    ("changes", "version"),
    [
        ({}, "0.7.0"),
        ({"feature_flags": ("no-additional-gids-for-device-nodes",)}, "0.3.0"),
        ({"feature_flags": ("no-additional-gids-for-device-nodes",), "dev_root": "/run/driver"}, "0.5.0"),
        ({"devices": (CdiDevice(names=(ONE, "1"), nodes=("/dev/nvidia1",)),)}, "0.5.0"),
        ({"devices": (CdiDevice(names=(ONE,), nodes=("/dev/nvidia1",)),), "feature_flags": ("unknown",)}, "0.3.0"),
    ],
)
def test_the_version_is_the_lowest_that_has_all_fields(changes, version):
    assert build(replace(WISH, **changes))[GPU_FILE]["cdiVersion"] == version


def test_groups_are_added_for_nodes_that_are_not_for_everybody():
    nodes = {"/dev/nvidia1": node(195, 1, mode=0o664, gid=50), "/dev/nvidiactl": node(195, 255, mode=0o660, gid=51)}
    assert inject([ONE], found=replace(FOUND, nodes=nodes)).additional_gids == [51, 50]


def test_sockets_are_left_out_where_a_flag_says_so():
    wish = replace(WISH, feature_flags=("disable-ipc-discoverer",))
    assert "/run/nvidia-persistenced/socket" not in inject([ZERO], wish).mounts


def test_a_node_that_nobody_could_look_for_is_left_to_the_runtime():
    got = inject([ZERO], found=replace(FOUND, nodes={}))
    assert got.nodes["/dev/nvidia0"] == {"path": "/dev/nvidia0", "permissions": "rwm"}


def test_a_device_with_a_missing_node_is_left_out_and_says_so():
    found = replace(FOUND, nodes={**FOUND.nodes, "/dev/nvidia1": None})
    assert set(devices_of(build(found=found)[GPU_FILE])) == {ZERO, "all"}
    assert "/dev/nvidia1" not in inject(["all"], found=found).nodes
    (problem,) = find_problems(WISH, found)
    assert problem == ("GPU-1111: not in the CDI specs, as this node has no /dev/nvidia1 (nvidia-modprobe creates it)")


def test_a_device_whose_display_node_is_missing_does_without():
    found = replace(FOUND, nodes={**FOUND.nodes, "/dev/dri/card1": None})
    assert "/dev/dri/card1" not in inject([ZERO], found=found).nodes
    assert not find_problems(WISH, found)


@pytest.mark.parametrize(
    ("device", "said"),
    [
        (CdiDevice(names=("GPU-3",), nodes=()), "no device node"),
        (CdiDevice(names=("GPU-3",), nodes=("/dev/nvidiactl",)), "no device node"),
        (CdiDevice(names=("MIG-GPU-3/1/0",), nodes=("/dev/nvidia3",)), "no name"),
        (CdiDevice(names=("GPU-3", ZERO), nodes=("/dev/nvidia3",)), "no name"),
        (CdiDevice(names=(), nodes=("/dev/nvidia3",)), "no name"),
    ],
)
@pytest.mark.invariant(5)
def test_a_device_that_runtimes_would_refuse_does_not_take_the_others_with_it(device, said):
    wish = replace(WISH, devices=(*WISH.devices, device))
    assert build(wish) == build()
    (problem,) = find_problems(wish, FOUND)
    assert said in problem


def test_a_wish_for_nothing_has_no_file():
    assert build(replace(WISH, devices=())) == {}


def test_all_gpus_of_wsl_are_one_device_with_the_driver_store():
    store = "/usr/lib/wsl/drivers/nv_dispi.inf_amd64_1234"
    wish = replace(WISH, platform=Platform.WSL, devices=(CdiDevice(names=("all",), nodes=("/dev/dxg",)),))
    driver = DriverFiles(
        version="",
        library_dirs=(store,),
        libraries=files(f"{store}/libcuda.so.1.1"),
        links=(Link(f"{store}/nvidia-smi", "/usr/bin/nvidia-smi"),),
    )
    document = build(wish, replace(FOUND, driver=driver, control_nodes=(), displays={}))[GPU_FILE]

    assert [one["path"] for one in devices_of(document)["all"]["deviceNodes"]] == ["/dev/dxg"]
    assert [line.split()[2] for line in hooks_of(document["containerEdits"])] == ["create-symlinks", "update-ldcache"]


def test_the_device_of_tegra_has_the_nodes_that_the_drivers_lists_name():
    wish = replace(
        WISH, platform=Platform.TEGRA, devices=(CdiDevice(names=("tegra", "0"), nodes=()),), driver_version=""
    )
    driver = DriverFiles(
        version="",
        library_dirs=("/usr/lib/aarch64-linux-gnu/tegra",),
        libraries=(DriverFile("/usr/lib/aarch64-linux-gnu/tegra/a.so", "/usr/lib/aarch64-linux-gnu/tegra/a.so"),),
    )
    found = replace(
        FOUND, driver=driver, control_nodes=(), displays={}, nodes={}, extra_nodes=("/dev/nvmap", "/dev/nvhost-gpu")
    )
    document = build(wish, found)[GPU_FILE]
    devices = devices_of(document)

    assert [line.split()[2] for line in hooks_of(document["containerEdits"])] == ["update-ldcache"]
    assert set(devices) == {"tegra", "0", "all"}
    assert [one["path"] for one in devices["tegra"]["deviceNodes"]] == ["/dev/nvhost-gpu", "/dev/nvmap"]


@pytest.mark.invariant(8)
@pytest.mark.parametrize("prior", [{}, with_prior().prior])
def test_the_order_in_which_things_were_found_changes_no_byte(prior):
    kept = replace(WISH, keep=frozenset({"GPU-old"}))
    links = (Link("b.so.1", "/usr/lib64/b.so"), *FOUND.driver.links)
    found = replace(FOUND, prior=prior, driver=replace(FOUND.driver, links=links))
    turned = replace(
        found,
        driver=replace(found.driver, links=links[::-1], libraries=found.driver.libraries[::-1]),
        control_nodes=CONTROL[::-1],
    )
    specs = build_specs(kept, found)
    assert encode_spec(build_specs(replace(kept, devices=WISH.devices[::-1]), turned)[GPU_FILE]) == encode_spec(
        specs[GPU_FILE]
    )
    names = [device.name for device in specs[GPU_FILE].devices]
    assert names == sorted(names)


def test_of_two_files_for_one_place_a_container_gets_the_first():
    driver = replace(FOUND.driver, libraries=(DriverFile("/a", "/x"), DriverFile("/a", "/y")))
    assert inject([ZERO], found=replace(FOUND, driver=driver)).mounts["/a"]["hostPath"] == "/x"


def test_the_kind_is_that_of_workloads_and_never_of_management():
    assert {spec["kind"] for spec in build().values()} == {KIND}

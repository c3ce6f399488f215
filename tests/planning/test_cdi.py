"""What stands in the CDI specs for a wish and a node, read by the validator as runtimes read it."""

from __future__ import annotations

import json

import msgspec
import pytest

from nvdp.model.cdi import HOOKS, CdiClass, CdiDevice
from nvdp.model.cdi_spec import SpecDevice, SpecEdits, SpecNode, encode_spec
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
    inject,
    node,
)


def replace(value, **changes):
    return msgspec.structs.replace(value, **changes)


def hooks_of(edits):
    """The hooks as command lines, the program's path left out."""
    return [" ".join(hook["args"]) for hook in edits.get("hooks", [])]


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


def test_hooks_come_in_the_order_in_which_they_build_on_each_other():
    assert hooks_of(build()[GPU_FILE]["containerEdits"]) == [
        "nvidia-ctk hook create-symlinks --link libcuda.so.1::/usr/lib64/libcuda.so",
        "nvidia-ctk hook enable-cuda-compat --host-driver-version=580.65.06",
        "nvidia-ctk hook update-ldcache --folder /usr/lib64 --folder /usr/lib64/vdpau",
        "nvidia-ctk hook disable-device-node-modification",
        "nvidia-ctk hook update-application-profile",
    ]


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("/usr/local/nvidia/toolkit/nvidia-ctk", "nvidia-ctk hook update-ldcache"),
        ("/usr/bin/nvidia-cdi-hook", "nvidia-cdi-hook update-ldcache"),
        ("/opt/my-hook", "my-hook update-ldcache"),
    ],
)
def test_the_hook_program_is_called_by_its_own_name_and_in_its_own_form(path, command):
    edits = build(replace(WISH, hook_path=path))[GPU_FILE]["containerEdits"]
    assert {hook["path"] for hook in edits["hooks"]} == {path}
    assert [line for line in hooks_of(edits) if line.startswith(command)]


def test_hooks_are_left_out_by_name():
    wish = replace(WISH, disabled_hooks=("update-ldcache", "create-symlinks"))
    document = build(wish)[GPU_FILE]
    assert [line.split()[2] for line in hooks_of(document["containerEdits"])] == [
        "enable-cuda-compat",
        "disable-device-node-modification",
        "update-application-profile",
    ]
    assert "hooks" not in devices_of(document)[ZERO]


def test_every_hook_that_can_be_left_out_is_there_but_the_one_that_is_off_by_default():
    lines = hooks_of(build()[GPU_FILE]["containerEdits"])
    assert {line.split()[2] for line in lines} == {*HOOKS} - {"chmod"}


def test_all_hooks_are_left_out_at_once():
    assert not inject([ZERO, ONE, "all"], replace(WISH, disabled_hooks=("all",))).hooks


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


@pytest.mark.parametrize(
    ("cdi_class", "nodes", "version"),
    [
        (CdiClass.GDRCOPY, ("/dev/gdrdrv",), "0.3.0"),
        (CdiClass.MOFED, ("/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"), "0.3.0"),
        (CdiClass.GDS, ("/dev/nvidia-fs0", "/dev/nvidia-fs1"), "0.3.0"),
    ],
)
def test_a_feature_is_a_device_all_of_a_class_of_its_own(cdi_class, nodes, version):
    wish = replace(WISH, features=(cdi_class,))
    document = build(wish, replace(FOUND, features={cdi_class: nodes}))[cdi_class.file_name]

    assert document["kind"] == cdi_class.kind
    assert document["cdiVersion"] == version
    assert document["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert {one["path"] for one in devices_of(document)["all"]["deviceNodes"]} == set(nodes)


def test_gds_brings_what_there_is_of_its_files():
    wish = replace(WISH, features=(CdiClass.GDS,), driver_root="/run/driver")
    found = replace(FOUND, features={CdiClass.GDS: ("/dev/nvidia-fs0",)}, gds_files=("/run/udev", "/etc/cufile.json"))
    edits = devices_of(build(wish, found)[CdiClass.GDS.file_name])["all"]
    assert [(one["hostPath"], one["containerPath"]) for one in edits["mounts"]] == [
        ("/run/driver/etc/cufile.json", "/etc/cufile.json"),
        ("/run/udev", "/run/udev"),
    ]


def test_a_feature_without_nodes_has_no_file_and_says_so():
    wish = replace(WISH, features=(CdiClass.GDS,))
    found = replace(FOUND, gds_files=("/run/udev",))
    assert set(build(wish, found)) == {GPU_FILE}
    assert find_problems(wish, found) == ("gds: not in the CDI specs, as none of its device nodes is on this node",)


def test_a_feature_that_is_off_has_no_file_though_its_nodes_are_there():
    assert set(build(found=replace(FOUND, features={CdiClass.MOFED: ("/dev/infiniband/rdma_cm",)}))) == {GPU_FILE}


def test_an_imex_channel_is_a_device_named_by_its_number():
    path = "/dev/nvidia-caps-imex-channels/channel0"
    wish = replace(WISH, imex_channels=(0,))
    document = build(wish, replace(FOUND, nodes={path: node(506, 0)}))[CdiClass.IMEX_CHANNEL.file_name]

    assert document["cdiVersion"] == "0.5.0"
    assert [one["path"] for one in devices_of(document)["0"]["deviceNodes"]] == [path]


def test_an_imex_channel_without_its_node_has_no_file_and_says_so():
    path = "/dev/nvidia-caps-imex-channels/channel0"
    wish, found = replace(WISH, imex_channels=(0,)), replace(FOUND, nodes={path: None})
    assert CdiClass.IMEX_CHANNEL.file_name not in build(wish, found)
    assert any(path in problem for problem in find_problems(wish, found))


OLD = SpecDevice(name="GPU-old", container_edits=SpecEdits(device_nodes=(SpecNode(path="/dev/nvidia7", uid=3),)))


def with_prior(found=FOUND, *, cdi_class=CdiClass.GPU, extra=(OLD,), wish=WISH):
    """The node with the specs of ``wish`` on disk, and more devices in them."""
    specs = build_specs(wish, found)
    spec = specs[cdi_class.file_name]
    return replace(found, prior={cdi_class: replace(spec, devices=(*spec.devices, *extra))})


@pytest.mark.requirement(46)
def test_what_pods_may_start_with_again_stays_as_it_was_written():
    wish = replace(WISH, keep=frozenset({"GPU-old", "GPU-never"}))
    devices = devices_of(build(wish, with_prior())[GPU_FILE])

    assert devices["GPU-old"] == {"deviceNodes": [{"path": "/dev/nvidia7", "uid": 3}]}
    assert "/dev/nvidia7" not in inject(["all"], wish, with_prior()).nodes
    assert "GPU-never" not in devices


@pytest.mark.requirement(46)
def test_what_pods_may_start_with_again_stays_though_nothing_else_is_left():
    wish = replace(WISH, devices=(), keep=frozenset({"GPU-old"}))
    document = build(wish, with_prior())[GPU_FILE]
    assert set(devices_of(document)) == {"GPU-old"}
    assert document["containerEdits"] == build()[GPU_FILE]["containerEdits"]


def test_what_no_pod_may_start_with_goes():
    assert "GPU-old" not in devices_of(build(found=with_prior())[GPU_FILE])


@pytest.mark.requirement(46)
def test_a_device_that_cannot_be_written_now_stays_as_it_was_but_is_not_among_all():
    before = with_prior(extra=())
    after = replace(before, nodes={**FOUND.nodes, "/dev/nvidia1": None})
    assert devices_of(build(found=after)[GPU_FILE])[ONE] == devices_of(build()[GPU_FILE])[ONE]
    assert "/dev/nvidia1" not in inject(["all"], found=after).nodes
    assert find_problems(WISH, after)


def test_a_device_that_is_there_again_is_written_anew():
    prior = with_prior(extra=(SpecDevice(name="GPU-1", container_edits=OLD.container_edits),))
    back = replace(WISH, devices=(CdiDevice(names=("GPU-1",), nodes=("/dev/nvidia1",)),))
    (one,) = devices_of(build(back, prior)[GPU_FILE])["GPU-1"]["deviceNodes"]
    assert one["path"] == "/dev/nvidia1"


@pytest.mark.requirement(46)
def test_the_file_of_a_feature_stays_while_pods_may_start_with_it():
    on = replace(WISH, features=(CdiClass.GDRCOPY,))
    found = with_prior(
        replace(FOUND, features={CdiClass.GDRCOPY: ("/dev/gdrdrv",)}), cdi_class=CdiClass.GDRCOPY, extra=(), wish=on
    )
    held = build(replace(WISH, keep_classes=frozenset({CdiClass.GDRCOPY})), found)
    assert held[CdiClass.GDRCOPY.file_name] == build(on, found)[CdiClass.GDRCOPY.file_name]
    assert CdiClass.GDRCOPY.file_name not in build(WISH, found)


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


@pytest.mark.parametrize(("told", "version"), [("580.65.06", "580.65.06"), ("", "550.54.15")])
def test_the_drivers_version_is_what_the_driver_says_and_else_that_of_its_files(told, version):
    found = replace(FOUND, driver=replace(FOUND.driver, version="550.54.15"))
    lines = hooks_of(build(replace(WISH, driver_version=told), found)[GPU_FILE]["containerEdits"])
    assert f"nvidia-ctk hook enable-cuda-compat --host-driver-version={version}" in lines


def test_the_kind_is_that_of_workloads_and_never_of_management():
    assert {spec["kind"] for spec in build().values()} == {KIND}

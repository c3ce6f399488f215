"""Which of a driver's files a container gets, from driver roots of plain files laid out as five systems do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from nvdp.errors import HostError
from nvdp.host.driver_files import load_driver_files
from nvdp.model.driver_files import DriverFile, Link
from tests.host.layouts import LAYOUTS, build_tree, load_expected

VERSION = "570.133.20"
SMALL = f"""
usr/lib64/libcuda.so.{VERSION}
usr/lib64/libnvidia-ml.so.{VERSION}
usr/lib64/libnvidia-ptxjitcompiler.so.{VERSION}
usr/bin/nvidia-smi*
lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin
"""


def look(root, **kwargs):
    return load_driver_files(root, **{"version_hint": "", "kernel": "6.8.0-generic", "sys": root / "sys", **kwargs})


def render(files) -> str:
    """As the goldens are written: a path, and after an arrow the file below the root where that is another."""

    def line(file) -> str:
        return file.path if file.path == file.source else f"{file.path} <- {file.source}"

    parts = {
        "version": [files.version],
        "library_dirs": files.library_dirs,
        "cuda_dirs": files.cuda_dirs,
        "libraries": map(line, files.libraries),
        "binaries": map(line, files.binaries),
        "firmware": map(line, files.firmware),
        "sockets": map(line, files.sockets),
        "configs": map(line, files.configs),
        "links": (f"{link.link} -> {link.target}" for link in files.links),
        "missing": files.missing,
    }
    return "".join(f"{name}:\n" + "".join(f"  {entry}\n" for entry in entries) for name, entries in parts.items())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_driver_of_each_known_system_is_found_as_written_down(tmp_path, layout):
    assert render(look(build_tree(tmp_path, layout))) == load_expected(layout)


@pytest.mark.parametrize("layout", ["ubuntu", "rhel"])
def test_of_a_root_of_which_only_usr_is_seen_all_is_found_but_sockets_and_what_is_in_etc(tmp_path, layout):
    whole = build_tree(tmp_path / "whole", layout)
    part = tmp_path / "part"
    part.mkdir()
    (whole / "usr").rename(part / "usr")
    seen = look(part)
    text = load_expected(layout)
    for name in ("library_dirs", "libraries", "binaries", "firmware", "links"):
        assert section(render(seen), name) == section(text, name)
    assert set(section(text, "configs")) - set(section(render(seen), "configs")) == {"  /etc/OpenCL/vendors/nvidia.icd"}
    assert seen.sockets == ()


def section(text, name):
    return re.search(rf"^{name}:\n((?:  .*\n)*)", text, re.MULTILINE)[1].splitlines()


# What a container needs for CUDA and for graphics: the list of the plugin's behaviour, section 3.2.
EVERYWHERE = (
    "*/libcuda.so.*.*",
    "*/libnvidia-ml.so.*.*",
    "*/libnvidia-ptxjitcompiler.so.*.*",
    "*/libEGL_nvidia.so.*.*",
    "*/nvidia-smi",
    "*/nvidia-debugdump",
    "*/nvidia-persistenced",
    "*/nvidia-cuda-mps-control",
    "*/nvidia-cuda-mps-server",
    "/lib/firmware/nvidia/*/gsp*.bin",
    "/etc/vulkan/icd.d/nvidia_icd*.json",
)
INSTALLED = (
    "*/libnvidia-nvvm70.so.*",
    "*/vdpau/libvdpau_nvidia.so.*",
    "*/libnvidia-egl-gbm.so.*.*",
    "*/libnvidia-egl-wayland.so.*.*",
    "*/nvidia_drv.so",
    "*/libglxserver_nvidia.so.*",
    "/etc/OpenCL/vendors/nvidia.icd",
    "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    "/usr/share/egl/egl_external_platform.d/*gbm.json",
    "/usr/share/egl/egl_external_platform.d/*wayland.json",
    "/usr/share/nvidia/nvoptix.bin",
    "/usr/share/X11/xorg.conf.d/*.conf",
    "/etc/vulkan/implicit_layer.d/nvidia_layers.json",
    "/run/nvidia-persistenced/socket",
)
FABRIC = ("/run/nvidia-fabricmanager/socket", "*/nvidia-imex", "*/nvidia-imex-ctl")
NEEDED = {
    "ubuntu": EVERYWHERE + INSTALLED,
    "rhel": (*EVERYWHERE, *INSTALLED, *FABRIC, "/tmp/nvidia-mps"),
    "cos": EVERYWHERE,
    "talos": (*EVERYWHERE, "/usr/local/share/nvidia/nvoptix.bin", "/run/nvidia-persistenced/socket"),
    "operator": EVERYWHERE + FABRIC,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_that_the_specification_names_is_found_on_each_system(tmp_path, layout):
    files = look(build_tree(tmp_path, layout))
    found = [
        f.path for part in (files.libraries, files.binaries, files.firmware, files.sockets, files.configs) for f in part
    ]
    assert [pattern for pattern in NEEDED[layout] if not any(fnmatchcase(path, pattern) for path in found)] == []
    assert files.missing == ()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_two_mounts_have_the_same_place_and_every_source_is_a_real_file_of_the_root(tmp_path, layout):
    files = look(build_tree(tmp_path, layout))
    found = [*files.libraries, *files.binaries, *files.firmware, *files.sockets, *files.configs]
    assert len({file.path for file in found}) == len(found)
    for file in found:
        assert os.path.realpath(f"{tmp_path}{file.source}") == f"{tmp_path}{file.source}", "no link in it"
        assert Path(f"{tmp_path}{file.source}").exists()


def test_without_nvml_the_version_is_that_of_the_library_that_programs_load(tmp_path):
    build_tree(tmp_path, "usr/lib64/libcuda.so.580.65.06\nusr/lib64/libcuda.so.1 -> libcuda.so.570.133.20" + SMALL)
    assert look(tmp_path).version == VERSION


def test_without_that_link_the_newest_version_counts(tmp_path):
    build_tree(tmp_path, "usr/lib64/libcuda.so.99.1\nusr/lib64/libcuda.so.570.9\nusr/lib64/libcuda.so.570.86.10")
    assert look(tmp_path).version == "570.86.10"


def test_the_version_that_nvml_reports_is_looked_for(tmp_path):
    build_tree(tmp_path, "usr/lib64/libcuda.so.580.65.06\n" + SMALL)
    assert look(tmp_path, version_hint=VERSION).version == VERSION


def test_libraries_of_another_version_than_the_loaded_driver_are_an_error_in_one_line(tmp_path):
    build_tree(tmp_path, SMALL)
    with pytest.raises(HostError, match=r"the loaded driver is 580\.65\.06, but .* are of 570\.133\.20: ") as caught:
        look(tmp_path, version_hint="580.65.06")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content", ["usr/lib64/libc.so.6\n", "usr/lib64/libcuda.so.1\n", "usr/lib64/libcuda.so.570.1/\n"]
)
def test_a_root_without_a_driver_is_an_error_that_says_where_was_looked_and_what_to_set(tmp_path, content):
    build_tree(tmp_path, content)
    with pytest.raises(HostError) as caught:
        look(tmp_path)
    text = str(caught.value)
    assert text.startswith(f"{tmp_path}: no libcuda.so.<version> or libnvidia-ml.so.<version> in /usr/lib64;")
    assert "flags.nvidiaDriverRoot and flags.plugin.containerDriverRoot" in text
    assert "\n" not in text


def test_a_root_that_is_not_there_is_an_error_that_says_so(tmp_path):
    with pytest.raises(HostError, match=r"/absent: is no directory with a driver in it; mount the driver root there"):
        look(tmp_path / "absent")
    (tmp_path / "file").touch()
    with pytest.raises(HostError, match="is no directory"):
        look(tmp_path / "file")


def test_a_driver_without_cuda_is_found_by_its_nvml_library(tmp_path):
    build_tree(tmp_path, f"usr/lib64/libnvidia-ml.so.{VERSION}\nusr/bin/nvidia-smi*\n")
    files = look(tmp_path)
    assert (files.version, files.cuda_dirs) == (VERSION, ("/usr/lib64",))
    assert [text.partition(":")[0] for text in files.missing] == [
        f"libcuda.so.{VERSION}",
        f"libnvidia-ptxjitcompiler.so.{VERSION}",
        f"nvidia/{VERSION}/gsp*.bin",
    ]


@pytest.mark.parametrize(
    ("directory", "configuration"),
    [
        ("/opt/nvidia/lib64", ""),
        ("/usr/local/glibc/usr/lib", ""),
        ("/usr/lib/x86_64-linux-gnu/nvidia/current", ""),
        ("/srv/gpu/libs", "etc/ld.so.conf := /srv/gpu/libs"),
        ("/srv/gpu/libs", "etc/ld.so.conf.d/nvidia.conf := /srv/gpu/libs # by hand"),
        # A runtime refuses a spec with such a path in it, and all devices with it.
        ("/srv/gpu/libs", "etc/ld.so.conf := /srv//gpu/libs"),
        ("/srv/gpu/libs", "etc/ld.so.conf := //srv/gpu/./libs/"),
        ("/srv/gpu/libs", "etc/ld.so.conf := /srv/gpu/bin/../libs\nsrv/gpu/bin/"),
    ],
)
def test_libraries_outside_the_standard_directories_are_found(tmp_path, directory, configuration):
    build_tree(tmp_path, f"{directory.lstrip('/')}/libcuda.so.{VERSION}\n{configuration}\n")
    assert look(tmp_path).cuda_dirs == (directory,)


def test_a_directory_of_libraries_can_be_named(tmp_path):
    build_tree(tmp_path, f"nix/driver/lib/libcuda.so.{VERSION}\n")
    assert look(tmp_path, library_dirs=("/nix/driver/lib",)).library_dirs == ("/nix/driver/lib",)


def test_a_directory_that_is_a_link_to_another_gives_each_library_once(tmp_path):
    build_tree(tmp_path, SMALL + "lib64 -> usr/lib64\nusr/lib/x86_64-linux-gnu -> /usr/lib64\n")
    files = look(tmp_path)
    assert len(files.libraries) == 3
    assert files.library_dirs == ("/usr/lib64",)


def test_a_library_behind_links_keeps_the_name_by_which_it_was_found_and_is_taken_from_where_it_lies(tmp_path):
    name = f"libnvidia-cfg.so.{VERSION}"
    build_tree(
        tmp_path,
        SMALL
        + f"etc/alternatives/glx--{name} -> /usr/lib/nvidia/current/{name}\nusr/lib/nvidia/current/{name}\n"
        + f"usr/lib64/{name} -> /etc/alternatives/glx--{name}\n",
    )
    assert DriverFile(f"/usr/lib64/{name}", f"/usr/lib/nvidia/current/{name}") in look(tmp_path).libraries


def test_a_library_that_two_searched_directories_have_by_a_link_is_given_once(tmp_path):
    name, current = f"libcuda.so.{VERSION}", "usr/lib/x86_64-linux-gnu/nvidia/current"
    build_tree(tmp_path, f"{current}/{name}\nusr/lib/x86_64-linux-gnu/{name} -> /{current}/{name}\n")
    assert look(tmp_path).libraries == (DriverFile(f"/usr/lib/x86_64-linux-gnu/{name}", f"/{current}/{name}"),)


def test_a_link_that_leads_nowhere_out_of_the_root_or_in_a_circle_is_no_library(tmp_path):
    build_tree(
        tmp_path,
        SMALL
        + f"usr/lib64/libnvidia-a.so.{VERSION} -> libgone.so\n"
        + f"usr/lib64/libnvidia-b.so.{VERSION} -> {tmp_path}/usr/lib64/libcuda.so.{VERSION}\n"
        + f"usr/lib64/libnvidia-c.so.{VERSION} -> libnvidia-c.so.{VERSION}\n",
    )
    files = look(tmp_path)
    assert len(files.libraries) == 3
    assert files.missing == (f"/usr/lib64/libnvidia-c.so.{VERSION}: leads through more than 40 symbolic links",)


def test_libraries_for_32_bit_programs_are_left_out(tmp_path):
    build_tree(
        tmp_path, SMALL + f"usr/lib/i386-linux-gnu/libcuda.so.{VERSION}\netc/ld.so.conf := /usr/lib/i386-linux-gnu\n"
    )
    for directory, bits in (("usr/lib", b"\x01"), ("opt/nvidia/lib64", b"\x02")):
        (tmp_path / directory).mkdir(parents=True, exist_ok=True)
        (tmp_path / directory / f"libcuda.so.{VERSION}").write_bytes(b"\x7fELF" + bits + b"rest")
    assert look(tmp_path).cuda_dirs == ("/opt/nvidia/lib64", "/usr/lib64")


def test_a_binary_is_a_file_that_may_be_run_the_first_in_the_usual_places(tmp_path):
    build_tree(
        tmp_path,
        SMALL.replace("nvidia-smi*", "nvidia-smi")
        + "bin/nvidia-smi/\nusr/local/bin/nvidia-smi*\nopt/bin/nvidia-smi*\nopt/bin/nvidia-debugdump*\n",
    )
    files = look(tmp_path)
    assert [file.path for file in files.binaries] == ["/opt/bin/nvidia-debugdump", "/usr/local/bin/nvidia-smi"]


def test_a_driver_without_a_program_that_people_look_for_says_so(tmp_path):
    build_tree(tmp_path, SMALL.replace("usr/bin/nvidia-smi*", ""))
    assert [text for text in look(tmp_path).missing if re.match("nvidia-smi: in none of /usr/bin, /bin, ", text)]


GSP = f"nvidia/{VERSION}/gsp_ga10x.bin"


@pytest.mark.parametrize(
    ("told", "driver_root", "place"),
    [
        ("", "/", "/lib/firmware/6.8.0-generic"),
        ("", "/", "/lib/firmware/updates"),
        ("", "/", "/lib/firmware/updates/6.8.0-generic"),
        ("/var/lib/firmware", "/", "/var/lib/firmware"),
        ("/run/nvidia/driver/fw", "/run/nvidia/driver", "/fw"),
        ("/run/nvidia/driver/fw", "/run/nvidia/driver/", "/fw"),
        ("/run/nvidia/driver2/fw", "/run/nvidia/driver", "/run/nvidia/driver2/fw"),
    ],
)
def test_firmware_is_taken_from_where_the_kernel_loads_it(tmp_path, told, driver_root, place):
    build_tree(tmp_path, SMALL + f"{place.lstrip('/')}/{GSP}\n")
    build_tree(tmp_path, f"sys/module/firmware_class/parameters/path := {told or ' '}\n")
    assert look(tmp_path, driver_root=driver_root).firmware == (DriverFile(f"/lib/firmware/{GSP}", f"{place}/{GSP}"),)


def test_a_socket_under_var_run_is_found_where_that_is_no_link(tmp_path):
    build_tree(tmp_path, SMALL + "var/run/nvidia-persistenced/socket=\n")
    assert [file.path for file in look(tmp_path).sockets] == ["/var/run/nvidia-persistenced/socket"]


def test_links_are_made_for_the_libraries_that_are_there(tmp_path):
    build_tree(tmp_path, SMALL)
    assert look(tmp_path).links == (Link("libcuda.so.1", "/usr/lib64/libcuda.so"),)


def test_a_driver_that_was_replaced_is_found_as_it_is_now(tmp_path):
    build_tree(tmp_path, SMALL)
    before = look(tmp_path)
    for path in (tmp_path / "usr/lib64").iterdir():
        path.rename(path.with_name(path.name.replace(VERSION, "580.65.06")))
    assert (before.version, look(tmp_path).version) == (VERSION, "580.65.06")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_what_may_not_be_looked_at_is_missing():
    asking = (
        "import os, sys; from pathlib import Path; from nvdp.host.driver_files import load_driver_files;"
        "os.setresuid(65534, 65534, 65534);"
        "files = load_driver_files(Path(sys.argv[1]), version_hint='');"
        "print(len(files.libraries), *files.missing, sep='\\n')"
    )
    with TemporaryDirectory(prefix="nv", dir="/tmp") as directory:
        root = build_tree(Path(directory), SMALL)
        library = root / f"usr/lib64/libnvidia-ptxjitcompiler.so.{VERSION}"
        for path, mode in ((root, 0o755), (library, 0), (root / "lib/firmware", 0)):
            path.chmod(mode)
        command = [sys.executable, "-c", asking, directory]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.splitlines()[0] == "2"
    assert f"{library}: cannot be read: Permission denied" in done.stdout
    assert f"/lib/firmware/nvidia/{VERSION}: cannot be looked at: Permission denied" in done.stdout


def test_a_directory_with_absurdly_many_libraries_gives_as_many_as_a_spec_can_bear(tmp_path):
    build_tree(tmp_path, SMALL + "".join(f"usr/lib64/libnvidia-x{n}.so.{VERSION}\n" for n in range(1100)))
    assert len(look(tmp_path).libraries) == 1024

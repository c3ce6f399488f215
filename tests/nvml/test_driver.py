"""Finding and opening the driver's library, and what is said when that fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvdp.errors import NvmlError
from nvdp.nvml.driver import LIBRARY_DIRECTORIES, DriverLibrary, resolve_under
from nvdp.nvml.frames import Refused, Scanned
from nvdp.nvml.kinds import NvmlErrorKind


def test_nothing_found_tells_where_it_was_searched_and_what_to_set(tmp_path) -> None:
    driver = DriverLibrary(str(tmp_path), dev=str(tmp_path))
    with pytest.raises(NvmlError) as caught:
        driver.install()
    assert str(caught.value) == (
        f"libnvidia-ml.so.1 not found under {tmp_path} (searched 7 directories) nor by the loader; "
        "/dev/nvidiactl is missing; set NVIDIA_DRIVER_ROOT or runtimeClassName: nvidia"
    )
    assert caught.value.kind == "LibraryNotFound"


def test_the_control_node_is_mentioned_when_it_exists(tmp_path) -> None:
    (tmp_path / "nvidiactl").touch()
    with pytest.raises(NvmlError, match="/dev/nvidiactl exists"):
        DriverLibrary(str(tmp_path), dev=str(tmp_path)).install()


def test_a_candidate_that_cannot_be_loaded_is_named_and_is_not_the_end(fake_driver, asking) -> None:
    broken = fake_driver.root / "usr/lib64/libnvidia-ml.so.1"
    broken.write_bytes(b"\x7fELF\x01 of another kind of machine, or so it says" * 10)
    good = fake_driver.root / "lib/x86_64-linux-gnu"
    good.mkdir(parents=True)
    fake = asking(driver_root=str(fake_driver.root))
    refused = fake.scan()
    assert isinstance(refused, Refused)
    assert refused.text.startswith(f"libnvidia-ml.so.1 cannot be used ({broken}: ")
    fake_driver.install()
    fake_driver.library.rename(good / "libnvidia-ml.so.1")
    (fake_driver.directory / "fake.conf").rename(good / "fake.conf")
    broken.write_bytes(b"broken still")
    scanned = fake.scan()
    assert isinstance(scanned, Scanned)
    assert len(scanned.inventory.gpus) == 4


def test_a_file_that_is_some_other_library_is_not_taken_for_nvml(tmp_path, asking) -> None:
    directory = tmp_path / "usr/lib64"
    directory.mkdir(parents=True)
    maps = Path("/proc/self/maps").read_text().splitlines()
    other = next(line.split()[-1] for line in maps if "/libm.so" in line or "/libc.so" in line)
    (directory / "libnvidia-ml.so.1").symlink_to("libother.so")
    (directory / "libother.so").write_bytes(Path(other).read_bytes())
    refused = asking(driver_root=str(tmp_path)).scan()
    assert isinstance(refused, Refused)
    assert "not an NVML library" in refused.text


@pytest.mark.parametrize("directory", LIBRARY_DIRECTORIES)
def test_every_directory_of_the_driver_root_is_searched(tmp_path, fake_driver, asking, directory) -> None:
    fake_driver.install()
    root = tmp_path / "other"
    (root / directory).mkdir(parents=True)
    fake_driver.library.rename(root / directory / "libnvidia-ml.so.1")
    (root / directory / "fake.conf").write_text("cards 7\n")
    scanned = asking(driver_root=str(root)).scan()
    assert isinstance(scanned, Scanned)
    assert len(scanned.inventory.gpus) == 1


def test_absolute_links_stay_inside_the_driver_root(fake_driver, asking) -> None:
    fake_driver.install()
    elsewhere = fake_driver.root / "usr/lib/nvidia/current"
    elsewhere.mkdir(parents=True)
    fake_driver.library.rename(elsewhere / "libnvidia-ml.so.535.1")
    (elsewhere / "fake.conf").write_text("cards 1 2\n")
    (elsewhere / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.535.1")
    (fake_driver.root / "etc/alternatives").mkdir(parents=True)
    (fake_driver.root / "etc/alternatives/nvml").symlink_to("/usr/lib/nvidia/current/libnvidia-ml.so.1")
    fake_driver.library.symlink_to("/etc/alternatives/nvml")
    scanned = asking(driver_root=str(fake_driver.root)).scan()
    assert isinstance(scanned, Scanned)
    assert len(scanned.inventory.gpus) == 2


def test_the_loaders_own_path_is_the_last_resort(fake_driver, asking, tmp_path, monkeypatch) -> None:
    fake_driver.install()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_driver.directory))
    scanned = asking(driver_root=str(tmp_path / "nowhere")).scan()
    assert isinstance(scanned, Scanned)
    assert len(scanned.inventory.gpus) == 4


@pytest.mark.parametrize(
    ("link", "target", "found"),
    [
        ("a", "/b", "b"),
        ("a", "../../../b", "b"),
        ("a", "./c/../b", "b"),
        ("a", "nothing", None),
        ("a", "a", None),
    ],
)
def test_links_are_followed_as_if_the_root_were_the_root(tmp_path, link, target, found) -> None:
    (tmp_path / "b").touch()
    (tmp_path / "c").mkdir()
    (tmp_path / link).symlink_to(target)
    assert resolve_under(str(tmp_path), link) == (found and str(tmp_path / found))


def test_a_mismatch_names_both_versions(fake_driver, asking) -> None:
    fake_driver.install()
    fake_driver.library.rename(fake_driver.directory / "libnvidia-ml.so.580.65.06")
    fake_driver.library.symlink_to("libnvidia-ml.so.580.65.06")
    fake_driver.configure("cards 0", "fail nvmlInit 18")
    refused = asking(driver_root=str(fake_driver.root)).scan()
    assert isinstance(refused, Refused)
    assert refused.text == (
        "nvmlInit: kernel module and library are of different versions; "
        "kernel module unknown, library 580.65.06; reload the module or reboot the node"
    )


@pytest.mark.parametrize(
    "text",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.172.08  Tue Jul  8 18:30:48 UTC 2025\nGCC version: 12.2.0",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.172.08  Release Build  (dvs-builder@U22)",
    ],
)
def test_the_kernel_modules_version_is_read_from_proc(tmp_path, text) -> None:
    (tmp_path / "driver/nvidia").mkdir(parents=True)
    (tmp_path / "driver/nvidia/version").write_text(text)
    explained = DriverLibrary("/", proc=str(tmp_path)).explain(NvmlErrorKind.LIB_RM_VERSION_MISMATCH)
    assert explained.startswith("kernel module 570.172.08, library unknown")


@pytest.mark.parametrize("kind", list(NvmlErrorKind))
def test_every_kind_can_be_explained(tmp_path, kind) -> None:
    assert "\n" not in DriverLibrary("/", dev=str(tmp_path), proc=str(tmp_path)).explain(kind)

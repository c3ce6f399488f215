"""What /sys tells for labels (vectors C8 and C10): of PCI functions, vGPUs, and the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.host.traits import load_traits
from nvdp.host.vgpu import parse_vgpu
from nvdp.model.traits import Traits, Vgpu

NONE = Vgpu(present=False)
GUEST = Vgpu(present=True, host_driver_version="460.16", host_driver_branch="r460_00")


def build_record(number: int, content: bytes) -> bytes:
    return bytes([number, len(content) + 2]) + content


def build_driver_record(version: bytes = b"460.16", branch: bytes = b"r460_00") -> bytes:
    return build_record(0, version.ljust(10, b"\0") + branch.ljust(10, b"\0"))


def build_space(*capabilities: tuple[int, bytes], first: int = 0x60, loop: bool = False) -> bytearray:
    """A configuration space of an NVIDIA function with these capabilities, each a number and its content.

    The content follows number, pointer and, which vendor-specific ones have, length. With ``loop`` the last leads back
    to the first.
    """
    space = bytearray(256)
    space[:2] = (0x10DE).to_bytes(2, "little")
    if capabilities:
        space[0x06] = 0x10
        space[0x34] = first
    at = first
    for place, (number, content) in enumerate(capabilities):
        end = at + 3 + len(content)
        following = -(-end // 4) * 4
        is_last = place == len(capabilities) - 1
        space[at : at + 3] = bytes([number, (first if loop else 0) if is_last else following, 3 + len(content)])
        space[at + 3 : end] = content
        at = following
    assert len(space) == 256
    return space


POWER = (0x01, bytes(5))
PASSTHROUGH = (0x09, bytes(17))
VGPU = (0x09, b"VF" + build_driver_record())


def test_c10_passed_through_and_virtual():
    """The lengths of the vectors: 20 of a capability that is something else's, 27 of one of a vGPU."""
    assert build_space(PASSTHROUGH)[0x62] == 20
    assert build_space(VGPU)[0x62] == 27
    assert parse_vgpu(bytes(build_space(POWER, PASSTHROUGH))) == NONE
    assert parse_vgpu(bytes(build_space(POWER, VGPU))) == GUEST


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (build_space(), NONE),
        (build_space(POWER, loop=True), NONE),
        (build_space(PASSTHROUGH, VGPU), GUEST),
        (build_space((0x09, b"VF" + build_record(7, b"other") + build_driver_record())), GUEST),
        (build_space((0x09, b"VF" + b"\x07\x00" + build_driver_record())), Vgpu(present=True)),
        (build_space((0x09, b"VF" + b"\x07\xff")), Vgpu(present=True)),
        (build_space((0x09, b"VF")), Vgpu(present=True)),
        (build_space(POWER, first=0xF8), NONE),
        (b"\xff" * 256, None),
        (b"", None),
        (build_space(POWER, VGPU)[:64], None),
        (build_space(POWER, VGPU)[:0x70], None),
        (build_space()[:64], NONE),
    ],
    ids=[
        "none",
        "loop",
        "second",
        "later record",
        "record without length",
        "record beyond the end",
        "no record",
        "at the end",
        "lost",
        "empty",
        "unprivileged",
        "cut",
        "unprivileged and none",
    ],
)
def test_configuration_spaces_of_all_kinds(space, expected):
    assert parse_vgpu(bytes(space)) == expected


@given(st.binary(max_size=300), st.integers(min_value=0, max_value=255), st.booleans())
def test_whatever_is_in_a_space_it_ends(noise, first, signed):
    space = bytearray(noise.ljust(256, b"\x09"))
    space[0x06], space[0x34] = 0x10, first
    if signed:
        space[first & ~3 : (first & ~3) + 5] = b"\x09\x00\xffVF"
    found = parse_vgpu(bytes(space))
    assert found is None or isinstance(found.present, bool)


class Pci:
    """A tree like /sys/bus/pci/devices."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._devices = root / "bus/pci/devices"
        self._devices.mkdir(parents=True)

    def add(self, address: str, *, vendor: str = "0x10de", kind: str = "0x030200", space: bytes | None = None) -> None:
        real = self.root / "devices" / address
        real.mkdir(parents=True)
        (real / "vendor").write_text(f"{vendor}\n")
        (real / "class").write_text(f"{kind}\n")
        if space is not None:
            (real / "config").write_bytes(bytes(space))
        (self._devices / address).symlink_to(real)


@pytest.fixture
def pci(tmp_path) -> Pci:
    return Pci(tmp_path)


def test_functions_of_nvidia_are_known_by_address_and_class(pci):
    pci.add("0000:1b:00.0", space=build_space())
    pci.add("10000:01:00.1", kind="0x030000", space=build_space())
    pci.add("0000:00:1f.0", vendor="0x8086", space=build_space(VGPU))
    assert load_traits(None, sys=pci.root) == Traits(
        pci_classes={"0000:1b:00.0": 0x030200, "10000:01:00.1": 0x030000}, vgpu=NONE
    )


def test_a_vgpu_is_found_whatever_else_cannot_be_read(pci):
    pci.add("0000:1b:00.0")
    pci.add("0000:1c:00.0", space=build_space(VGPU))
    assert load_traits(None, sys=pci.root).vgpu == GUEST


def test_whether_there_is_a_vgpu_is_not_known_where_one_function_cannot_be_read_whole(pci):
    pci.add("0000:1b:00.0", space=build_space())
    pci.add("0000:1c:00.0", space=build_space(POWER)[:64])
    assert load_traits(None, sys=pci.root).vgpu is None


def test_what_makes_no_sense_is_not_known(pci):
    pci.add("0000:1b:00.0", kind="display", space=build_space())
    pci.add("0000:1c:00.0", vendor="ten")
    assert load_traits(None, sys=pci.root) == Traits(vgpu=NONE)


def test_a_node_without_pci_is_known_by_nothing(tmp_path):
    assert load_traits(tmp_path / "missing", sys=tmp_path) == Traits()


@pytest.mark.parametrize(
    ("content", "machine"),
    [
        (b"PowerEdge XE9680\n", "PowerEdge XE9680"),
        (b"", ""),
        (b"\xff\n", "\ufffd"),
        (b"m" * 5000, "m" * 1024),
    ],
)
def test_the_machine_is_named_by_the_file(tmp_path, content, machine):
    file = tmp_path / "product_name"
    file.write_bytes(content)
    assert load_traits(file, sys=tmp_path).machine == machine


@pytest.mark.parametrize("name", [".", "null\0byte", "pipe"])
def test_a_file_that_is_none_names_no_machine(tmp_path, name):
    os.mkfifo(tmp_path / "pipe")
    assert load_traits(tmp_path / name, sys=tmp_path).machine == ""

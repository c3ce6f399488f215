"""The table of error texts covers what NVML can return."""

from __future__ import annotations

import pynvml
import pytest

from nvdp.nvml.kinds import NvmlErrorKind, describe_code, find_kind
from nvdp.nvml.pci import build_pci, parse_pci

CODES = {name: value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")}


@pytest.mark.invariant(11)
@pytest.mark.parametrize(("name", "code"), CODES.items())
def test_every_return_code_that_pynvml_knows_has_our_own_text(name, code) -> None:
    kind = find_kind(code=code)
    assert kind is not None
    assert kind.name == name.removeprefix("NVML_ERROR_")
    assert kind.word == "".join(part.capitalize() for part in kind.name.split("_"))
    assert describe_code(code) == (kind.word, kind.text)
    assert find_kind(word=kind.word) is kind


def test_a_code_from_a_newer_driver_is_unknown_and_says_its_number() -> None:
    assert describe_code(4711) == (NvmlErrorKind.UNKNOWN.word, "the driver reports error 4711")
    assert find_kind(code=4711) is None


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("0000:1B:00.0", "0000:1b:00.0"),
        ("0001:0F:1A.3", "0001:0f:1a.3"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("", None),
        ("no address", None),
    ],
)
def test_pci_addresses_are_written_as_the_kernel_writes_them(text, address) -> None:
    assert parse_pci(text) == address


def test_an_address_is_built_from_numbers_where_the_library_gives_no_text() -> None:
    assert build_pci(0, 0x1B, 0) == "0000:1b:00.0"
    assert build_pci(0x10000, 1, 2) == "10000:01:02.0"
    assert build_pci(0, 0, 0) is None

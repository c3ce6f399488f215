"""Whether a PCI function is a vGPU, by its configuration space: NVIDIA's hosts put a capability of their own there.

Behind the header of a vendor-specific capability (number, next, length) stand the letters VF, then records of number,
length and content; the length counts all three. Record 0 has version and branch of the host's driver, 10 bytes each.
"""

from __future__ import annotations

from typing import Final

from nvdp.model.traits import Vgpu

SPACE_BYTES: Final = 256
_HEADER_BYTES: Final = 64  # all that a process without privileges may read
_NO_ANSWER: Final = b"\xff\xff"
_STATUS: Final = 0x06
_HAS_CAPABILITIES: Final = 0x10
_FIRST_CAPABILITY: Final = 0x34
_CAPABILITY_HEADER_BYTES: Final = 3
_VENDOR_SPECIFIC: Final = 0x09
_SIGNATURE: Final = b"VF"
_FIRST_RECORD: Final = 5
_RECORD_HEADER_BYTES: Final = 2
_DRIVER_RECORD: Final = 0
_TEXT_BYTES: Final = 10

_NONE: Final = Vgpu(present=False)


def parse_vgpu(space: bytes) -> Vgpu | None:
    """What the first 256 bytes of a configuration space tell; None if fewer were given and those do not tell it.

    Whatever is in them, it ends: a chain of capabilities that leads back to itself, and a record without length, end
    there.
    """
    if len(space) < _HEADER_BYTES or space.startswith(_NO_ANSWER):
        return None
    if not space[_STATUS] & _HAS_CAPABILITIES:
        return _NONE
    is_whole = len(space) >= SPACE_BYTES
    seen: set[int] = set()
    at = space[_FIRST_CAPABILITY] & ~3
    while at >= _HEADER_BYTES and at not in seen:
        seen.add(at)
        header = space[at : at + _CAPABILITY_HEADER_BYTES]
        if len(header) < _CAPABILITY_HEADER_BYTES:
            return _NONE if is_whole else None
        number, following, length = header
        capability = space[at : at + length]
        if number == _VENDOR_SPECIFIC:
            if len(capability) < length and not is_whole:
                return None
            if capability[_CAPABILITY_HEADER_BYTES:_FIRST_RECORD] == _SIGNATURE:
                return _read_records(capability)
        at = following & ~3
    return _NONE


def _read_records(capability: bytes) -> Vgpu:
    at = _FIRST_RECORD
    while at + _RECORD_HEADER_BYTES <= len(capability):
        number, length = capability[at : at + _RECORD_HEADER_BYTES]
        if number == _DRIVER_RECORD:
            content = capability[at + _RECORD_HEADER_BYTES :][: 2 * _TEXT_BYTES]
            return Vgpu(
                present=True,
                host_driver_version=_decode(content[:_TEXT_BYTES]),
                host_driver_branch=_decode(content[_TEXT_BYTES:]),
            )
        if length < _RECORD_HEADER_BYTES:
            break
        at += length
    return Vgpu(present=True)


def _decode(text: bytes) -> str:
    return text.strip(b"\0 ").decode("ascii", errors="replace")

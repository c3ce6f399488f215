"""References to devices, as a configuration spells them: by UUID, PCI address or index, for GPUs and MIG devices."""

from __future__ import annotations

import enum
import re
from typing import Final

import msgspec

from nvdp.errors import FormatError, quote

_UUID: Final = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_PCI: Final = re.compile(r"([0-9a-f]{4,8}):[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)
_LEGACY_MIG: Final = re.compile(rf"MIG-GPU-({_UUID})/([0-9]{{1,4}})/([0-9]{{1,4}})", re.IGNORECASE)
_GPU_UUID: Final = re.compile(rf"GPU-({_UUID})", re.IGNORECASE)
_MIG_UUID: Final = re.compile(rf"MIG-({_UUID})", re.IGNORECASE)
_PART_OF_UUID: Final = re.compile(r"(?:GPU|MIG)-[0-9a-f-]{4,35}", re.IGNORECASE)
_INDEX: Final = re.compile(r"[0-9]{1,4}")
_MIG_INDEX: Final = re.compile(r"([0-9]{1,4}):([0-9]{1,4})")


class RefKind(enum.Enum):
    """How a reference names its device. The first three name a GPU, the others one MIG device."""

    INDEX = "index"
    UUID = "uuid"
    PCI = "pci"
    MIG_UUID = "mig-uuid"
    MIG_INDEX = "mig-index"


class DeviceRef(msgspec.Struct, frozen=True):
    """One reference. ``text`` is normalised, so that two spellings of one reference are equal."""

    kind: RefKind
    text: str

    def __str__(self) -> str:
        return self.text

    @property
    def gpu_uuid(self) -> str | None:
        """The UUID of the GPU concerned where the reference itself tells it, also for a legacy MIG UUID."""
        if self.kind is RefKind.UUID:
            return self.text
        legacy = _LEGACY_MIG.fullmatch(self.text)
        return f"GPU-{legacy[1]}" if legacy else None

    def matches(self, *, gpu_uuid: str, pci: str | None, index: int) -> bool:
        """Whether this reference names the whole GPU with these facts. A MIG reference names none."""
        match self.kind:
            case RefKind.UUID:
                return self.text == gpu_uuid
            case RefKind.PCI:
                return self.text == pci
            case RefKind.INDEX:
                return self.text == str(index)
            case _:
                return False


class DeviceSet(msgspec.Struct, frozen=True):
    """The devices of a sharing entry: the first ``count`` that are left, those of a list, or, with neither, all."""

    refs: tuple[DeviceRef, ...] = ()
    count: int | None = None

    @property
    def is_all(self) -> bool:
        return not self.refs and self.count is None


ALL_DEVICES: Final = DeviceSet()


def normalise_pci(text: str) -> str | None:
    """``dddd:bb:dd.f`` in lower case, as sysfs names it: 4 digits of domain, more only where they are needed.

    None if it is no PCI address.
    """
    match = _PCI.fullmatch(text)
    if match is None:
        return None
    return f"{int(match[1], 16):04x}{text.lower()[len(match[1]) :]}"


def parse_device_ref(text: str) -> DeviceRef:
    """The reference that ``text`` spells; FormatError naming the five ways to spell one."""
    if match := _GPU_UUID.fullmatch(text):
        return DeviceRef(RefKind.UUID, f"GPU-{match[1].lower()}")
    if match := _MIG_UUID.fullmatch(text):
        return DeviceRef(RefKind.MIG_UUID, f"MIG-{match[1].lower()}")
    if match := _LEGACY_MIG.fullmatch(text):
        return DeviceRef(RefKind.MIG_UUID, f"MIG-GPU-{match[1].lower()}/{int(match[2])}/{int(match[3])}")
    if address := normalise_pci(text):
        return DeviceRef(RefKind.PCI, address)
    if _INDEX.fullmatch(text):
        return DeviceRef(RefKind.INDEX, str(int(text)))
    if match := _MIG_INDEX.fullmatch(text):
        return DeviceRef(RefKind.MIG_INDEX, f"{int(match[1])}:{int(match[2])}")
    check_whole(text)
    raise FormatError(
        f'{quote(text)} is not a device; use an index, "GPU:INSTANCE", a GPU-… or MIG-… UUID, '
        'or a PCI address like "0000:65:00.0"'
    )


def check_whole(text: str) -> None:
    """FormatError for a UUID that is cut short, as tables show it."""
    if _PART_OF_UUID.fullmatch(text):
        raise FormatError(f"{quote(text)} is only a part of a UUID; give it in full, as nvdp devices shows it")

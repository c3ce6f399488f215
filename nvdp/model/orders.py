"""What an operator may order through the control socket, and what comes of it."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from nvdp.errors import FormatError, quote
from nvdp.model.deviceref import DeviceRef, RefKind, check_whole, parse_device_ref

_OF_GPUS: Final = frozenset({RefKind.UUID, RefKind.PCI, RefKind.INDEX})
_NOTE_LIMIT: Final = 200  # characters; it is shown within a line


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an order: whether it is carried out by now, and one line for the person who gave it."""

    done: bool
    text: str


class Orders(Protocol):
    """Each blocks for ten seconds at most and may be called from any thread, several at once."""

    def pause(self, note: str) -> Carried:
        """Let go of the driver until ``resume``, over restarts of the plugin too. ``note`` says why, for people."""
        ...

    def resume(self) -> Carried:
        """Take the driver back, if nothing else says that it is paused."""
        ...

    def clear(self, device: str) -> Carried:
        """Forget the faults of one GPU, named by UUID, PCI address or index: the operator's word that it is well."""
        ...


def parse_note(text: str) -> str:
    """Why an order was given, for people: one line. FormatError for what would not be shown as it is."""
    note = text.strip()
    if len(note) > _NOTE_LIMIT:
        raise FormatError(f"{quote(note)} has {len(note)} characters; a note may have {_NOTE_LIMIT}")
    if not note.isprintable():
        raise FormatError(f"{quote(note)} cannot be shown in one line; leave out what is not printable")
    return note


def parse_gpu(text: str) -> DeviceRef:
    """The GPU that an order names. FormatError for what names none, or a MIG device of it."""
    try:
        ref = parse_device_ref(text)
    except FormatError:
        check_whole(text)
        raise FormatError(
            f'{quote(text)} names no GPU; use its index, its UUID, or a PCI address like "0000:65:00.0"'
        ) from None
    if ref.kind not in _OF_GPUS:
        raise FormatError(f"{ref} is a MIG device; name its GPU by UUID, PCI address or index")
    return ref

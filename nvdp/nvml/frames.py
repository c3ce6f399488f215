"""What daemon and NVML child say to each other: msgspec values in frames of four bytes of length and a body.

One command is answered by any number of breadcrumbs and one answer. A breadcrumb is sent before each NVML call, so
that the daemon knows which call of which GPU did not return. Notices come unasked, at any time, from the thread of the
child that waits for events.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, TypeAlias

import msgspec

from nvdp.model.health import Vitals
from nvdp.model.inventory import ComputeMode, Fault, Gpu, GpuRef, Inventory

# The longest body: an inventory of a hundred GPUs has 40 KiB, so what is longer is no frame of ours.
BODY_LIMIT_BYTES: Final = 1 << 20
_LENGTH_BYTES: Final = 4
# How long a wait for events takes where none comes. No call of the driver may wait for ever.
WAIT_S: Final = 5.0
# The one call of a scan that is about two GPUs; its breadcrumb names the first.
COMMON_ANCESTOR_CALL: Final = "nvmlDeviceGetTopologyCommonAncestor"


class Scan(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Read all GPUs but those in ``skip``, whose calls do not return.

    ``ancestors``: also ask what is common to the PCIe ways to each two of them, where the session does not know yet.
    """

    skip: tuple[GpuRef, ...] = ()
    ancestors: bool = True


class Probe(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Read one GPU as a scan would, and touch no other more than is needed to find it; never those in ``skip``."""

    gpu: GpuRef
    skip: tuple[GpuRef, ...] = ()


class Processes(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Tell what computes or draws on one GPU; finds it as Probe does."""

    gpu: GpuRef
    skip: tuple[GpuRef, ...] = ()


class SetComputeMode(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Set the compute mode of one GPU; finds it as Probe does. Needs root and CAP_SYS_ADMIN, unless it is as wanted."""

    gpu: GpuRef
    mode: ComputeMode
    skip: tuple[GpuRef, ...] = ()


class Close(msgspec.Struct, frozen=True, tag=True):
    """Let go of the driver and exit."""


class Breadcrumb(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """An NVML call is about to be made. ``gpu`` is None where it concerns the library as a whole."""

    call: str
    gpu: GpuRef | None = None


class Watch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a session's wait for events goes.

    ``problem`` says why none will be told: there can be no event set, or the wait has ``failed``, which another session
    may cure; ``kind`` is the word of an ``NvmlErrorKind``, empty if it is not NVML that says so. ``waits`` have come
    back so far, the last of them ``silent_s`` seconds ago; one takes ``WAIT_S`` where nothing happens.
    """

    problem: str = ""
    kind: str = ""
    failed: bool = False
    waits: int = 0
    silent_s: float = 0.0


class Scanned(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The answer to Scan. ``skipped`` are the entries of ``skip`` that were met, each at the place where it was.

    ``count`` is how many GPUs NVML counts, None where it does not number them.
    ``vitals`` are by UUID. No event of the GPUs in ``unwatched`` will be told; of all others every one is, from before
    their vitals were read.
    """

    inventory: Inventory
    count: int | None = None
    skipped: tuple[GpuRef, ...] = ()
    vitals: dict[str, Vitals] = {}
    unwatched: tuple[str, ...] = ()
    watch: Watch = Watch()


class Probed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The answer to Probe: what was read, or why nothing could be. Neither if NVML does not count such a GPU."""

    gpu: Gpu | None = None
    fault: Fault | None = None
    vitals: Vitals | None = None


class ComputeProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that computes or draws on a GPU. ``memory_bytes`` is None where the driver does not say.

    ``pid`` is that of the child's own PID namespace; from one that is not the host's, others may not be seen at all.
    """

    pid: int
    memory_bytes: int | None = None


class ProcessesRead(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The answer to Processes: what uses the GPU, or the fault. Neither if NVML does not count such a GPU."""

    processes: tuple[ComputeProcess, ...] | None = None
    fault: Fault | None = None


class ComputeModeSet(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The answer to SetComputeMode: the mode that the GPU has now, or the fault. Neither if NVML counts no such GPU."""

    mode: ComputeMode | None = None
    fault: Fault | None = None


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """NVML failed as a whole: it could not be loaded or initialised, or does not even count.

    ``kind`` is the word of an ``NvmlErrorKind``, ``text`` the whole story for a person.
    """

    call: str
    kind: str
    text: str


class Xid(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """The driver reports XID ``code`` of a GPU, or of one of its MIG instances.

    ``at`` is when it was heard, in monotonic seconds, which daemon and child share. While a session is replaced, both
    the old one and the new one tell it.
    """

    uuid: str
    code: int
    gpu_instance: int | None = None
    compute_instance: int | None = None
    at: float


class Ecc(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An ECC error: ``double``-bit, which cannot be corrected, or single-bit. ``at`` as for Xid."""

    uuid: str
    double: bool
    at: float


class WatchFailed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The wait for events failed: this session tells no more. ``kind`` is the word of an ``NvmlErrorKind``."""

    kind: str
    text: str


Command: TypeAlias = Scan | Probe | Processes | SetComputeMode | Close
Answer: TypeAlias = Scanned | Probed | ProcessesRead | ComputeModeSet | Refused
Notice: TypeAlias = Xid | Ecc | WatchFailed
Message: TypeAlias = Breadcrumb | Answer | Notice

_encoder: Final = msgspec.msgpack.Encoder()
_decode_command: Final = msgspec.msgpack.Decoder(Command).decode
_decode_message: Final = msgspec.msgpack.Decoder(Message).decode


def encode_frame(value: Command | Message) -> bytes:
    """``value`` with its length in front."""
    body = _encoder.encode(value)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


class FrameBuffer:
    """Cuts a byte stream into messages. Raises ValueError at what is no frame of ours: then the peer is broken."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, data: bytes) -> None:
        self._bytes += data

    def take(self) -> Iterator[Message]:
        """The complete messages so far, each once."""
        while (body := self._cut()) is not None:
            yield _decode_message(body)  # msgspec.ValidationError and DecodeError are ValueErrors

    def _cut(self) -> bytes | None:
        if len(self._bytes) < _LENGTH_BYTES:
            return None
        length = int.from_bytes(self._bytes[:_LENGTH_BYTES], "big")
        if length > BODY_LIMIT_BYTES:
            raise ValueError(f"a frame of {length} bytes")
        end = _LENGTH_BYTES + length
        if len(self._bytes) < end:
            return None
        body = bytes(self._bytes[_LENGTH_BYTES:end])
        del self._bytes[:end]
        return body


def read_command(fd: int) -> Command | None:
    """The next command; blocks for it. None when the daemon is gone."""
    length = _read_exactly(fd, _LENGTH_BYTES)
    body = _read_exactly(fd, int.from_bytes(length, "big")) if length is not None else None
    return _decode_command(body) if body is not None else None


def write_frame(fd: int, value: Message) -> None:
    """Send all of it; blocks while the daemon does not read. Raises OSError when the daemon is gone.

    Two threads must not be in here at a time.
    """
    data = memoryview(encode_frame(value))
    while data:
        data = data[os.write(fd, data) :]


def _read_exactly(fd: int, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        chunk = os.read(fd, size - len(data))
        if not chunk:
            return None
        data += chunk
    return data

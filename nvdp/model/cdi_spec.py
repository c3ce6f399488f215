"""A CDI spec as it stands on disk: the document of one class of devices, written and read.

Fields and their grammar follow the kubelet contract, section D, as far as this project writes them; their absence and
their empty value are the same. What a value of these types holds, container runtimes take.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from nvdp.model.cdi import VENDOR

# Absolute and plain. A name of a device starts and ends with a letter or digit; slashes and "=" stand for other things.
AbsolutePath = Annotated[str, Meta(pattern=r"\A(/|(/(?!\.\.?(/|\Z))[^/\0]+)+)\Z")]
NAME_PATTERN: Final = r"\A[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?\Z"
Name = Annotated[str, Meta(pattern=NAME_PATTERN)]
Variable = Annotated[str, Meta(pattern=r"\A[^=]+=")]
Positive = Annotated[int, Meta(ge=1)]
Number = Annotated[int, Meta(ge=0)]


class SpecNode(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """A device node. ``host_path`` only where it differs; without type and numbers the runtime looks them up there."""

    path: AbsolutePath
    host_path: AbsolutePath | None = None
    type: Literal["b", "c", "u", "p"] | None = None
    major: Number | None = None
    minor: Number | None = None
    file_mode: Number | None = None
    permissions: Annotated[str, Meta(pattern=r"\A[rwm]{1,3}\Z")] | None = None
    uid: Number | None = None
    gid: Number | None = None


class SpecMount(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """A bind mount, in the options of mount(8)."""

    host_path: AbsolutePath
    container_path: AbsolutePath
    options: tuple[str, ...] = ()
    type: str | None = None


class SpecHook(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """A program of the host that the runtime starts at a point of the container's life. ``args[0]`` is its own name."""

    hook_name: Literal["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"]
    path: AbsolutePath
    args: tuple[str, ...] = ()
    env: tuple[Variable, ...] = ()
    timeout: Positive | None = None


class SpecEdits(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """What changes in a container."""

    env: tuple[Variable, ...] = ()
    device_nodes: tuple[SpecNode, ...] = ()
    mounts: tuple[SpecMount, ...] = ()
    hooks: tuple[SpecHook, ...] = ()
    additional_gids: tuple[Positive, ...] = ()


NO_EDITS: Final = SpecEdits()


class SpecDevice(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """One name, and what a container gets for it beyond the common edits. Runtimes refuse a device without edits."""

    name: Name
    container_edits: SpecEdits
    annotations: dict[str, str] = {}


class CdiSpec(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """One file. ``container_edits`` apply once to a container that has any of the devices."""

    cdi_version: str
    kind: str
    devices: Annotated[tuple[SpecDevice, ...], Meta(min_length=1)]
    container_edits: SpecEdits = NO_EDITS
    annotations: dict[str, str] = {}


_DECODER: Final = msgspec.json.Decoder(CdiSpec)


def encode_spec(spec: CdiSpec) -> bytes:
    """The file's content. The same spec gives the same bytes."""
    return msgspec.json.format(msgspec.json.encode(spec), indent=2) + b"\n"


def decode_spec(content: bytes) -> CdiSpec | None:
    """The spec in a file; None if it is damaged, is of another vendor, or has what only other programs write.

    A spec whose devices are not all usable is damaged: runtimes refuse it as a whole. One that NVIDIA's plugin wrote
    is ours.
    """
    try:
        spec = _DECODER.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    usable = all(device.container_edits != NO_EDITS for device in spec.devices)
    unique = len({device.name for device in spec.devices}) == len(spec.devices)
    return spec if usable and unique and spec.kind.startswith(f"{VENDOR}/") else None


def names_of(spec: CdiSpec) -> frozenset[str]:
    """The full names that resolve in the spec."""
    return frozenset(f"{spec.kind}={device.name}" for device in spec.devices)

"""What of the driver is on a node for containers: its files under the driver root, and facts about device nodes.

Two paths belong to each file. ``path`` is where a container shall have it: the name by which it was found under the
driver root, with a leading slash. ``source`` is where it lies under the driver root, free of symbolic links: the
host's path is the driver root followed by it, and means the same file to a runtime that knows nothing of the root.
"""

from __future__ import annotations

import msgspec


class DriverFile(msgspec.Struct, frozen=True, order=True):
    """A file, socket or directory of the driver; see the module for what the two paths mean."""

    path: str
    source: str


class Link(msgspec.Struct, frozen=True):
    """A symbolic link that a container needs and no mount brings: ``link`` is absolute, ``target`` as it will say."""

    target: str
    link: str


class DriverFiles(msgspec.Struct, frozen=True, kw_only=True):
    """One driver installation, as a container shall see it. Every field is sorted, and the same for the same files.

    ``library_dirs`` are the container's directories of ``libraries``, for its loader cache; ``cuda_dirs`` those of them
    that have libcuda. ``configs`` are for graphics and OpenCL, the X server's modules among them, which no loader cache
    must have. ``sockets`` may be directories. ``missing`` says in one line each, for a person, what a complete driver
    would have and this one has not, or what could not be looked at.
    """

    version: str
    library_dirs: tuple[str, ...] = ()
    cuda_dirs: tuple[str, ...] = ()
    libraries: tuple[DriverFile, ...] = ()
    binaries: tuple[DriverFile, ...] = ()
    firmware: tuple[DriverFile, ...] = ()
    sockets: tuple[DriverFile, ...] = ()
    configs: tuple[DriverFile, ...] = ()
    links: tuple[Link, ...] = ()
    missing: tuple[str, ...] = ()


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A device node: ``type`` is ``c`` or ``b``, ``mode`` its permission bits.

    ``mode``, ``uid`` and ``gid`` are None for a node that does not exist yet, but whose numbers the kernel tells.
    """

    type: str
    major: int
    minor: int
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None


class DrmNodes(msgspec.Struct, frozen=True, kw_only=True):
    """The display and render nodes of one GPU (``/dev/dri/card1``), and the links by which they are found by slot."""

    nodes: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()

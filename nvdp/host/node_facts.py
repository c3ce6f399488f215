"""Facts about device nodes that a CDI spec tells: their numbers and permissions, and which nodes belong to what.

``dev`` is always this process's view of the host's ``/dev``, and paths of nodes are those that containers have
(``/dev/nvidia0``). Nodes are looked at, never opened. Nothing here raises: what cannot be seen is not there.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from posixpath import basename, join
from typing import Final

from nvdp.host.driver_root import DriverRoot
from nvdp.model.cdi import CdiClass
from nvdp.model.driver_files import DrmNodes, Link, NodeFacts

_MAX_TEXT_BYTES: Final = 65_536
_TYPES: Final = {stat.S_IFCHR: "c", stat.S_IFBLK: "b"}
_DRM_NODE: Final = re.compile(r"(?:card|renderD)\d+", re.ASCII)
_BY_PATH: Final = "/dev/dri/by-path"

# Nodes that the driver makes on demand: until then the kernel knows their numbers all the same, under these names.
_ON_DEMAND: Final = (
    (re.compile(r"/dev/nvidia-caps/nvidia-cap(\d+)", re.ASCII), "nvidia-caps"),
    (re.compile(r"/dev/nvidia-caps-imex-channels/channel(\d+)", re.ASCII), "nvidia-caps-imex-channels"),
)

# Directory and name of the nodes of each feature, and the files of the host that its libraries read.
_FEATURE_NODES: Final[Mapping[CdiClass, tuple[tuple[str, str], ...]]] = {
    CdiClass.GDRCOPY: (("/dev", "gdrdrv"),),
    CdiClass.GDS: (("/dev", "nvidia-fs*"),),
    CdiClass.MOFED: (("/dev/infiniband", "uverbs*"), ("/dev/infiniband", "rdma_cm")),
}
_FEATURE_FILES: Final[Mapping[CdiClass, tuple[str, ...]]] = {CdiClass.GDS: ("/run/udev", "/etc/cufile.json")}


def load_node_facts(
    paths: Iterable[str],
    *,
    dev: Path,
    proc: Path = Path("/proc"),
    stat_node: Callable[[str], os.stat_result] = os.lstat,
) -> dict[str, NodeFacts]:
    """The facts about each of the nodes that exists, or that the driver would make: without its permissions, then.

    What is there and is no device node has no facts.
    """
    majors = _load_majors(proc)
    facts = {path: _load_facts(path, dev=dev, majors=majors, stat_node=stat_node) for path in paths}
    return {path: known for path, known in facts.items() if known is not None}


def find_drm_nodes(pci: str, *, dev: Path, sys: Path = Path("/sys")) -> DrmNodes:
    """The display and render nodes of the GPU in a slot (``0000:1b:00.0``), as far as they exist under ``dev``."""
    names = DriverRoot(sys).list_names(f"/bus/pci/devices/{pci}/drm")
    nodes = [join("/dev/dri", name) for name in names if _DRM_NODE.fullmatch(name)]
    there = tuple(path for path in nodes if os.path.lexists(_view(dev, path)))
    return DrmNodes(nodes=there, links=tuple(_find_links(dev, frozenset(map(basename, there)))))


def find_feature_nodes(feature: CdiClass, *, dev: Path) -> tuple[str, ...]:
    """The nodes of gdrcopy, gds or mofed that exist, sorted; none for another class."""
    found = (
        join(directory, name)
        for directory, pattern in _FEATURE_NODES.get(feature, ())
        for name in DriverRoot(_view(dev, directory)).list_names("/")
        if fnmatchcase(name, pattern)
    )
    return tuple(sorted(found))


def find_feature_files(feature: CdiClass, *, root: Path) -> tuple[str, ...]:
    """What of the host, seen at ``root``, a container needs beside the feature's nodes, as far as it exists."""
    tree = DriverRoot(root)
    return tuple(path for path in _FEATURE_FILES.get(feature, ()) if tree.find(path) is not None)


def _view(dev: Path, path: str) -> Path:
    """Where this process sees what the host has at ``path``, which begins with /dev."""
    return dev / path.removeprefix("/dev").lstrip("/")


def _load_facts(
    path: str, *, dev: Path, majors: Mapping[str, int], stat_node: Callable[[str], os.stat_result]
) -> NodeFacts | None:
    try:
        seen = stat_node(str(_view(dev, path)))
    except OSError:
        return _build_facts_on_demand(path, majors)
    kind = _TYPES.get(stat.S_IFMT(seen.st_mode))
    if kind is None:
        return None
    return NodeFacts(
        type=kind,
        major=os.major(seen.st_rdev),
        minor=os.minor(seen.st_rdev),
        mode=stat.S_IMODE(seen.st_mode),
        uid=seen.st_uid,
        gid=seen.st_gid,
    )


def _build_facts_on_demand(path: str, majors: Mapping[str, int]) -> NodeFacts | None:
    for pattern, name in _ON_DEMAND:
        match = pattern.fullmatch(path)
        if match is not None and name in majors:
            return NodeFacts(type="c", major=majors[name], minor=int(match[1]))
    return None


def _load_majors(proc: Path) -> dict[str, int]:
    """The major number of each driver of character devices, by the name that it gave the kernel."""
    text = (DriverRoot(proc).load_start("/devices", limit_bytes=_MAX_TEXT_BYTES) or b"").decode(errors="replace")
    fields = (line.split() for line in text.partition("Block devices:")[0].splitlines())
    return {words[1]: int(words[0]) for words in fields if len(words) == 2 and words[0].isdecimal()}  # noqa: PLR2004 - the line's layout


def _find_links(dev: Path, names: frozenset[str]) -> Iterable[Link]:
    """The links by slot that lead to these nodes; they are relative, and say so in the container as well."""
    for name in DriverRoot(_view(dev, _BY_PATH)).list_names("/"):
        try:
            target = str(_view(dev, f"{_BY_PATH}/{name}").readlink())
        except OSError:
            continue
        if basename(target) in names:
            yield Link(target, f"{_BY_PATH}/{name}")

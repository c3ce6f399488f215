"""What a container needs on a Tegra system: the lists that its software brings along, read and looked up.

A line of these CSV files is a kind and a path: ``dev`` a device node, ``lib`` a file, ``dir`` a directory with all that
is in it, ``sym`` a symbolic link. No other place tells which files of such a system belong to its GPU.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from posixpath import basename, dirname, join, normpath
from typing import Final

import msgspec

from nvdp.errors import HostError
from nvdp.host.driver_root import DriverRoot
from nvdp.model.driver_files import DriverFile, DriverFiles, Link

_DIRECTORY: Final = "/etc/nvidia-container-runtime/host-files-for-container.d"
_FILES: Final = ("devices.csv", "drivers.csv", "l4t.csv")
_MAX_BYTES: Final = 1 << 20  # the longest known has 60 KiB
_MAX_ENTRIES: Final = 16_384
_CUDA: Final = "libcuda.so"
_SHOWN: Final = 4  # device nodes in one line


class Kind(enum.Enum):
    """What a line names."""

    NODE = "dev"
    FILE = "lib"
    DIRECTORY = "dir"
    LINK = "sym"


_KINDS: Final = {kind.value: kind for kind in Kind}


class Entry(msgspec.Struct, frozen=True):
    """One line. The last part of a device node's path may have the wildcards of a shell."""

    kind: Kind
    path: str


class TegraFiles(msgspec.Struct, frozen=True, kw_only=True):
    """What the lists come to here: the driver's files, and the device nodes that belong to its one device."""

    driver: DriverFiles
    nodes: tuple[str, ...] = ()


def find_csv_files(root: Path, *, otherwise: Path = Path("/")) -> tuple[Path, tuple[str, ...]] | None:
    """The root under which the lists are, ``root`` or else ``otherwise``, and their paths in it, in the order in which
    they count; None if they are nowhere.

    NVIDIA's rule: the directory decides, and not which of the three are in it.
    """
    for base in (root, otherwise):
        found = DriverRoot(base).find(_DIRECTORY)
        if found is not None and found.is_directory:
            return base, tuple(f"{_DIRECTORY}/{name}" for name in _FILES)
    return None


def load_tegra_files(root: Path, *, dev: Path, otherwise: Path = Path("/")) -> TegraFiles:
    """The files and nodes that the lists name, as far as they are there. ``dev`` is this view of the host's ``/dev``.

    Raises HostError, one line, where there are no lists, or no device node of theirs. Blocks as long as the disk does.
    """
    lists = find_csv_files(root, otherwise=otherwise)
    if lists is None:
        remedy = "mount the root of the node there, and set flags.plugin.containerDriverRoot to that place"
        raise HostError(f"{root}: has no {_DIRECTORY}, which tells what belongs to the GPU of a Tegra system; {remedy}")
    base, paths = lists
    tree = DriverRoot(base)
    texts = {basename(path): tree.load_start(path, limit_bytes=_MAX_BYTES) or b"" for path in paths}
    entries, problems = parse_csv({name: text.decode(errors="replace") for name, text in texts.items()})
    nodes = _find_nodes(entries, dev)
    finding = _Finding(tree, base)
    for entry in entries:
        finding.look_up(entry)
    libraries = tuple(sorted(finding.files))
    names = {file.path: basename(file.path) for file in libraries}
    return TegraFiles(
        driver=DriverFiles(
            version="",
            library_dirs=tuple(sorted({dirname(path) for path, name in names.items() if ".so" in name})),
            cuda_dirs=tuple(sorted({dirname(path) for path, name in names.items() if name.startswith(_CUDA)})),
            libraries=libraries,
            configs=tuple(sorted(finding.directories)),
            links=tuple(sorted(finding.links, key=lambda one: one.link)),
            missing=(*problems, *finding.missing, *tree.problems),
        ),
        nodes=nodes,
    )


def parse_csv(texts: Mapping[str, str]) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    """The entries of the lists, each once, by the name of the file; and a line about each that means nothing."""
    entries: dict[Entry, None] = {}
    problems = []
    for name, text in texts.items():
        for number, line in enumerate(text.splitlines(), start=1):
            content = line.partition("#")[0].strip()
            if not content:
                continue
            if len(entries) == _MAX_ENTRIES:
                problems.append(f"{name}:{number}: only {_MAX_ENTRIES} entries are read, the others are left out")
                return tuple(entries), tuple(problems)
            entry = _parse_line(content)
            if entry is None:
                problems.append(f"{name}:{number}: {content[:80]!r} is none of dev, lib, dir and sym with a path")
            else:
                entries[entry] = None
    return tuple(entries), tuple(problems)


def _parse_line(content: str) -> Entry | None:
    word, _, path = (part.strip() for part in content.partition(","))
    is_absolute = path.startswith("/") and not path.startswith("//")
    is_plain = is_absolute and path.isprintable() and normpath(path) == path != "/"
    kind = _KINDS.get(word)
    if kind is None or not is_plain or (kind is Kind.NODE and not path.startswith("/dev/")):
        return None
    return Entry(kind, path)


def _find_nodes(entries: Iterable[Entry], dev: Path) -> tuple[str, ...]:
    """Those that are there, each once. Raises HostError if that is none: a container could do nothing."""
    named = [entry.path for entry in entries if entry.kind is Kind.NODE]
    nodes = tuple(dict.fromkeys(node for path in named for node in _expand(path, dev)))
    if nodes:
        return nodes
    if not named:
        raise HostError(f"{_DIRECTORY}: no line of {_FILES[0]} there names a device node, as `dev, /dev/nvmap` does")
    more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    raise HostError(
        f"{_DIRECTORY}: {_FILES[0]} there names {', '.join(named[:_SHOWN])}{more}, and none of them is in {dev}; load"
        " the driver of the GPU, or mount the /dev of the node at /host-dev"
    )


def _expand(path: str, dev: Path) -> Iterator[str]:
    """The nodes that are there. What they are called is looked up, not what they are."""
    directory, pattern = dirname(path), basename(path)
    seen = DriverRoot(dev).list_names(directory.removeprefix("/dev") or "/")
    return (join(directory, name) for name in seen if fnmatchcase(name, pattern))


class _Finding:
    """Looks the entries up that are files, and gathers what they come to."""

    def __init__(self, tree: DriverRoot, base: Path) -> None:
        self._tree = tree
        self._base = base
        self.files: set[DriverFile] = set()
        self.directories: set[DriverFile] = set()
        self.links: set[Link] = set()
        self.missing: list[str] = []

    def look_up(self, entry: Entry) -> None:
        if entry.kind is Kind.NODE:
            return
        is_there = self._look_up_link(entry.path) if entry.kind is Kind.LINK else self._look_up_file(entry)
        if not is_there:
            self.missing.append(f"{entry.path}: in the lists of this system, and not there")

    def _look_up_file(self, entry: Entry) -> bool:
        found = self._tree.find(entry.path)
        if found is None or found.is_directory is not (entry.kind is Kind.DIRECTORY):
            return False
        place = self.directories if found.is_directory else self.files
        place.add(DriverFile(entry.path, found.source))
        return True

    def _look_up_link(self, path: str) -> bool:
        """A link is made anew in the container, with the words that it has here."""
        directory = self._tree.find(dirname(path))
        if directory is None:
            return False
        try:
            target = str((self._base / join(directory.source, basename(path)).lstrip("/")).readlink())
        except OSError:
            return False
        if not target.isprintable():
            return False
        self.links.add(Link(target, path))
        return True

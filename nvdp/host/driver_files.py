"""What of the driver is below its root for containers: which of the known places have which of its files.

What a container gets follows NVIDIA's plugin. Nothing is remembered between two looks, so that a driver that was
replaced is found as it is now.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from posixpath import basename, dirname, join, normpath
from typing import Final

import msgspec

from nvdp.errors import HostError
from nvdp.host import driver_places as places
from nvdp.host.driver_root import DriverRoot
from nvdp.model.driver_files import DriverFile, DriverFiles, Link

_MAX_LIBRARIES: Final = 1024  # a driver has about 60
_MAX_LOADER_DIRS: Final = 64
_MAX_LOADER_FILES: Final = 64
_MAX_TEXT_BYTES: Final = 65_536
# Driver versions have had three digits since 2009; libcuda.so.1 and WSL's libcuda.so.1.1 are interfaces.
_VERSIONED: Final = re.compile(r"lib(?:cuda|nvidia-ml)\.so\.(\d{3,}(?:\.\d+)+)", re.ASCII)
_ELF_32_BIT: Final = b"\x7fELF\x01"


class _Directory(msgspec.Struct, frozen=True):
    """A directory of libraries: the name by which it was found, and the names in it."""

    path: str
    names: tuple[str, ...]


def load_driver_files(
    root: Path,
    *,
    version_hint: str,
    driver_root: str = "/",
    library_dirs: Sequence[str] = places.LIBRARY_DIRS,
    sys: Path = Path("/sys"),
    kernel: str = "",
) -> DriverFiles:
    """The files of the driver below ``root``, this process's view of the host's ``driver_root``.

    ``version_hint`` is the version that NVML reports; without one, that of the library that programs would load.
    ``library_dirs`` are searched in order, then those that the root's own loader configuration names. ``kernel`` is
    the release whose firmware directories are looked at: by default, the running one.

    Raises HostError, one line, if no driver library is found, or none of that version. Blocks as long as the disk
    does; what may not be read is missing.
    """
    tree = DriverRoot(root)
    found = tree.find("/")
    if found is None or not found.is_directory:
        raise HostError(f"{root}: is no directory with a driver in it; mount the driver root there, {_REMEDY}")
    directories = _find_directories(tree, (*library_dirs, *_load_loader_dirs(tree)))
    version = _choose_version(tree, directories, root=root, hint=version_hint)
    libraries = tuple(islice(_find_libraries(tree, directories, version), _MAX_LIBRARIES))
    cuda_dirs = _find_cuda_dirs(libraries, version)
    modules = tuple(_find_x_modules(tree, cuda_dirs, version))
    binaries = tuple(_find_binaries(tree))
    firmware = tuple(_find_firmware(tree, version, _list_firmware_dirs(sys, driver_root, kernel or os.uname().release)))
    return DriverFiles(
        version=version,
        library_dirs=tuple(sorted({dirname(file.path) for file in libraries})),
        cuda_dirs=cuda_dirs,
        libraries=_sort(libraries),
        binaries=_sort(binaries),
        firmware=_sort(firmware),
        sockets=_sort(_find_sockets(tree)),
        configs=_sort((*_find_configs(tree), *modules)),
        links=tuple(sorted(_build_links((*libraries, *modules), version), key=lambda one: one.link)),
        missing=(*_find_missing(version, libraries, binaries, firmware, directories), *tree.problems),
    )


_REMEDY: Final = "and set flags.nvidiaDriverRoot and flags.plugin.containerDriverRoot to where it is installed"


def _sort(files: Iterable[DriverFile]) -> tuple[DriverFile, ...]:
    return tuple(sorted(set(files)))


def _load_loader_dirs(tree: DriverRoot) -> Iterator[str]:
    """The directories that the loader of that system is told to look in: any of them may have been given a driver."""
    fragments = [name for name in tree.list_names("/etc/ld.so.conf.d") if name.endswith(".conf")]
    files = ["/etc/ld.so.conf", *(f"/etc/ld.so.conf.d/{name}" for name in fragments[:_MAX_LOADER_FILES])]
    texts = (_load_text(tree, file) for file in files)
    lines = (line.split("#")[0].strip() for text in texts for line in text.splitlines())
    directories = [line for line in lines if line.startswith("/")]  # not "include", which names the files read anyway
    yield from directories[:_MAX_LOADER_DIRS]


def _load_text(tree: DriverRoot, path: str) -> str:
    return (tree.load_start(path, limit_bytes=_MAX_TEXT_BYTES) or b"").decode(errors="replace")


def _find_directories(tree: DriverRoot, candidates: Iterable[str]) -> tuple[_Directory, ...]:
    """Those that are there, each by the first of its names: /lib is often a link to /usr/lib."""
    by_source: dict[str, _Directory] = {}
    for candidate in candidates:
        found = tree.find(candidate)
        if found is None or not found.is_directory or found.source in by_source:
            continue
        if places.OTHER_WORD_SIZES.isdisjoint(found.source.split("/")):
            # A loader takes /opt//lib and /opt/../lib, a container runtime no mount there.
            name = candidate if candidate == f"/{normpath(candidate).lstrip('/')}" else found.source
            by_source[found.source] = _Directory(name, tree.list_names(name))
    return tuple(by_source.values())


def _choose_version(tree: DriverRoot, directories: Sequence[_Directory], *, root: Path, hint: str) -> str:
    """The version to look for; raises HostError if no driver library has it."""
    versions: dict[str, None] = {}
    loaded: list[str] = []
    for directory in directories:
        for name in directory.names:
            match = _VERSIONED.fullmatch(name)
            if match is not None and _find_library(tree, directory, name) is not None:
                versions[match[1]] = None
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            found = tree.find(join(directory.path, name)) if name in directory.names else None
            match = _VERSIONED.fullmatch(basename(found.source)) if found is not None else None
            if match is not None:
                loaded.append(match[1])
    if not versions:
        searched = ", ".join(directory.path for directory in directories) or "any directory of libraries"
        raise HostError(
            f"{root}: no libcuda.so.{hint or '<version>'} or libnvidia-ml.so.{hint or '<version>'} in {searched};"
            f" mount the driver root there, {_REMEDY}"
        )
    if not hint:
        return next((version for version in loaded if version in versions), max(versions, key=_build_version_key))
    if hint not in versions:
        raise HostError(
            f"{root}: the loaded driver is {hint}, but the libraries there are of {', '.join(sorted(versions))}:"
            " another driver is being installed, or the driver root is not that of the loaded one"
        )
    return hint


def _build_version_key(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _find_library(tree: DriverRoot, directory: _Directory, name: str) -> DriverFile | None:
    """The library of that name, if it is a file for 64-bit programs."""
    path = join(directory.path, name)
    found = tree.find(path)
    if found is None or not found.is_file:
        return None
    start = tree.load_start(path, limit_bytes=len(_ELF_32_BIT))
    return DriverFile(path, found.source) if start not in {None, _ELF_32_BIT} else None


def _find_libraries(tree: DriverRoot, directories: Iterable[_Directory], version: str) -> Iterator[DriverFile]:
    """All that carry the version in their names, and the few of the driver that have versions of their own."""
    pattern = re.compile(
        rf".+\.so\.{re.escape(version)}|libnvidia-nvvm70\.so\..+|libnvidia-egl-(?:gbm|wayland2?)\.so\.\d+\.\d.*",
        re.ASCII,
    )
    sources: set[tuple[str, str]] = set()
    for directory in directories:
        vdpau = join(directory.path, "vdpau")
        for place in (directory, _Directory(vdpau, tree.list_names(vdpau) if "vdpau" in directory.names else ())):
            for name in filter(pattern.fullmatch, place.names):
                file = _find_library(tree, place, name)
                if file is None or (name, file.source) in sources:
                    continue
                sources.add((name, file.source))
                yield file


def _find_cuda_dirs(libraries: Iterable[DriverFile], version: str) -> tuple[str, ...]:
    """The directories with libcuda; of a driver without CUDA, those with NVML's library."""
    for stem in ("libcuda", "libnvidia-ml"):
        found = {dirname(file.path) for file in libraries if basename(file.path) == f"{stem}.so.{version}"}
        if found:
            return tuple(sorted(found))
    return ()


def _find_first(tree: DriverRoot, paths: Iterable[str], *, program: bool = False) -> DriverFile | None:
    """The first of the paths that leads to anything, or to a program."""
    for path in paths:
        found = tree.find(path)
        if found is not None and (found.is_program or not program):
            return DriverFile(path, found.source)
    return None


def _find_binaries(tree: DriverRoot) -> Iterator[DriverFile]:
    for name in places.BINARIES:
        file = _find_first(tree, (join(directory, name) for directory in places.BINARY_DIRS), program=True)
        if file is not None:
            yield file


def _find_sockets(tree: DriverRoot) -> Iterator[DriverFile]:
    return (file for paths in places.SOCKETS if (file := _find_first(tree, paths)) is not None)


def _find_configs(tree: DriverRoot) -> Iterator[DriverFile]:
    for place in places.CONFIGS:
        file = _find_first(tree, (f"{directory}/{place.name}" for directory in place.directories))
        if file is not None and place.container_directory is None:
            yield file
        elif file is not None:
            yield DriverFile(f"{place.container_directory}/{place.name}", file.source)


def _find_x_modules(tree: DriverRoot, cuda_dirs: Iterable[str], version: str) -> Iterator[DriverFile]:
    beside = [join(directory, below) for directory in cuda_dirs for below in places.X_MODULE_DIRS]
    directories = (*beside, *(join(server, below) for server in places.X_SERVER_DIRS for below in places.X_MODULE_DIRS))
    for name in places.X_MODULES:
        file = _find_first(tree, (join(directory, name.format(version=version)) for directory in directories))
        if file is not None:
            yield file


def _list_firmware_dirs(sys: Path, driver_root: str, kernel: str) -> tuple[str, ...]:
    """In the kernel's order: what it was told on its command line or at run time, updates, then what is installed.

    The first is a path of the host, so that it lies below the driver root only without that root's own path.
    """
    told = _load_text(DriverRoot(sys), "/module/firmware_class/parameters/path").strip()
    prefix = driver_root.rstrip("/")
    directories = [told.removeprefix(prefix) if told.startswith(f"{prefix}/") else told] if told else []
    base = places.FIRMWARE_DIRS[0]
    return (*directories, f"{base}/updates/{kernel}", f"{base}/updates", f"{base}/{kernel}", *places.FIRMWARE_DIRS)


def _find_firmware(tree: DriverRoot, version: str, directories: Iterable[str]) -> Iterator[DriverFile]:
    """The GSP's firmware, from the first directory that has any; to a container, it is where all systems have it."""
    for directory in directories:
        place = join("/", directory, "nvidia", version)
        names = [name for name in tree.list_names(place) if fnmatchcase(name, "gsp*.bin")]
        found = {name: tree.find(join(place, name)) for name in names}
        files = {name: file for name, file in found.items() if file is not None and file.is_file}
        if files:
            base = join(places.FIRMWARE_DIRS[0], "nvidia", version)
            yield from (DriverFile(join(base, name), file.source) for name, file in files.items())
            return


def _build_links(libraries: Iterable[DriverFile], version: str) -> Iterator[Link]:
    wanted: Mapping[str, places.LibraryLink] = {link.library.format(version=version): link for link in places.LINKS}
    for file in libraries:
        wish = wanted.get(basename(file.path))
        if wish is not None:
            yield Link(wish.target.format(version=version), join(dirname(file.path), wish.link))


def _find_missing(
    version: str,
    libraries: Iterable[DriverFile],
    binaries: Iterable[DriverFile],
    firmware: Sequence[DriverFile],
    directories: Iterable[_Directory],
) -> Iterator[str]:
    there = {basename(file.path) for file in (*libraries, *binaries)}
    searched = ", ".join(directory.path for directory in directories)
    for name in (f"{stem}.so.{version}" for stem in places.EXPECTED_LIBRARIES):
        if name not in there:
            yield f"{name}: in none of {searched}"
    for name in places.EXPECTED_BINARIES:
        if name not in there:
            yield f"{name}: in none of {', '.join(places.BINARY_DIRS)}"
    if not firmware:
        yield f"nvidia/{version}/gsp*.bin: in none of {', '.join(places.FIRMWARE_DIRS)}"

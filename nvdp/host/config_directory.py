"""A directory of configurations, as a mounted ConfigMap is one: which files are in it, and has one of them changed.

The kubelet replaces all of them at once, by swapping the link ``..data``; an editor replaces one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from nvdp.host.files import FileFingerprint, config_directories, config_fingerprint, config_settle_s

_HIDDEN: Final = ".."
_MOST_FILES: Final = 512


class DirectoryFingerprint(msgspec.Struct, frozen=True):
    """The files by name. With a ``problem``, a sentence, the directory cannot be used, and there are none.

    ``missing``: that is because it is not there.
    """

    files: Mapping[str, FileFingerprint] = {}
    problem: str = ""
    missing: bool = False


def directory_fingerprint(directory: Path) -> DirectoryFingerprint:
    """Everything in the directory that is no directory and does not begin with two dots; at most 512 files."""
    files: dict[str, FileFingerprint] = {}
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                is_file = not entry.name.startswith(_HIDDEN) and not _is_directory(entry)
                found = config_fingerprint(Path(entry)) if is_file else None
                if found is not None:
                    files[entry.name] = found
                if len(files) > _MOST_FILES:
                    text = f"{directory}: has more than {_MOST_FILES} files; a directory of configurations is needed"
                    return DirectoryFingerprint(problem=text)
    except FileNotFoundError:
        text = f"{directory}: there is no such directory; nvdp goes on by itself once it is there"
        return DirectoryFingerprint(problem=text, missing=True)
    except OSError as error:
        return DirectoryFingerprint(problem=f"{directory}: cannot be read: {error.strerror}")
    return DirectoryFingerprint(files=files)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    """False for a link that cannot be followed, as one in a circle: it leads nowhere, and the others are good."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def directory_settle_s(before: DirectoryFingerprint, after: DirectoryFingerprint) -> float:
    """How long a change must stand still before it counts, in seconds: as long as that of any file in it."""
    changed = {name for name in {*before.files, *after.files} if before.files.get(name) != after.files.get(name)}
    return max((config_settle_s(before.files.get(name), after.files.get(name)) for name in changed), default=0.0)


def list_watched(directory: Path) -> tuple[Path, ...]:
    """Where changes of it happen: in itself, with the link that the kubelet swaps."""
    return config_directories(directory / "..data")

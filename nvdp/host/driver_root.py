"""Looking for files below a directory that is the root of another system: the host's, or a driver container's.

Its symbolic links mean what they mean over there: an absolute one starts at that root, and none leads out of it.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from pathlib import Path
from typing import Final

import msgspec

from nvdp.errors import HostError
from nvdp.host.files import load_text

_MAX_LINKS: Final = 40  # as the kernel, which gives up a path with more
_MAX_ENTRIES: Final = 65_536  # /usr/lib of a full desktop has a tenth of it
_ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR})


class Found(msgspec.Struct, frozen=True):
    """What a path leads to: ``source`` is its place below the root, with a leading slash and without any link."""

    source: str
    mode: int

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def is_program(self) -> bool:
        return self.is_file and self.mode & 0o111 != 0


class DriverRoot:
    """Paths are those of the other system: absolute, ``/usr/lib64``. Raises nothing, blocks as long as the disk does.

    What is there but cannot be looked at counts as absent, and ``problems`` gets a line about it, for people. Of a
    directory, ``max_entries`` are looked at.
    """

    def __init__(self, root: Path, *, max_entries: int = _MAX_ENTRIES) -> None:
        self._prefix = str(root).rstrip("/")
        self._max_entries = max_entries
        self._problems: dict[str, None] = {}

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(self._problems)

    def find(self, path: str) -> Found | None:
        """What the path leads to, links followed within the root; None if there is nothing."""
        source = self._resolve(path)
        if source is None:
            return None
        try:
            return Found(source, os.lstat(self._prefix + source).st_mode)
        except OSError as error:
            self._note(path, error)
            return None

    def list_names(self, directory: str) -> tuple[str, ...]:
        """The names in a directory, sorted; none if it is not there. A gigantic one is listed in part."""
        source = self._resolve(directory)
        if source is None:
            return ()
        names: list[str] = []
        try:
            with os.scandir(self._prefix + source) as entries:
                names.extend(entry.name for entry in itertools.islice(entries, self._max_entries + 1))
        except OSError as error:
            self._note(directory, error)
        if len(names) > self._max_entries:
            self._problems[f"{directory}: only {self._max_entries} of its entries were looked at"] = None
        return tuple(sorted(filter(str.isprintable, names[: self._max_entries])))

    def load_start(self, path: str, *, limit_bytes: int) -> bytes | None:
        """The first bytes of a regular file; None if there is none, or it may not be read."""
        source = self._resolve(path)
        if source is None:
            return None
        try:
            content = load_text(Path(self._prefix + source), limit_bytes=limit_bytes, follow_symlinks=False)
        except HostError as error:
            self._problems[str(error)] = None
            return None
        return None if content is None else content[:limit_bytes]

    def _resolve(self, path: str) -> str | None:
        """The path without links, each followed from where it stands: the kernel would start at its own root.

        None for what no container could be told, too: control characters, and bytes that are no text.
        """
        if not path.isprintable():
            return None
        done: list[str] = []
        todo = path.split("/")[::-1]
        links = 0
        while todo:
            part = todo.pop()
            if part == "..":
                del done[-1:]  # above the root there is the root
            if part in {"", ".", ".."}:
                continue
            try:
                target = os.readlink("/".join((self._prefix, *done, part)))  # noqa: PTH115 - a thousand times a look
            except OSError as error:
                if error.errno != errno.EINVAL:
                    self._note(path, error)
                    return None
                done.append(part)  # not a link
                continue
            links += 1
            if not target.isprintable():
                return None
            if links > _MAX_LINKS:
                self._problems[f"{path}: leads through more than {_MAX_LINKS} symbolic links"] = None
                return None
            if target.startswith("/"):
                done.clear()
            todo.extend(target.split("/")[::-1])
        return "/" + "/".join(done)

    def _note(self, path: str, error: OSError) -> None:
        if error.errno not in _ABSENT:
            self._problems[f"{path}: cannot be looked at: {error.strerror}"] = None

"""The directories of one resource's control daemon below the MPS root: its pipe, which pods mount, and its log.

The pipe directory stays the same individual as long as the resource has daemons: pods have it mounted, and would keep
a removed one. What a dead daemon left in it goes, the directory itself does not.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Final

from nvdp.errors import HostError
from nvdp.mps.control_log import START_MARK, is_noise
from nvdp.mps.directories import make_directories, open_directories
from nvdp.mps.removal import ASIDE, empty_directory, remove_directories

LOG_LIMIT_BYTES: Final = 1024 * 1024
"""The size over which a log file is cut. NVIDIA documents no rotation, and every question fills three lines."""
LOG_KEPT_BYTES: Final = 256 * 1024
"""How much of its end stays then."""
DAEMON_LOG: Final = "daemon.log"
"""In the log directory: what the daemon says on its standard output and error."""

_PIPE: Final = "pipe"
_LOG: Final = "log"
_PATH_LIMIT_BYTES: Final = 107  # sun_path of a Unix socket, less the zero at its end
_LONGEST_SOCKET: Final = "control_privileged"
_DAEMON_FILES: Final = ("control", _LONGEST_SOCKET, "control_lock", "log", "nvidia-cuda-mps-control.pid")
_LAST_BYTES: Final = 65536
_LINE_CHARS: Final = 300
_OTHERS_ARE_IN: Final = (errno.ENOTEMPTY, errno.EEXIST)


class Places:
    """The directories of ``resource`` below ``mps_dir``. One thread at a time; all calls block for the disk only.

    All raise HostError, in one line with the path.
    """

    def __init__(self, mps_dir: Path, resource: str) -> None:
        self._mps_dir = mps_dir
        self._names = tuple(resource.split("/"))
        self.resource_dir = mps_dir.joinpath(*self._names)
        self.pipe_dir = self.resource_dir / _PIPE
        self.log_dir = self.resource_dir / _LOG

    def prepare(self) -> None:
        """Make the directories that are missing, all passable for every user. Those that are there stay."""
        longest = os.fsencode(self.pipe_dir / _LONGEST_SOCKET)
        if len(longest) > _PATH_LIMIT_BYTES:
            raise HostError(
                f"{self.pipe_dir}: {len(longest) - _PATH_LIMIT_BYTES} bytes too long for the sockets of a control "
                f"daemon, whose paths have at most {_PATH_LIMIT_BYTES} bytes; use a shorter --mps-dir or resource name"
            )
        for name in (_PIPE, _LOG):
            with make_directories(self._mps_dir, (*self._names, name)):
                pass

    def clean(self) -> None:
        """Take out of the pipe directory what a daemon left that is dead, and pods made. The directory itself stays.

        Blocks for 40,000 names at most, some two seconds; what is not away then is nothing that a daemon needs.
        """
        try:
            with open_directories(self._mps_dir, self._names) as resource, contextlib.suppress(FileNotFoundError):
                if resource is not None:
                    empty_directory(resource, _PIPE, first=_DAEMON_FILES)
        except OSError as error:
            raise HostError(f"{self.pipe_dir}: cannot be emptied: {error.strerror}") from error

    def remove(self) -> None:
        """Take both directories away, and those above that are empty then, up to the MPS root. Idempotent.

        Blocks for 20,000 names at most, some second. Of more, and of what cannot be removed, a HostError says that it
        is there.
        """
        try:
            with open_directories(self._mps_dir, self._names) as resource:
                if resource is not None and not remove_directories(resource, (_PIPE, _LOG)):
                    raise HostError(f"{self.resource_dir / ASIDE}: something in it cannot be removed; remove it")
            for depth in range(len(self._names), 0, -1):
                with (
                    open_directories(self._mps_dir, self._names[: depth - 1]) as above,
                    contextlib.suppress(FileNotFoundError),
                ):
                    if above is not None:
                        os.rmdir(self._names[depth - 1], dir_fd=above)
        except OSError as error:
            if error.errno not in _OTHERS_ARE_IN:
                raise HostError(f"{self.resource_dir}: cannot be removed: {error.strerror}") from error

    def open_log(self, start: str) -> int:
        """A descriptor that appends to ``daemon.log``, after a line that says that ``start`` is started now."""
        with make_directories(self._mps_dir, (*self._names, _LOG)) as log:
            try:
                descriptor = os.open(
                    DAEMON_LOG,
                    os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW,
                    0o644,
                    dir_fd=log,
                )
                try:
                    os.write(descriptor, f"{START_MARK}{start}\n".encode())
                except BaseException:
                    os.close(descriptor)
                    raise
            except OSError as error:
                raise HostError(f"{self.log_dir / DAEMON_LOG}: cannot be written: {error.strerror}") from error
        return descriptor

    def cut_logs(self) -> None:
        """Cut each log file over 1 MiB to its last 256 KiB, in place: daemon and server keep them open.

        A line that is written at that moment may be lost.
        """
        with open_directories(self._mps_dir, (*self._names, _LOG)) as log:
            if log is None:
                return
            for name in os.listdir(log):  # noqa: PTH208 - as above
                try:
                    _cut(log, name)
                except OSError as error:
                    raise HostError(f"{self.log_dir / name}: cannot be cut: {error.strerror}") from error

    def read_last_lines(self, count: int) -> tuple[str, ...]:
        """What the daemon that was started last said at the end, at most ``count`` lines.

        Without the lines that every question to it leaves; none where there is no log.
        """
        try:
            with open_directories(self._mps_dir, (*self._names, _LOG)) as log:
                said = _read_end(log, DAEMON_LOG, _LAST_BYTES) if log is not None else b""
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise HostError(f"{self.log_dir / DAEMON_LOG}: cannot be read: {error.strerror}") from error
        lines = said.decode("utf-8", "replace").splitlines()
        starts = [number for number, line in enumerate(lines) if line.startswith(START_MARK)]
        lines = lines[starts[-1] + 1 :] if starts else lines
        telling = [line.strip()[:_LINE_CHARS] for line in lines if line.strip() and not is_noise(line)]
        return tuple("".join(c if c.isprintable() else "?" for c in line) for line in telling[-count:])


def _open_regular(directory: int, name: str, flags: int) -> int | None:
    """None if it is no regular file: a pipe among the logs would block, and is none of ours."""
    descriptor = os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def _read_end(directory: int, name: str, limit_bytes: int) -> bytes:
    descriptor = _open_regular(directory, name, os.O_RDONLY)
    if descriptor is None:
        return b""
    with open(descriptor, "rb") as file:  # noqa: PTH123 - as above
        file.seek(max(0, os.fstat(descriptor).st_size - limit_bytes))
        return file.read(limit_bytes)


def _cut(directory: int, name: str) -> None:
    if not stat.S_ISREG((found := os.lstat(name, dir_fd=directory)).st_mode) or found.st_size <= LOG_LIMIT_BYTES:
        return
    descriptor = _open_regular(directory, name, os.O_RDWR | os.O_APPEND)
    if descriptor is None:
        return
    with open(descriptor, "r+b", buffering=0) as file:  # noqa: PTH123 - as above
        kept = _read_end(directory, name, LOG_KEPT_BYTES)
        # A writer that does not append goes on where it was: the gap before it reads as zeros.
        whole = kept.rpartition(b"\0")[2].partition(b"\n")[2]
        file.truncate(0)
        file.write(whole)

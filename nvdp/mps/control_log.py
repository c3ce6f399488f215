"""What a control daemon's log tells that no command does: whose server it is, and which users wait for theirs.

A daemon without ``-multiuser-server`` serves the clients of one user at a time. Another user's client is not refused:
it hangs until the server of the first one has no clients any more, and nothing but a line of the log says so. These
lines are not documented; they are the same in the logs of drivers from 460 to 610 that their users published.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from nvdp.errors import HostError

START_MARK: Final = "nvdp starts "
"""How the line begins that nvdp writes into the log before each start of a daemon."""

_LINE: Final = re.compile(r"\[[^\]]*? (?:Control|Server|Legacy Server|Other) +\d+\] (.*)")
_DAEMON_STARTS: Final = re.compile(r"Start$|Starting control daemon using socket ")
_SERVER_STARTS: Final = re.compile(r"Starting new server (\d+) for user (\d+)")
_SERVER_READY: Final = re.compile(r"NEW SERVER (\d+): Ready")
_SERVER_ENDED: Final = re.compile(r"Server (\d+) exited with status ")
_CLIENT_WAITS: Final = re.compile(r"NEW CLIENT (\d+) from user (\d+): Server is not ready, push client to pending list")
_CLIENT_SERVED: Final = re.compile(r"NEW CLIENT (\d+) from user (\d+): Server already exists")
# Left by each command, ours once a second among them, and by every healthy connection.
_NOISE: Final = re.compile(r"Accepting connection\.\.\.|User did not send valid credentials|NEW UI|UI closed|Cmd:get_")
_LIMIT_BYTES: Final = 4 * 1024 * 1024
_REMEMBERED_BYTES: Final = 512


def _text_of(line: str) -> str:
    """The line without its time and writer, if it has them."""
    found = _LINE.match(line)
    return found[1] if found is not None else line


class WaitingClient(msgspec.Struct, frozen=True):
    """A client that was not given to a server yet. ``pid`` is 0 where the daemon cannot see it; ``since`` monotonic."""

    pid: int
    user: int
    since: float


def is_noise(line: str) -> bool:
    """Whether the line says only that somebody asked the daemon something."""
    return _NOISE.match(_text_of(line)) is not None


class ControlLog:
    """The state that the lines of one daemon's log add up to. Pure; one thread at a time.

    Of a daemon that has ``-multiuser-server`` it tells nothing useful: its one server is nobody's own.
    """

    def __init__(self) -> None:
        self._users: dict[int, int] = {}
        self._ready: int | None = None
        self._waiting: dict[tuple[int, int], float] = {}  # since when, by PID and user

    @property
    def server_user(self) -> int | None:
        """The user ID whose server is ready; None while there is none, or if its start was not seen."""
        return self._users.get(self._ready) if self._ready is not None else None

    def take(self, line: str, *, at: float) -> None:
        """Take in the next line, which was read at ``at``, monotonic seconds. What says nothing of this is ignored."""
        text = _text_of(line)
        if line.startswith(START_MARK) or _DAEMON_STARTS.match(text):
            self._users, self._ready, self._waiting = {}, None, {}
        elif found := _SERVER_STARTS.match(text):
            self._users[int(found[1])] = int(found[2])
        elif found := _SERVER_READY.match(text):
            self._ready = int(found[1])
            self._serve(self._users.get(self._ready))
        elif found := _SERVER_ENDED.match(text):
            self._end(int(found[1]))
        elif found := _CLIENT_SERVED.match(text):
            self._serve(int(found[2]))
        elif found := _CLIENT_WAITS.match(text):
            self._waiting.setdefault((int(found[1]), int(found[2])), at)

    def forget_gone(self, is_alive: Callable[[int], bool]) -> None:
        """Drop clients that wait and have ended since, of which the log says nothing.

        A client without a PID counts as alive.
        """
        self._waiting = {key: since for key, since in self._waiting.items() if not key[0] or is_alive(key[0])}

    def list_waiting(self) -> tuple[WaitingClient, ...]:
        """The clients that wait because the server is another user's, longest first. None while no server is ready:
        then a client waits for its own.
        """
        owner = self.server_user
        if owner is None:
            return ()
        waiting = [WaitingClient(pid, user, since) for (pid, user), since in self._waiting.items() if user != owner]
        return tuple(sorted(waiting, key=lambda client: client.since))

    def _serve(self, user: int | None) -> None:
        self._waiting = {key: since for key, since in self._waiting.items() if key[1] != user}

    def _end(self, server: int) -> None:
        self._users.pop(server, None)
        if self._ready == server:
            self._ready = None


class LogFollower:
    """The new lines of a file that grows, is cut from time to time, and may be made anew. One thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._before = b""  # the last bytes before the offset, by which the place is known again

    def read_lines(self) -> tuple[str, ...]:
        """The whole lines that came since the last call; at first all. None where there is no file.

        After a cut it goes on behind the last line that it knows, if that is still there, else from the start. Of more
        than 4 MiB the rest comes with the next call. Raises HostError if the file cannot be read. Blocks for the disk
        only.
        """
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise HostError(f"{self._path}: cannot be read: {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise HostError(f"{self._path}: is no regular file; remove it")
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor, not a path
            file.seek(self._offset - len(self._before))
            if file.read(len(self._before)) != self._before:
                file.seek(0)
                kept = file.read(_LIMIT_BYTES)
                known = kept.rfind(self._before)
                self._offset = known + len(self._before) if known >= 0 else 0
            file.seek(self._offset)
            new, newline, _begun = file.read(_LIMIT_BYTES).rpartition(b"\n")
        whole = new + newline
        self._offset += len(whole)
        self._before = (self._before + whole)[-_REMEMBERED_BYTES:]
        return tuple(new.decode("utf-8", "replace").split("\n")) if whole else ()

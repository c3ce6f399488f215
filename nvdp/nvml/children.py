"""All NVML children of this process: how they are started, and what became of those that would not die."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

import nvdp
from nvdp.errors import HostError
from nvdp.model.platforms import DeviceDiscoveryStrategy
from nvdp.nvml.client import NvmlClient, OnNotice

_KILL_WAIT_S: Final = 1.0
# A driver that does not let go of four processes would not let go of a fifth either.
_MOST_ABANDONED: Final = 4


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where the driver's files are, as this process sees them, and how the GPUs are found."""

    driver_root: str = "/"
    discovery: DeviceDiscoveryStrategy = DeviceDiscoveryStrategy.AUTO


class NvmlChildren:
    """Starts children that use the driver of ``source``, or the machine of the node file ``simulated``.

    Any thread. ``kill`` is what ends a process at once; it is a parameter because no test can put a process into an
    uninterruptible sleep.
    """

    def __init__(
        self,
        *,
        driver_root: str = "/",
        discovery: DeviceDiscoveryStrategy = DeviceDiscoveryStrategy.AUTO,
        simulated: str = "",
        kill: Callable[[subprocess.Popen[bytes]], None] = subprocess.Popen.kill,
        kill_wait_s: float = _KILL_WAIT_S,
    ) -> None:
        self._source = Source(driver_root=driver_root, discovery=discovery)
        self._simulated = simulated
        # A simulated machine reports mistakes in an edited node file there; a driver's library may write anything.
        self._stderr_shown = bool(simulated)
        self._kill = kill
        self._kill_wait_s = kill_wait_s
        self._lock = threading.Lock()
        self._alive: set[NvmlClient] = set()
        self._abandoned: list[NvmlClient] = []
        self._closing = False

    @property
    def source(self) -> Source:
        """What the next children are started with."""
        return self._source

    def use(self, source: Source) -> None:
        """Start the next children with this source."""
        self._source = source

    def _choose_source(self) -> list[str]:
        discovery = ["--discovery", self._source.discovery.value]
        if self._simulated:
            return [*discovery, "--simulated", self._simulated]
        # Where no driver root is mounted the driver's files are among our own.
        root = self._source.driver_root
        return [*discovery, "--driver-root", root if Path(root).is_dir() else "/"]

    def spawn(self, on_notice: OnNotice | None = None) -> NvmlClient:
        """A new child; NVML is loaded and initialised by its first command. Raises HostError if there can be none.

        There is none while four earlier ones sleep in the driver and cannot be killed, and none after ``close_all``
        until ``reopen``. The child dies when the thread that called this ends (PR_SET_PDEATHSIG is bound to the
        thread). ``on_notice``: see ``NvmlClient``; without it nobody hears the events.
        """
        if self._is_closing():
            raise HostError("no NVML child is started: the driver is let go of")
        abandoned = self.count_abandoned()
        if abandoned >= _MOST_ABANDONED:
            text = f"{abandoned} NVML children hang in the driver and cannot be killed"
            raise HostError(f"{text}; no more are started until one is gone, which may need a reboot of the node")
        try:
            client = self._start(on_notice or _ignore)
        except (OSError, RuntimeError) as error:  # no process, no file or no thread more
            raise HostError(f"the NVML child cannot be started: {error}; see the pod's limits") from error
        with self._lock:
            self._alive.add(client)
        if self._is_closing():
            client.close()  # it was late: every call of it answers ``Closed``
        return client

    def end(self, client: NvmlClient) -> None:
        """End a child and wait a second at most; called by the thread that uses it."""
        gone = client.end(wait_s=self._kill_wait_s)
        with self._lock:
            self._alive.discard(client)
            if not gone:
                self._abandoned.append(client)

    def count_abandoned(self) -> int:
        """Children that were killed but are not gone: they sleep uninterruptibly in the driver. Does not block."""
        with self._lock:
            self._abandoned = [client for client in self._abandoned if not client.is_gone]
            return len(self._abandoned)

    @property
    def are_gone(self) -> bool:
        """Whether no child is left, so that nobody of ours has the driver open. Does not block."""
        with self._lock:
            return not self._alive and all(client.is_gone for client in self._abandoned)

    def reopen(self) -> None:
        """Let children be started again after ``close_all``."""
        with self._lock:
            self._closing = False

    def close_all(self) -> None:
        """Kill all children at once, and start none until ``reopen``: calls that wait return ``Closed``.

        Whoever started a child still ends it. Does not block.
        """
        with self._lock:
            self._closing = True
            clients = list(self._alive)
        for client in clients:
            client.close()

    def _is_closing(self) -> bool:
        with self._lock:
            return self._closing

    def _start(self, on_notice: OnNotice) -> NvmlClient:
        ours, theirs = socket.socketpair()
        stderr, stderr_theirs = (None, None) if self._stderr_shown else _open_pipe()
        process = None
        try:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [
                    sys.executable,
                    "-P",
                    "-S",
                    "-m",
                    "nvdp.nvml.child",
                    "--fd",
                    str(theirs.fileno()),
                    *self._choose_source(),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr_theirs,
                env=_build_environment(),
                process_group=0,  # a key pressed in a terminal is not for it
            )
            return NvmlClient(process, ours, stderr, kill=self._kill, on_notice=on_notice)
        except BaseException:
            ours.close()
            if stderr is not None:
                os.close(stderr)
            if process is not None:
                process.kill()
                process.wait()  # it has asked the driver nothing yet: it goes at once
            raise
        finally:
            theirs.close()
            if stderr_theirs is not None:
                os.close(stderr_theirs)


def _ignore(pid: int, notice: object) -> None:
    """For those who only ask."""


def _open_pipe() -> tuple[int, int]:
    """A pipe that never blocks: nobody reads between commands, and a talkative library must not wait for that."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    return reader, writer


def _build_environment() -> dict[str, str]:
    """Our own, with our import path: the child starts without ``site``, which saves it a quarter of its start."""
    here = str(Path(nvdp.__file__).parent.parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([here, *filter(None, sys.path)])}

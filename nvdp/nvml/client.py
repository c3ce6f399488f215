"""The daemon's side of one NVML child: send a command, follow the breadcrumbs, know when to give up, and on whom."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias, TypeGuard

import msgspec

from nvdp.model.inventory import GpuRef
from nvdp.nvml.frames import Answer, Breadcrumb, Close, Command, FrameBuffer, Message, encode_frame

INIT_LIMIT_S: Final = 60.0
# Loading and initialising may wait for hardware that wakes up; starting the interpreter, for a cold disk.
_SLOW_CALLS: Final = frozenset({"start", "dlopen", "nvmlInit"})
_CHUNK_BYTES: Final = 65536
_STDERR_KEPT_BYTES: Final = 4096
_LINE_KEPT_CHARS: Final = 200
_POLITE_END_S: Final = 1.0
_EXIT_CODE_WAIT_S: Final = 0.5
# Signals that come from outside. All others mean that the library crashed in the call.
_OUTSIDE_SIGNALS: Final = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})


class Hung(msgspec.Struct, frozen=True, kw_only=True):
    """A call that did not return within its limit."""

    call: str
    gpu: GpuRef | None
    limit_s: float

    @property
    def text(self) -> str:
        return f"{self.call or 'the NVML child'} did not return within {self.limit_s:g}s"


class Died(msgspec.Struct, frozen=True, kw_only=True):
    """The child ended, or had to be given up, without an answer.

    ``at_fault`` says that the call itself did it, as a crash in the driver library does: a child that was killed or
    stopped from outside says nothing about the GPU it was busy with. ``trace`` is the end of its standard error.
    """

    call: str
    gpu: GpuRef | None
    how: str
    at_fault: bool
    trace: str = ""

    @property
    def text(self) -> str:
        return f"the NVML child {self.how}{f' in {self.call}' if self.call else ''}"


class Closed(msgspec.Struct, frozen=True):
    """``close`` was called meanwhile, or before."""


Outcome: TypeAlias = Answer | Hung | Died | Closed


def is_gpus_fault(outcome: Outcome) -> TypeGuard[Hung | Died]:
    """Whether one GPU is to blame, so that all is well without it."""
    return (isinstance(outcome, Hung) and outcome.gpu is not None) or (isinstance(outcome, Died) and outcome.at_fault)


class NvmlClient:
    """One child, used by one thread; only ``close`` may come from any thread.

    After ``Refused`` and after any outcome that is no answer the child is of no more use: ``end`` it.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        connection: socket.socket,
        stderr: int | None,
        *,
        kill: Callable[[subprocess.Popen[bytes]], None],
    ) -> None:
        self._process = process
        self._connection = connection
        self._stderr = stderr
        self._kill = kill
        self._tail = b""
        self._frames = FrameBuffer()
        self._crumb = Breadcrumb(call="start")
        self._lock = threading.Lock()
        self._usable = True
        self._closed = False
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        if stderr is not None:
            self._poll.register(stderr, select.POLLIN)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_gone(self) -> bool:
        """Whether the process has ended and was reaped. Does not block."""
        return self._process.poll() is not None

    def call(self, command: Command, *, limit_s: float) -> Outcome:
        """Send ``command`` and wait for its answer, for at most ``limit_s`` after each breadcrumb. Raises nothing.

        Starting, loading and ``nvmlInit`` have a minute.
        """
        usable, self._usable = self._usable, False
        if self._crumb.call != "start":
            self._crumb = Breadcrumb(call="")  # the last one belongs to an earlier command
        try:
            if not usable:
                raise BrokenPipeError
            self._connection.sendall(encode_frame(command))
            outcome = self._follow(limit_s)
        except OSError:
            outcome = self._explain_end()
        except ValueError as error:  # no frame of ours
            outcome = self._die(f"sent nonsense ({error})")
        self._usable = not isinstance(outcome, Hung | Died | Closed)
        return outcome

    def close(self) -> None:
        """Kill the child, from any thread; a call that waits returns ``Closed`` at once. The owner still ends it."""
        self._closed = True
        self._kill(self._process)
        with self._lock, contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def end(self, *, wait_s: float) -> bool:
        """End the child, politely if it listens, and wait for at most ``wait_s``. False if it would not go.

        A process in an uninterruptible sleep in the driver does not even die of SIGKILL until that sleep is over.
        """
        if self._usable and not self._closed:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self._connection.sendall(encode_frame(Close()))
                self._process.wait(_POLITE_END_S)
        if self._process.poll() is None:
            self._kill(self._process)
        with self._lock:
            self._connection.close()
        if self._stderr is not None:
            os.close(self._stderr)
            self._stderr = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(wait_s)
        return self.is_gone

    def _follow(self, limit_s: float) -> Outcome:
        since = time.monotonic()
        while True:
            limit = max(limit_s, INIT_LIMIT_S) if self._crumb.call in _SLOW_CALLS else limit_s
            remaining = since + limit - time.monotonic()
            if not self._wait_readable(remaining):
                if remaining <= 0:
                    return self._give_up(limit)
                continue
            for message in self._receive():
                if not isinstance(message, Breadcrumb):
                    return message
                self._crumb = message
                since = time.monotonic()

    def _wait_readable(self, limit_s: float) -> bool:
        """Whether the child has said something; reads what it writes to its standard error in passing."""
        ready = self._poll.poll(math.ceil(max(0.0, limit_s) * 1000))
        if any(fd == self._stderr for fd, _ in ready):
            self._drain_stderr()
        return any(fd != self._stderr for fd, _ in ready)

    def _receive(self) -> list[Message]:
        """Raises BrokenPipeError at the end of the child, ValueError at what is no frame."""
        data = self._connection.recv(_CHUNK_BYTES)
        if not data:
            raise BrokenPipeError
        self._frames.add(data)
        return list(self._frames.take())

    def _give_up(self, limit_s: float) -> Outcome:
        if self._closed:
            return Closed()
        if _is_stopped(self.pid):
            return self._die("was stopped (SIGSTOP)")
        return Hung(call=self._crumb.call, gpu=self._crumb.gpu, limit_s=limit_s)

    def _explain_end(self) -> Outcome:
        if self._closed:
            return Closed()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_CODE_WAIT_S)
        self._drain_stderr()
        code = self._process.returncode
        if code is None:
            return self._die("closed its connection")
        if code < 0:
            outside = -code in _OUTSIDE_SIGNALS
            return self._die(f"was killed by {_name_signal(-code)}", at_fault=not outside)
        lines = self._tail.decode(errors="replace").strip().splitlines()
        last = f": {lines[-1][:_LINE_KEPT_CHARS]}" if lines else ""
        return self._die(f"exited with code {code}{last}", at_fault=True)

    def _die(self, how: str, *, at_fault: bool = False) -> Died:
        trace = self._tail.decode(errors="replace")
        gpu = self._crumb.gpu
        return Died(call=self._crumb.call, gpu=gpu, how=how, at_fault=at_fault and gpu is not None, trace=trace)

    def _drain_stderr(self) -> None:
        if self._stderr is None:
            return
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._stderr, _CHUNK_BYTES):
                self._tail = (self._tail + data)[-_STDERR_KEPT_BYTES:]
            self._poll.unregister(self._stderr)
            os.close(self._stderr)
            self._stderr = None


def _is_stopped(pid: int) -> bool:
    """Whether the process is held by SIGSTOP or a debugger: then no call of it can be blamed."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[:1] in (["T"], ["t"])


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

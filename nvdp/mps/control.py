"""The pipe of one control daemon: commands to it, and what it answers. Each command is a process that says one line.

NVIDIA documents the commands and not their output; what is read here is what several independent programs read. The
format of a state of a server is not documented at all: the word is searched for.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from nvdp.errors import HostError, quote
from nvdp.mps.program import build_environment, explain_start

COMMAND_LIMIT_S: Final = 2.0
"""How long a command may take. After that the daemon counts as one that does not answer."""
UNKNOWN_STATE: Final = "unknown"

_STATES: Final = ("initializing", "active", "fault")
_NO_DAEMON: Final = "Cannot find MPS control daemon process"  # said with exit status 1, as far as is known
_AFTER_KILL_S: Final = 1.0
_ANSWER_LIMIT_BYTES: Final = 64 * 1024  # the longest that is of use, 1,000 numbers, has 11,000
_NUMBERS_LIMIT: Final = 1000  # a daemon has 60 clients on a GPU at most
_DIGITS_LIMIT: Final = 10  # a PID has 7


class ControlTimeoutError(HostError):
    """The daemon did not answer in time. Whether it does what it was told is not known."""


class ControlFailedError(HostError):
    """The daemon refused, answered what cannot be understood, or is not there."""


class ControlUnaskableError(HostError):
    """The question could not be put: there is no program, or this node has no process or file left for it.

    It says nothing about the daemon.
    """


class ControlPipe:
    """The pipe directory of one daemon, asked by ``program``.

    Any thread; commands are serialized, for a daemon that is asked by several at once fails some of them (202 of 800
    were seen). Each call blocks for ``limit_s`` at most, after its turn has come, and 1 s more for the asking process
    to end. All raise ControlTimeoutError or ControlFailedError, in one line that names the pipe directory, or
    ControlUnaskableError, in one that names the program.
    """

    def __init__(self, program: str, pipe_dir: Path, *, limit_s: float = COMMAND_LIMIT_S) -> None:
        self._program = program
        self._pipe_dir = pipe_dir
        self._limit_s = limit_s
        self._lock = threading.Lock()

    def ask(self, command: str) -> str:
        """Give one command; its answer without what is white at its ends."""
        with self._lock:
            exit_code, answer, complaint = self._run(command)
        if exit_code != 0 or _NO_DAEMON in answer or _NO_DAEMON in complaint:
            said = " ".join((complaint or answer).split())
            raise ControlFailedError(
                f"{self._pipe_dir}: {command}: {quote(said) if said else 'failed'}"
                f" ({f'signal {-exit_code}' if exit_code < 0 else f'exit code {exit_code}'})"
            )
        return answer

    def find_thread_percent(self) -> float:
        """The default share of the threads that a client gets, in percent. The round trip that shows a daemon alive."""
        command = "get_default_active_thread_percentage"
        answer = self.ask(command)
        try:
            percent = float(answer)
        except ValueError:
            percent = math.nan
        if not math.isfinite(percent):
            raise self._misunderstood(command, answer)
        return percent

    def list_servers(self) -> Mapping[int, str]:
        """The state of each server by PID, in lower case; ``unknown`` if the daemon does not tell it of one.

        A daemon starts its server for the first client and ends it when another user's turn comes.
        """
        return {server: self._find_state(server) for server in self._ask_numbers("get_server_list")}

    def list_clients(self, server: int) -> tuple[int, ...]:
        """The PIDs of the clients of that server."""
        return self._ask_numbers(f"get_client_list {server}")

    def set_thread_percent(self, percent: int) -> None:
        """The share of the threads that no client of a server exceeds which starts from now on."""
        self.ask(f"set_default_active_thread_percentage {percent}")

    def set_memory_limit(self, uuid: str, mib: int) -> None:
        """The memory of that GPU that no client of a server exceeds which starts from now on.

        The daemon takes any name for a GPU and ignores those that it does not know.
        """
        self.ask(f"set_default_device_pinned_mem_limit {uuid} {mib}M")

    def quit(self) -> None:
        """Tell the daemon to end. It may wait for its clients first, and so may this call, as long as any command.

        ControlTimeoutError therefore does not say that it will not end.
        """
        self.ask("quit")

    def _find_state(self, server: int) -> str:
        try:
            answer = self.ask(f"get_server_status {server}")
        except ControlFailedError:  # it has just ended
            return UNKNOWN_STATE
        words = answer.lower().replace(":", " ").split()
        return next((state for state in _STATES if state in words), UNKNOWN_STATE)

    def _ask_numbers(self, command: str) -> tuple[int, ...]:
        answer = self.ask(command)
        words = answer.split()
        if len(words) > _NUMBERS_LIMIT or not all(map(_is_number, words)):
            raise self._misunderstood(command, answer)
        return tuple(map(int, words))

    def _misunderstood(self, command: str, answer: str) -> ControlFailedError:
        return ControlFailedError(f"{self._pipe_dir}: {command}: answered {quote(answer)}, which nvdp cannot read")

    def _run(self, command: str) -> tuple[int, str, str]:
        """Exit code, answer and complaint of a process that gives the command."""
        try:
            process = subprocess.Popen(  # noqa: S603 - the program that the options name, without a shell
                [self._program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=build_environment(self._pipe_dir),
                process_group=0,  # a key pressed in a terminal is not for it
            )
        except OSError as error:
            raise ControlUnaskableError(explain_start(self._program, error)) from error
        try:
            answer, complaint = _converse(process, f"{command}\n".encode(), self._limit_s)
        except subprocess.TimeoutExpired as error:
            raise ControlTimeoutError(f"{self._pipe_dir}: {command}: no answer within {self._limit_s:g} s") from error
        except _TooLongError as error:
            text = f"{self._pipe_dir}: {command}: the answer has more than {_ANSWER_LIMIT_BYTES // 1024} KiB"
            raise ControlFailedError(text) from error
        finally:
            _end(process)
        return process.returncode, _decode(answer), _decode(complaint)


class _TooLongError(Exception):
    """More was said than anybody wants to know."""


def _converse(process: subprocess.Popen[bytes], said: bytes, limit_s: float) -> tuple[bytes, bytes]:
    """Say it, and what comes back on both outputs once the process has ended.

    As ``communicate`` does, which keeps all that ever comes: a program that has gone mad would fill our memory.
    Raises TimeoutExpired and _TooLongError.
    """
    deadline = time.monotonic() + limit_s
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it does not listen, and may answer all the same
        os.write(process.stdin.fileno(), said)  # at once: a pipe takes more than a line
        process.stdin.close()
    assert process.stdout is not None
    assert process.stderr is not None
    answer, complaint = bytearray(), bytearray()
    with selectors.PollSelector() as selector:  # it needs no file, of which none may be left
        selector.register(process.stdout, selectors.EVENT_READ, answer)
        selector.register(process.stderr, selectors.EVENT_READ, complaint)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(process.args, limit_s)
            for key, _events in ready:
                part = os.read(key.fd, _ANSWER_LIMIT_BYTES)
                if not part:
                    selector.unregister(key.fileobj)
                heard: bytearray = key.data
                heard += part
                if len(heard) > _ANSWER_LIMIT_BYTES:
                    raise _TooLongError
    process.wait(max(0.0, deadline - time.monotonic()))
    return bytes(answer), bytes(complaint)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let go of the process and of those that it started.

    It may be one that no signal reaches while the driver holds it.
    """
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)  # nobody has asked for its exit code: the number is still its own
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_AFTER_KILL_S)
    for stream in (process.stdin, process.stdout, process.stderr):
        assert stream is not None
        with contextlib.suppress(OSError):  # of what it did not read any more
            stream.close()


def _is_number(word: str) -> bool:
    return len(word) <= _DIGITS_LIMIT and word.isascii() and word.isdigit()


def _decode(said: bytes) -> str:
    return said.decode("utf-8", "replace").strip()

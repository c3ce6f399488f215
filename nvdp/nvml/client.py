"""The daemon's side of one NVML child: send a command, follow the breadcrumbs, know when to give up, and on whom."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

from nvdp.nvml.frames import Close, Command, Notice, encode_frame
from nvdp.nvml.outcomes import Closed, Died, Hung, Outcome
from nvdp.nvml.receiver import Receiver

INIT_LIMIT_S: Final = 60.0
# Loading and initialising may wait for hardware that wakes up; starting the interpreter, for a cold disk.
_SLOW_CALLS: Final = frozenset({"start", "dlopen", "nvmlInit"})
_LINE_KEPT_CHARS: Final = 200
_POLITE_END_S: Final = 1.0
_EXIT_CODE_WAIT_S: Final = 0.5
# What has come is about to be read: no time to give up, and none to spin.
_READ_SOON_S: Final = 0.01
# Signals that come from outside. All others mean that the library crashed in the call.
_OUTSIDE_SIGNALS: Final = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})

OnNotice: TypeAlias = Callable[[int, Notice | Died], None]


class NvmlClient:
    """One child, used by one thread; only ``close`` may come from any thread.

    After ``Refused`` and after any outcome that is no answer the child is of no more use: ``end`` it.
    ``on_notice(pid, notice)`` is called by a thread of the child's own, named ``nvml-events``, with all that the child
    tells unasked, and with ``Died`` if it dies while no call waits for it; it must not block. Raises RuntimeError if no
    thread can be started.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        connection: socket.socket,
        stderr: int | None,
        *,
        kill: Callable[[subprocess.Popen[bytes]], None],
        on_notice: OnNotice,
    ) -> None:
        self._process = process
        self._connection = connection
        self._kill = kill
        self._usable = True
        self._closed = False
        self._receiver = Receiver(
            connection, stderr, tell=lambda notice: on_notice(process.pid, notice), explain_end=self._explain_end
        )
        self._receiver.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_gone(self) -> bool:
        """Whether the process has ended and was reaped. Does not block."""
        return self._process.poll() is not None

    def call(self, command: Command, *, limit_s: float, init_limit_s: float = INIT_LIMIT_S) -> Outcome:
        """Send ``command`` and wait for its answer, for at most ``limit_s`` after each breadcrumb. Raises nothing.

        Starting, loading and ``nvmlInit`` have ``init_limit_s``, where that is longer.
        """
        outcome: Outcome | None = self._receiver.expect()
        if outcome is None:
            with contextlib.suppress(OSError):  # the receiver meets the end too, and knows more of it
                self._connection.sendall(encode_frame(command))
            outcome = self._follow(limit_s, init_limit_s)
        self._usable = not isinstance(outcome, Hung | Died | Closed)
        return outcome

    def close(self) -> None:
        """Kill the child, from any thread; a call that waits returns ``Closed`` at once. The owner still ends it."""
        self._closed = True
        self._kill(self._process)
        self._receiver.hang_up()

    def end(self, *, wait_s: float) -> bool:
        """End the child, politely if it listens, and wait for at most ``wait_s``. False if it would not go.

        What it has told until then is still passed on. A process in an uninterruptible sleep in the driver does not
        even die of SIGKILL until that sleep is over.
        """
        is_polite, self._closed = self._usable and not self._closed, True
        if is_polite:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self._connection.sendall(encode_frame(Close()))
                self._process.wait(_POLITE_END_S)
        if self._process.poll() is None:
            self._kill(self._process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(wait_s)
        self._receiver.stop()
        return self.is_gone

    def _follow(self, limit_s: float, init_limit_s: float) -> Outcome:
        while True:
            crumb, heard_at = self._receiver.last
            limit = max(limit_s, init_limit_s) if crumb.call in _SLOW_CALLS else limit_s
            remaining = heard_at + limit - time.monotonic()
            # Not a minute at once: the next breadcrumb may be of a call that has less, and wakes nobody up.
            outcome = self._receiver.find_answer(max(_READ_SOON_S, min(remaining, limit_s)))
            if outcome is not None:
                return outcome
            if remaining <= 0 and self._receiver.is_silent_since(heard_at):
                return self._give_up(limit)

    def _give_up(self, limit_s: float) -> Outcome:
        if self._closed:
            return Closed()
        if _is_stopped(self.pid):
            return self._die("was stopped (SIGSTOP)")
        crumb, _ = self._receiver.last
        return Hung(call=crumb.call, gpu=crumb.gpu, limit_s=limit_s)

    def _explain_end(self, how: str) -> Died | Closed:
        """What became of the child. Called by the receiver's thread."""
        if self._closed:
            return Closed()
        if how:
            return self._die(how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_CODE_WAIT_S)
        code = self._process.returncode
        if code is None:
            return self._die("closed its connection")
        if code < 0:
            outside = -code in _OUTSIDE_SIGNALS
            return self._die(f"was killed by {_name_signal(-code)}", at_fault=not outside)
        lines = self._receiver.tail.strip().splitlines()
        last = f": {lines[-1][:_LINE_KEPT_CHARS]}" if lines else ""
        return self._die(f"exited with code {code}{last}", at_fault=True)

    def _die(self, how: str, *, at_fault: bool = False) -> Died:
        crumb, _ = self._receiver.last
        is_to_blame = at_fault and crumb.gpu is not None
        return Died(call=crumb.call, gpu=crumb.gpu, how=how, at_fault=is_to_blame, trace=self._receiver.tail)


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

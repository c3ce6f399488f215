"""Listens to one NVML child in a thread of its own, so that an event is heard while nobody asks anything."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Final, TypeAlias

from nvdp.nvml.frames import Answer, Breadcrumb, Ecc, FrameBuffer, Notice, WatchFailed, Xid
from nvdp.nvml.outcomes import Closed, Died

_CHUNK_BYTES: Final = 65536
_STDERR_KEPT_BYTES: Final = 4096
_JOIN_S: Final = 1.0
_START: Final = Breadcrumb(call="start")
_IDLE: Final = Breadcrumb(call="")

End: TypeAlias = Died | Closed


class Receiver:
    """Reads all that a child says, to its end, and its standard error; ``start`` it once.

    The thread is named ``nvml-events``. ``tell`` is called there with each notice, in order and at once, and with
    ``Died`` if the child ends while nobody waits for an answer; it must not block. ``explain_end(how)`` says what
    became of the child, ``how`` being what is known already; it may block for a moment.
    """

    def __init__(
        self,
        connection: socket.socket,
        stderr: int | None,
        *,
        tell: Callable[[Notice | Died], None],
        explain_end: Callable[[str], End],
    ) -> None:
        self._connection = connection
        self._stderr = stderr
        self._tell = tell
        self._explain_end = explain_end
        self._frames = FrameBuffer()
        self._answers: queue.SimpleQueue[Answer | End] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waited_for = False
        self._end: End | None = None
        self._crumb = _START
        self._heard_at = 0.0
        self._tail = b""
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        if stderr is not None:
            self._poll.register(stderr, select.POLLIN)
        self._peek = select.poll()
        self._peek.register(connection, select.POLLIN)
        self._thread = threading.Thread(target=self._run, name="nvml-events", daemon=True)

    def start(self) -> None:
        """Start to listen. Raises RuntimeError if no thread can be started."""
        self._thread.start()

    @property
    def last(self) -> tuple[Breadcrumb, float]:
        """The last breadcrumb of the command in progress, and when it, or that command, came (monotonic seconds)."""
        with self._lock:
            return self._crumb, self._heard_at

    @property
    def tail(self) -> str:
        """The end of what the child wrote to its standard error."""
        return self._tail.decode(errors="replace")

    def expect(self) -> End | None:
        """An answer will be waited for; if the child has ended already there will be none, and this is why."""
        with self._lock:
            if self._end is None:
                self._waited_for = True
                self._heard_at = time.monotonic()
            return self._end

    def find_answer(self, limit_s: float) -> Answer | End | None:
        """The answer, or the end; None if there is neither after ``limit_s``."""
        with contextlib.suppress(queue.Empty):
            return self._answers.get(timeout=max(0.0, limit_s))
        return None

    def is_silent_since(self, heard_at: float) -> bool:
        """Whether the child has not said a word since: nothing was heard, and nothing waits to be."""
        with self._lock:
            return self._heard_at == heard_at and not self._peek.poll(0)

    def hang_up(self) -> None:
        """End the connection, from any thread; the listener meets its end."""
        with self._lock, contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        """Stop listening, and close connection and pipe. Not to be called by ``tell``."""
        self.hang_up()
        self._thread.join(_JOIN_S)
        with self._lock:
            self._connection.close()
        self._close_stderr()

    # What follows runs in the thread.

    def _run(self) -> None:
        how = ""
        try:
            while self._receive():
                pass
        except OSError:
            pass  # the connection broke: as good as its end
        except ValueError as error:  # no frame of ours
            how = f"sent nonsense ({error})"
        finally:
            self._finish(how)

    def _receive(self) -> bool:
        """Wait for what comes next and pass it on. False at the end of the child."""
        ready = [fd for fd, _ in self._poll.poll()]
        if self._stderr in ready:
            self._read_stderr()
        if self._connection.fileno() not in ready:
            return True
        with self._lock:  # for whom looks whether the child is silent, the bytes and what they say are one
            data = self._connection.recv(_CHUNK_BYTES)
            self._frames.add(data)
            messages = list(self._frames.take())
            crumbs = [message for message in messages if isinstance(message, Breadcrumb)]
            if crumbs:
                self._crumb, self._heard_at = crumbs[-1], time.monotonic()
        for message in messages:
            if isinstance(message, Xid | Ecc | WatchFailed):
                self._tell(message)
            elif not isinstance(message, Breadcrumb):
                with self._lock:
                    self._hand_over(message)
        return bool(data)

    def _hand_over(self, answer: Answer | End) -> bool:
        """Give it to whom waits for it; false if nobody does. The lock is held."""
        self._waited_for, was_waited_for = False, self._waited_for
        if was_waited_for:
            self._answers.put(answer)
        self._crumb = _IDLE
        return was_waited_for

    def _finish(self, how: str) -> None:
        self._read_stderr()
        end = self._explain_end(how)
        with self._lock:
            self._end = end
            was_waited_for = self._hand_over(end)
        if not was_waited_for and isinstance(end, Died):
            self._tell(end)

    def _read_stderr(self) -> None:
        """What is in the pipe, which holds no more than one chunk."""
        if self._stderr is None:
            return
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._stderr, _CHUNK_BYTES)
            self._tail = (self._tail + data)[-_STDERR_KEPT_BYTES:]
            if not data:
                self._close_stderr()

    def _close_stderr(self) -> None:
        stderr, self._stderr = self._stderr, None
        if stderr is not None:
            self._poll.unregister(stderr)
            os.close(stderr)

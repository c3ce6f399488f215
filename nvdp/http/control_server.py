"""The control socket's server: ``nvdp status`` and orders on this node, for nobody but root and the daemon's own user.

HTTP over a Unix socket in the run directory. Without it the daemon works on: a socket that cannot be made is told once
and tried again for ever.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nvdp.errors import HostError
from nvdp.http.control_socket import SOCKET_NAME, File, find_file, is_admitted, open_socket
from nvdp.http.routes import NO_ROUTES, Routes
from nvdp.log import Log
from nvdp.model.reasons import Reason
from nvdp.model.status import Trouble

if TYPE_CHECKING:
    from nvdp.http.listener import Listener


class ControlServer:
    """Serves ``routes`` (by path) on a socket in ``run_dir``, and carries out ``orders``.

    Both are called on threads of their own, several at once; ``defect`` hears of their exceptions, the caller gets
    500. Every ``look_every_s`` it sees to it that the socket is still there and its own, or tries to have one.
    ``trouble`` is set while there is none; any thread may read it.
    """

    THREAD: Final = "control"

    def __init__(
        self,
        run_dir: Path,
        *,
        routes: Routes,
        orders: Routes = NO_ROUTES,
        log: Log,
        defect: Callable[[Exception], None],
        look_every_s: float = 2.0,
    ) -> None:
        self._path = run_dir / SOCKET_NAME
        self._routes = routes
        self._orders = orders
        self._log = log
        self._defect = defect
        self._look_every_s = look_every_s
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._listening: socket.socket | None = None
        self._file: File | None = None
        self.trouble: Trouble | None = None

    def start(self) -> None:
        """Serve on a thread named ``control``; returns at once. Also starts it again after it died of a defect."""
        threading.Thread(target=self._run, name=self.THREAD, daemon=True).start()

    def stop(self) -> None:
        """Remove the socket, if it is ours. Does not wait for requests in progress."""
        self._stopped.set()
        self._withdraw()

    def _run(self) -> None:
        while not self._stopped.is_set():
            listening = self._open()
            if listening is None:
                self._stopped.wait(self._look_every_s)
                continue
            with listening:
                try:
                    self._serve(listening)
                finally:
                    self._withdraw()

    def _open(self) -> socket.socket | None:
        """A socket to listen on; None if there can be none now, which is told once."""
        with self._lock:  # ``stop`` removes either this one or, having come first, lets none be made
            if self._stopped.is_set():
                return None
            try:
                self._listening, self._file = open_socket(self._path)
            except HostError as error:
                self._report(error)
                return None
            self.trouble = None
            return self._listening

    def _report(self, error: HostError) -> None:
        text = f"no control socket, and no nvdp status: {error}"
        if self.trouble is None or self.trouble.text != text:
            again = f"Trying again every {self._look_every_s:g}s"
            self._log(Reason.PORT_TAKEN, f"{text}. {again}", error=str(error))
        self.trouble = Trouble(reason=Reason.PORT_TAKEN.word, text=text)

    def _serve(self, listening: socket.socket) -> None:
        """Until the socket's file is gone or another's, or ``stop``.

        The standard library's server is imported by the first request: at rest only the kernel listens.
        """
        listener: Listener | None = None
        poll = select.poll()
        poll.register(listening, select.POLLIN)
        while not self._stopped.is_set() and find_file(self._path) == self._file:
            if poll.poll(self._look_every_s * 1000) and not self._stopped.is_set():
                listener = listener or self._make_listener(listening)
                listener.handle_request()

    def _make_listener(self, listening: socket.socket) -> Listener:
        from nvdp.http.listener import Listener  # noqa: PLC0415 - see ``_serve``

        return Listener(listening, self._routes, self._defect, self._stopped, orders=self._orders, admits=is_admitted)

    def _withdraw(self) -> None:
        """Take the socket out of the way, and wake the thread that waits for connections; it closes it."""
        with self._lock:
            if self._listening is None:
                return
            with contextlib.suppress(OSError):
                if find_file(self._path) == self._file:
                    self._path.unlink()
            with contextlib.suppress(OSError):
                self._listening.shutdown(socket.SHUT_RDWR)
            self._listening = self._file = None

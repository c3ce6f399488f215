"""A small HTTP server for probes and metrics: GET and HEAD of a few fixed paths, for whoever reaches the port."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from nvdp.http.routes import Routes
from nvdp.log import Log
from nvdp.model.reasons import Reason
from nvdp.model.status import Trouble

if TYPE_CHECKING:
    from nvdp.http.listener import Listener


class HttpServer:
    """Serves ``routes`` (by path) on ``port`` of all addresses, IPv4 and IPv6. Port 0: off.

    A port in use is a warning, and tried again every 10 s: probes fail meanwhile, the node's GPUs do not. Routes are
    called on threads of their own, several at once; ``defect`` hears of their exceptions, the caller gets 500.
    ``trouble`` is set while the port cannot be had; any thread may read it.
    """

    THREAD: Final = "http"

    def __init__(
        self,
        *,
        port: int,
        routes: Routes,
        log: Log,
        defect: Callable[[Exception], None],
        retry_s: float = 10.0,
    ) -> None:
        self._port = port
        self._routes = routes
        self._log = log
        self._defect = defect
        self._retry_s = retry_s
        self._stopped = threading.Event()
        self._listening = threading.Event()
        self._server: Listener | None = None
        self.trouble: Trouble | None = None

    def start(self) -> None:
        """Serve on a thread named ``http``; returns at once. Also starts it again after it died of a defect."""
        if self._port:
            threading.Thread(target=self._run, name=self.THREAD, daemon=True).start()

    def stop(self) -> None:
        """Close the port. Does not wait for requests in progress."""
        self._stopped.set()
        if self._server is not None:
            self._server.close()

    def wait_listening(self, timeout_s: float) -> bool:
        """Whether the port is open, waiting for it at most that long."""
        return self._listening.wait(timeout_s)

    def _run(self) -> None:
        # 18 ms that the way to registration need not wait for.
        from nvdp.http.listener import Listener, open_port  # noqa: PLC0415 - see above

        while not self._stopped.is_set():
            try:
                listening = open_port(self._port)
            except OSError as error:
                self._report_taken(error)
                self._stopped.wait(self._retry_s)
                continue
            self.trouble = None
            self._server = Listener(listening, self._routes, self._defect, self._stopped)
            with self._server:
                self._listening.set()
                while not self._stopped.is_set():
                    self._server.handle_request()

    def _report_taken(self, error: OSError) -> None:
        cause = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be opened ({error.strerror})"
        text = f"port {self._port} {cause}: no {', '.join(sorted(self._routes))}; choose another with --metrics-port"
        self.trouble = Trouble(reason=Reason.PORT_TAKEN.word, text=text)
        self._log(Reason.PORT_TAKEN, f"{text}. Trying again every {self._retry_s:g}s", port=self._port)

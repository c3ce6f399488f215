"""The server as a whole: its port and threads, and the files by which clients find it."""

from __future__ import annotations

import socket
import ssl
import sys
import threading
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import yaml

from tests.cluster.server.faults import Faults
from tests.cluster.server.handler import Admission, Handler
from tests.cluster.server.journal import Journal
from tests.cluster.server.roles import Roles
from tests.cluster.server.store import Store

TLS = Path(__file__).parent / "tls"  # made once for a hundred years, by nobody who signs anything else
TOKEN = "token-of-the-tests"
USER = "system:serviceaccount:nvdp:nvdp"


class ApiServer:
    """Started by ``with``. ``admit`` may refuse a write with a sentence; ``roles`` None allows everything.

    ``watch_limit_s`` ends watches, as asked for, earlier than they ask for.
    """

    def __init__(
        self,
        *,
        roles: Roles | None = None,
        admit: Callable[[Admission], str | None] = lambda _: None,
        tls: bool = True,
        host: str = "127.0.0.1",
    ) -> None:
        self.store = Store()
        self.journal = Journal()
        self.faults = Faults()
        self.roles = roles
        self.admit = admit
        self.tokens: dict[str, str] = {TOKEN: USER}
        self.certified = USER  # who comes with the certificate of tls/client.crt
        self.watch_limit_s = float("inf")
        self.is_stopping = False
        self.generation = 0
        self.defects: list[BaseException] = []
        self.port = 0
        self._host = host
        self._context = _build_context() if tls else None
        self._listener: _Listener | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        assert not self.defects, self.defects

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._context else 'http'}://{host}:{self.port}"

    @property
    def environ(self) -> dict[str, str]:
        """What a pod finds in its environment."""
        return {"KUBERNETES_SERVICE_HOST": self._host, "KUBERNETES_SERVICE_PORT": str(self.port)}

    def start(self) -> None:
        """Listen: on the same port as before."""
        self.is_stopping = False
        self._listener = _Listener(self, (self._host, self.port), self._context)
        self.port = self._listener.server_address[1]
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.02,), name="api server")
        self._thread.start()

    def stop(self) -> None:
        """As if the machine were switched off: nobody listens, every connection breaks."""
        listener, thread = self._listener, self._thread
        if listener is None or thread is None:
            return
        self.is_stopping = True
        self.store.wake()
        listener.shutdown()
        thread.join()
        listener.break_connections()
        listener.server_close()  # waits for the threads of the connections
        self._listener = self._thread = None

    def end_watches(self) -> None:
        """End every watch as a server does that goes down in good order."""
        self.generation += 1
        self.store.wake()

    def break_connections(self) -> None:
        """Every connection breaks; the server goes on."""
        assert self._listener is not None
        self._listener.break_connections()

    @property
    def connections(self) -> int:
        """How many are open."""
        assert self._listener is not None
        return self._listener.count()

    def write_service_account(self, directory: Path, *, token: str = TOKEN, namespace: str = "nvdp") -> Path:
        """What a pod finds of its service account; again, to renew the token."""
        directory.mkdir(exist_ok=True)
        for name, text in (("token", token), ("namespace", namespace), ("ca.crt", (TLS / "ca.crt").read_text())):
            (directory / f"{name}.new").write_text(text)
            (directory / f"{name}.new").replace(directory / name)
        return directory

    def write_kubeconfig(self, path: Path, *, cluster: dict[str, Any] | None = None, **user: Any) -> Path:
        """A kubeconfig with the CA in a file, and the token in it unless ``user`` says otherwise."""
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [
                {
                    "name": "test",
                    "cluster": cluster or {"server": self.url, "certificate-authority": str(TLS / "ca.crt")},
                }
            ],
            "users": [{"name": "test", "user": user or {"token": TOKEN}}],
        }
        path.write_text(yaml.safe_dump(document))
        return path


class _Listener(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 512

    def __init__(self, owner: ApiServer, address: tuple[str, int], context: ssl.SSLContext | None) -> None:
        self._owner = owner
        self._context = context
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._number = 0
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, Handler)

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)  # not the base's: it asks for this machine's name
        self.server_address = self.socket.getsockname()

    def finish_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
            self._number += 1
            number = self._number
        secured = None
        try:
            if self._context is not None:
                request.settimeout(5)
                secured = self._context.wrap_socket(request, server_side=True)
                secured.settimeout(None)
                with self._lock:
                    self._open.add(secured)
            kind = type("BoundHandler", (Handler,), {"owner": self._owner, "number": number})
            kind(secured or request, client_address, self)
        except OSError:
            pass  # a client that does not trust us, or that went
        finally:
            with self._lock:
                self._open -= {request, secured}
            if secured is not None:
                secured.close()

    def handle_error(self, _request: Any, _client_address: Any) -> None:
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, OSError | ValueError):
            self._owner.defects.append(error)

    def break_connections(self) -> None:
        with self._lock:
            for one in self._open:
                try:
                    socket.socket.shutdown(one, socket.SHUT_RDWR)
                except OSError:
                    continue

    def count(self) -> int:
        with self._lock:
            return len({one.fileno() for one in self._open} - {-1})


def _build_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.crt", TLS / "server.key")
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(TLS / "client.crt")
    return context

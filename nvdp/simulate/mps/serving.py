"""What a control daemon keeps: the limits for the next server, the server, its clients, and those that wait.

Without ``-multiuser-server`` there is one server for one user at a time: another user's clients wait until it has no
clients any more. Limits that are set count for servers that start afterwards. No socket, no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from nvdp.simulate.mps.wire import REFUSED, SERVED, WAITING

_FIRST_SERVER = 5_000_000  # more than any PID of a process that exists
_ROOT = 0


class Client:
    """``tell`` sends a word about its fate; ``cut`` ends its connection."""

    def __init__(self, pid: int, user: int, *, tell: Callable[[bytes], None], cut: Callable[[], None]) -> None:
        self.pid = pid
        self.user = user
        self.tell = tell
        self.cut = cut


class Server:
    """With the limits that stood when it started."""

    def __init__(self, pid: int, user: int, *, thread_percent: float, memory: dict[str, str]) -> None:
        self.pid = pid
        self.user = user
        self.thread_percent = thread_percent
        self.memory = memory
        self.state = "ACTIVE"
        self.clients: list[Client] = []


class Serving:
    """``log`` gets each line that NVIDIA's daemon would write; ``on_server`` each server that starts."""

    def __init__(self, *, multi_user: bool, log: Callable[[str], None], on_server: Callable[[Server], None]) -> None:
        self._multi_user = multi_user
        self._log = log
        self._on_server = on_server
        self._next_server = _FIRST_SERVER
        self._thread_percent = 100.0
        self._memory: dict[str, str] = {}
        self._server: Server | None = None
        self._waiting: list[Client] = []
        self.is_quitting = False

    @property
    def is_idle(self) -> bool:
        """Whether no client is served."""
        return self._server is None or not self._server.clients

    # --- clients

    def join(self, client: Client) -> None:
        """A client comes, and is told what becomes of it."""
        if self.is_quitting:
            client.tell(REFUSED)
            return
        if self._server is not None and self._may_use(client):
            self._log(f"NEW CLIENT {client.pid} from user {client.user}: Server already exists")
            self._server.clients.append(client)
            client.tell(SERVED)
            return
        self._log(f"NEW CLIENT {client.pid} from user {client.user}: Server is not ready, push client to pending list")
        self._waiting.append(client)
        if self.is_idle:
            self._serve_next()
        if client in self._waiting:
            client.tell(WAITING)

    def leave(self, client: Client) -> None:
        """A client has ended."""
        if client in self._waiting:
            self._waiting.remove(client)
        elif self._server is not None and client in self._server.clients:
            self._server.clients.remove(client)
            if self.is_idle:
                self._serve_next()

    def end_server(self, status: int) -> None:
        """The server dies, and its clients with it; the next one starts for those that wait."""
        if self._server is None:
            return
        self._log("Server encountered a fatal exception. Shutting down")
        clients, self._server.clients = self._server.clients, []
        for client in clients:
            client.cut()
        self._drop_server(status)
        self._serve_next()

    def set_state(self, state: str) -> None:
        """The server is in that state from now on."""
        if self._server is not None:
            self._server.state = state

    def _may_use(self, client: Client) -> bool:
        return self._server is not None and (self._multi_user or self._server.user == client.user)

    def _serve_next(self) -> None:
        """Serve the user who waits longest."""
        if not self._waiting:
            return
        if self._server is not None and not self._may_use(self._waiting[0]):
            self._drop_server(0)
        if self._server is None:
            self._start_server(_ROOT if self._multi_user else self._waiting[0].user)
        server = self._server
        assert server is not None
        served = [client for client in self._waiting if self._may_use(client)]
        self._waiting = [client for client in self._waiting if not self._may_use(client)]
        server.clients.extend(served)
        for client in served:
            client.tell(SERVED)

    def _start_server(self, user: int) -> None:
        self._server = Server(self._next_server, user, thread_percent=self._thread_percent, memory=dict(self._memory))
        self._next_server += 1
        self._log(f"Starting new server {self._server.pid} for user {user}")
        self._log(f"NEW SERVER {self._server.pid}: Ready")
        self._on_server(self._server)

    def _drop_server(self, status: int) -> None:
        assert self._server is not None
        self._log(f"Server {self._server.pid} exited with status {status}")
        self._server = None

    # --- commands

    def answer(self, command: str) -> tuple[int, str]:
        """Exit code and text of whoever gives the command."""
        name, *words = command.split()
        handler = self._COMMANDS.get((name, len(words)))
        if handler is None:
            return 1, f"Unknown command: {command}"
        try:
            return 0, handler(self, *words)
        except (ValueError, LookupError):
            return 1, f"Invalid argument: {command}"

    def _list_servers(self) -> str:
        return str(self._server.pid) if self._server is not None else ""

    def _find_server(self, pid: str) -> Server:
        if self._server is None or self._server.pid != int(pid):
            raise LookupError
        return self._server

    def _tell_state(self, pid: str) -> str:
        return self._find_server(pid).state

    def _list_clients(self, pid: str) -> str:
        return "\n".join(str(client.pid) for client in self._find_server(pid).clients)

    def _get_percent(self) -> str:
        return f"{self._thread_percent:.1f}"

    def _set_percent(self, percent: str) -> str:
        if not 0 < float(percent) <= 100:  # noqa: PLR2004 - of a hundred
            raise ValueError
        self._thread_percent = float(percent)
        return self._get_percent()

    def _get_memory(self, device: str) -> str:
        return self._memory[device]  # by the name that it was set with: NVIDIA's does not translate it either

    def _set_memory(self, device: str, value: str) -> str:
        if value[-1] not in "GM" or not value[:-1].isdigit():
            raise ValueError
        self._memory[device] = value  # any device: it is looked at when a server starts, and ignored if unknown
        return ""

    def _start_server_of(self, option: str, user: str) -> str:
        if option != "-uid":
            raise ValueError
        if self._server is None:
            self._start_server(int(user))
        return ""

    def _quit(self) -> str:
        self.is_quitting = True
        return ""

    _COMMANDS: ClassVar[dict[tuple[str, int], Callable[..., str]]] = {
        ("get_server_list", 0): _list_servers,
        ("get_server_status", 1): _tell_state,
        ("get_client_list", 1): _list_clients,
        ("get_default_active_thread_percentage", 0): _get_percent,
        ("set_default_active_thread_percentage", 1): _set_percent,
        ("get_default_device_pinned_mem_limit", 1): _get_memory,
        ("set_default_device_pinned_mem_limit", 2): _set_memory,
        ("start_server", 2): _start_server_of,
        ("quit", 0): _quit,
    }

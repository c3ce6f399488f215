"""The daemon of the twin: its files in the pipe directory, its socket, and one loop that answers and obeys."""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path

from nvdp.simulate.mps.journal import Journal
from nvdp.simulate.mps.orders import StandingOrders
from nvdp.simulate.mps.serving import Client, Server, Serving
from nvdp.simulate.mps.wire import ASK, END, JOIN, PACKET_BYTES, SOCKET_NAME, STATE

_TICK_S = 0.05
_PID_NAME = "nvidia-cuda-mps-control.pid"
_LOCK_NAME = "control_lock"
_FIFO_NAME = "log"
_SOCKET_NAMES = (SOCKET_NAME, "control_privileged")


def run_daemon(program: str, pipe_dir: Path, *, arguments: list[str], multi_user: bool) -> int:
    """Serve until ``quit`` or an order ends it; the exit code."""
    orders, journal = StandingOrders(program, pipe_dir), Journal(Path(program))
    journal.write("start", pipe_dir, pid=os.getpid(), argv=[program, *arguments], env=dict(os.environ))
    orders.refresh()
    if multi_user and orders.lacks_multi_user:
        return _end(1, f"Unknown option {next(word for word in arguments if word != '-f')}")
    if (end := orders.find_end_at_start()) is not None:
        return _end(*end)
    try:
        lock = os.open(pipe_dir / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return _end(1, "An instance of this daemon is already running")
    except OSError as error:
        return _end(1, f"Cannot use {pipe_dir}: {error.strerror}")
    try:
        daemon = _Daemon(pipe_dir, orders, journal, multi_user=multi_user)
    except OSError as error:
        return _end(1, f"Failed to bind the control socket: {error}")
    return daemon.run()


def _end(code: int, text: str) -> int:
    _say(text)
    return code


def _say(text: str) -> None:
    now = time.time()
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
    sys.stdout.write(f"[{stamp}.{int(now % 1 * 1000):03d} Control {os.getpid():5d}] {text}\n")
    sys.stdout.flush()


class _Daemon:
    """Single-threaded. A question that may not be answered yet waits with its time in ``_due``."""

    def __init__(self, pipe_dir: Path, orders: StandingOrders, journal: Journal, *, multi_user: bool) -> None:
        self._pipe_dir = pipe_dir
        self._orders = orders
        self._journal = journal
        self._serving = Serving(multi_user=multi_user, log=_say, on_server=self._write_server)
        self._selector = selectors.DefaultSelector()
        self._due: list[tuple[float, socket.socket, str]] = []
        self._clients: dict[socket.socket, Client] = {}
        self._ended = False
        for name in _SOCKET_NAMES:
            self._listen(pipe_dir / name)
        fifo = pipe_dir / _FIFO_NAME
        if not fifo.exists():
            os.mkfifo(fifo, 0o666)
        self._pid_file = pipe_dir / _PID_NAME
        self._pid_file.write_text(f"{os.getpid()}\n")

    def run(self) -> int:
        """The exit code."""
        signal.signal(signal.SIGTERM, self._on_term)
        _say(f"Starting control daemon using socket {self._pipe_dir / SOCKET_NAME}")
        _say(f"To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY={self._pipe_dir}")
        while not self._ended:
            for key, _events in self._selector.select(_TICK_S):
                on_ready: Callable[[socket.socket], None] = key.data
                assert isinstance(key.fileobj, socket.socket)
                on_ready(key.fileobj)
            self._orders.refresh()
            if (end := self._orders.find_end(os.getpid())) is not None:
                return _end(*end)
            self._answer_due()
            if self._serving.is_quitting and self._serving.is_idle and not self._orders.refuses_quit:
                self._ended = True
        self._pid_file.unlink(missing_ok=True)  # the sockets stay, as NVIDIA's daemon leaves them
        return 0

    def _listen(self, path: Path) -> None:
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
            path.unlink()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen(128)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def _on_term(self, _number: int, _frame: object) -> None:
        if not self._orders.ignores_term:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    def _write_server(self, server: Server) -> None:
        self._journal.write(
            "server",
            self._pipe_dir,
            pid=server.pid,
            user=server.user,
            thread_percent=server.thread_percent,
            memory=server.memory,
        )

    def _accept(self, listener: socket.socket) -> None:
        connection, _address = listener.accept()
        connection.settimeout(0.0)
        self._selector.register(connection, selectors.EVENT_READ, self._receive)

    def _receive(self, connection: socket.socket) -> None:
        try:
            packet = connection.recv(PACKET_BYTES)
        except OSError:
            packet = b""
        kind, words = packet[:1], packet[1:].decode()
        if kind == ASK:
            self._due.append((time.monotonic() + self._orders.delay_s, connection, words))
        elif kind == JOIN:
            _say("Accepting connection...")
            _say("User did not send valid credentials")  # that is in the log of every healthy daemon
            self._join(connection, *map(int, words.split()))
        elif kind == STATE:
            self._serving.set_state(words)
        elif kind == END:
            self._serving.end_server(int(words))
        else:
            self._drop(connection)

    def _join(self, connection: socket.socket, pid: int, user: int) -> None:
        client = Client(pid, user, tell=lambda word: _send(connection, word), cut=lambda: self._drop(connection))
        self._clients[connection] = client
        self._serving.join(client)

    def _drop(self, connection: socket.socket) -> None:
        if connection.fileno() < 0:
            return
        self._selector.unregister(connection)
        connection.close()
        self._due = [due for due in self._due if due[1] is not connection]
        client = self._clients.pop(connection, None)
        if client is not None:
            self._serving.leave(client)

    def _answer_due(self) -> None:
        if self._orders.hangs:
            return
        now = time.monotonic()
        ready = [due for due in self._due if due[0] <= now]
        self._due = [due for due in self._due if due[0] > now]
        for _at, connection, command in ready:
            self._journal.write("command", self._pipe_dir, command=command)
            for line in ("Accepting connection...", "NEW UI", f"Cmd:{command}"):
                _say(line)
            code, text = (1, "Refused") if self._orders.refuse(command) else self._serving.answer(command)
            _say("UI closed")
            _send(connection, f"{code}{text}".encode())


def _send(connection: socket.socket, packet: bytes) -> None:
    with contextlib.suppress(OSError):  # it has gone: the next look at its connection says so
        connection.send(packet)

"""The daemon as a process: started, watched through its log, port and /proc, signalled, and asked how it ended."""

from __future__ import annotations

import array
import fcntl
import os
import re
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil
from prometheus_client.parser import text_string_to_metric_families

from nvdp.model.reasons import Level, Reason

LIMIT_S = 15.0  # for what happens soon, on a machine with two busy cores
NO_SPECS = "/nowhere/cdi"  # a test that wants CDI specs says where; this machine's own are left alone
LOG_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
_LOG_KEY = re.compile(r"[a-z][a-zA-Z]*")
_LOOK_EVERY_S = 0.02


def wait_until(predicate: Callable[[], Any], timeout_s: float = LIMIT_S, *, what: str) -> Any:
    """Wait until ``predicate`` is true, and return its value; an AssertionError that names ``what`` otherwise."""
    deadline = time.monotonic() + timeout_s
    while not (found := predicate()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(_LOOK_EVERY_S)
    return found


def find_free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Ended(NamedTuple):
    """How the process ended: its exit code, and how long that took from the signal."""

    code: int
    seconds: float


class Probe(NamedTuple):
    """An answer of the metrics port."""

    status: int
    body: dict[str, Any]


class DaemonLog:
    """The lines of one process, each an object of JSON, as they come; ``texts`` has what is not one.

    What the process has written by the time of a question is in the answer: it logs a thing before it lets others see
    it, and they must not be quicker than the one who reads the log.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pipe: int | None = None
        self._rest = b""
        self._lines: list[dict[str, Any]] = []
        self.texts: list[str] = []

    def follow(self, pipe: int) -> None:
        """Read what comes until its writers are gone. Blocks."""
        self._pipe = pipe
        while select.select([pipe], [], []):
            with self._changed:
                chunk = os.read(pipe, 1 << 16)
                *lines, self._rest = (self._rest + chunk).split(b"\n")
                for line in [*lines, self._rest] if not chunk and self._rest else lines:
                    self._take(line.decode(errors="replace"))
                self._pipe = pipe if chunk else None
                self._changed.notify_all()
            if not chunk:
                return

    def _take(self, text: str) -> None:
        try:
            self._lines.append(msgspec.json.decode(text))
        except msgspec.DecodeError:
            self.texts.append(text)

    def _is_all_read(self) -> bool:
        if self._pipe is None:
            return True
        unread = array.array("i", [0])
        fcntl.ioctl(self._pipe, termios.FIONREAD, unread)
        return unread[0] == 0

    def _read_all(self) -> list[dict[str, Any]]:
        with self._changed:
            self._changed.wait_for(self._is_all_read, LIMIT_S)
            return self._lines.copy()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._read_all())

    def __len__(self) -> int:
        return len(self._read_all())

    def of(self, reason: str, *, after: int = 0, text: str = "") -> list[dict[str, Any]]:
        """The lines of ``reason`` whose sentence has ``text`` in it, from the ``after``-th line of the log on."""
        return self._find(self._read_all(), reason, after=after, text=text)

    def _find(self, lines: list[dict[str, Any]], reason: str, *, after: int, text: str) -> list[dict[str, Any]]:
        return [line for line in lines[after:] if line["reason"] == reason and text in line["msg"]]

    def wait_for(self, reason: str, *, after: int = 0, text: str = "", timeout_s: float = LIMIT_S) -> dict[str, Any]:
        """The first of these lines, waited for."""
        with self._changed:
            found = self._changed.wait_for(lambda: self._find(self._lines, reason, after=after, text=text), timeout_s)
        assert found, f"no {reason} {text!r} within {timeout_s} s"
        return found[0]


def check_line(line: dict[str, Any]) -> None:
    """A line of the log has the form and the level that the observability contract gives it (sections 2 and 3)."""
    reason = next(found for found in Reason if found.word == line["reason"])
    assert list(line)[:4] == ["time", "level", "reason", "msg"], line
    assert LOG_TIME.fullmatch(line["time"]), line
    assert all(_LOG_KEY.fullmatch(key) for key in line), line
    assert Level[line["level"].upper()] >= reason.level, line


class Daemon:
    """One ``nvdp run``, or another command that runs until it is told to stop. ``launcher`` is a command that ends by
    running what follows it.

    ``has_defects`` is set by a test that makes it log what would be a defect anywhere else. Without ``read_log`` nobody
    reads the log until the end; ``unread`` is what was left of it then.
    """

    def __init__(
        self,
        *flags: str | Path,
        port: int | None = None,
        launcher: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        read_log: bool = True,
        subcommand: str = "run",
    ) -> None:
        self.port = find_free_port() if port is None else port
        self.log = DaemonLog()
        self.has_defects = False
        self.unread = b""
        words = [sys.executable, "-m", "nvdp", subcommand, "--metrics-port", str(self.port), *map(str, flags)]
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "PYTHONPATH") if name in os.environ}
        kept["NVDP_CDI_DIR"] = NO_SPECS
        self.started_at = time.monotonic()
        self.process = subprocess.Popen(
            [*launcher, *words], stderr=subprocess.PIPE, env={**kept, **(environment or {})}, start_new_session=True
        )
        self._reader = threading.Thread(target=self._read, name=f"log of {self.pid}", daemon=True)
        self._reading = read_log
        if read_log:
            self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def children(self) -> list[psutil.Process]:
        """Its NVML children, the oldest first."""
        try:
            found = psutil.Process(self.pid).children()
        except psutil.NoSuchProcess:
            return []
        return sorted((child for child in found if _is_nvml_child(child)), key=lambda child: child.pid)

    @property
    def child(self) -> psutil.Process:
        """The NVML child that is in use."""
        found: list[psutil.Process] = wait_until(lambda: self.children, what="an NVML child")
        return found[-1]

    def probe(self, path: str) -> Probe:
        """Ask ``/readyz`` or ``/healthz``."""
        status, text = self._get(path)
        return Probe(status, msgspec.json.decode(text))

    def wait_ready(self, timeout_s: float = LIMIT_S) -> Probe:
        """Wait until the port answers and says 200."""
        return self.wait_probe("/readyz", lambda probe: probe.status == 200, timeout_s)

    def wait_probe(self, path: str, predicate: Callable[[Probe], bool], timeout_s: float = LIMIT_S) -> Probe:
        """Wait until the port's answer is as ``predicate`` wants it."""
        seen: list[Probe] = []

        def look() -> Probe | None:
            assert self.running, f"nvdp ended with {self.process.returncode}"
            try:
                seen.append(self.probe(path))
            except (urllib.error.URLError, ConnectionError):
                return None
            return seen[-1] if predicate(seen[-1]) else None

        try:
            found: Probe = wait_until(look, timeout_s, what=path)
        except AssertionError as error:
            raise AssertionError(f"{error}; last answer {seen[-1:]}") from error
        return found

    def metrics(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Every sample of a scrape, by name and labels."""
        _, text = self._get("/metrics")
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text.decode())
            for sample in family.samples
        }

    def metric(self, name: str, **labels: str) -> float | None:
        """One sample; None if there is none with exactly these labels."""
        return self.metrics().get((name, frozenset(labels.items())))

    def wait_metric(self, value: float, name: str, **labels: str) -> None:
        """Wait until one sample is ``value``: what one thread has done another counts a moment later."""
        seen: list[float | None] = [None]

        def look() -> bool:
            seen[0] = self.metric(name, **labels)
            return seen[0] == value

        try:
            wait_until(look, what=f"{name} of {value}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {seen[0]}") from error

    def wait_scans(self, count: int = 1, timeout_s: float = LIMIT_S) -> None:
        """Wait until ``count`` scans more are complete, which means that what was to be seen has been seen."""
        name = "nvdp_scan_duration_seconds_count"
        before = self.metric(name) or 0
        wait_until(lambda: (self.metric(name) or 0) >= before + count, timeout_s, what=f"{count} scans")

    def look_again(self) -> None:
        """Have it look at everything, in a new NVML session, and wait until a scan that began meanwhile is complete."""
        name = "nvdp_scan_duration_seconds_count"
        for _ in range(2):  # one may be under way
            before = self.metric(name) or 0
            self.look()
            wait_until(lambda before=before: (self.metric(name) or 0) > before, what="a scan")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def look(self) -> None:
        """Have it look at everything now, as an administrator would (SIGHUP)."""
        self.send(signal.SIGHUP)

    def wait(self, timeout_s: float = LIMIT_S) -> Ended:
        """Wait for the end of the process, from now."""
        at = time.monotonic()
        code = self.process.wait(timeout_s)
        seconds = time.monotonic() - at
        self._finish()
        return Ended(code, seconds)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> Ended:
        """Ask it to stop, and wait for its end."""
        self.send(number)
        return self.wait()

    def kill(self) -> None:
        """The end without a word, if it has not ended yet."""
        self.process.kill()
        self.process.wait()
        self._finish()

    def _finish(self) -> None:
        assert self.process.stderr is not None
        if self._reading:
            self._reader.join(LIMIT_S)
        elif not self.process.stderr.closed:
            self.unread = self.process.stderr.read()
        self.process.stderr.close()

    def _get(self, path: str) -> tuple[int, bytes]:
        """Ask the port, which opens a moment after the start."""

        def is_open() -> bool:
            with socket.socket() as asking:
                return asking.connect_ex(("127.0.0.1", self.port)) == 0

        wait_until(lambda: is_open() or not self.running, what=f"port {self.port}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=LIMIT_S) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.log.follow(self.process.stderr.fileno())


def _is_nvml_child(process: psutil.Process) -> bool:
    try:
        return "nvdp.nvml.child" in process.cmdline()
    except psutil.Error:
        return False

"""The daemon as a process of its own, seen from outside: its exit, its log, its port. Nothing of it is imported."""

from __future__ import annotations

import compileall
import contextlib
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import nvdp
from nvdp.config.options import list_options

PACKAGES = Path(nvdp.__file__).parent.parent
"""Where nvdp is imported from."""
OWN_COMMAND = (sys.executable, "-P", "-m", "nvdp")
_HTTP_LIMIT_S = 2.0
_KILLED_S = 1.0
_STAMP = re.compile(r"^\d{4}-\d\d-\d\dT\S+Z\s+")


class DaemonProcess:
    """Runs ``command`` from its making until ``close``; ``started_at`` is monotonic. For one thread.

    Its log goes to ``log``. ``port`` is where it answers probes and scrapes.
    """

    def __init__(self, command: Sequence[str], *, log: Path, port: int) -> None:
        self._log = log
        self._port = port
        with log.open("wb") as stream:
            self.started_at = time.monotonic()
            self._process = subprocess.Popen(  # noqa: S603 - nvdp itself, or what a test puts in its place
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=_build_environment(),
                start_new_session=True,  # Ctrl-C is for whoever started it: it ends in order
            )
        self.pid = self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs. Does not block."""
        return self._process.poll()

    def terminate(self) -> float:
        """Ask it to stop, as the kubelet does; the monotonic time of that."""
        at = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        return at

    def wait_exit(self, limit_s: float) -> int | None:
        """Its exit code, or None if it still runs after ``limit_s``."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(limit_s)
        return None

    def close(self, *, grace_s: float = 5.0) -> None:
        """Stop it, by force after ``grace_s``. Idempotent. Blocks for that time and a second at most.

        The exception of a signal may have come where ``Popen`` had just taken its lock: then nobody hears of the end.
        """
        if self.exit_code is None:
            self.terminate()
        if self.wait_exit(grace_s) is None:
            self._process.kill()
            self.wait_exit(_KILLED_S)

    # --- what it says

    def read_log(self) -> tuple[str, ...]:
        """The lines of its log, without their times."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return tuple(_STAMP.sub("", line) for line in lines if line)

    @property
    def last_line(self) -> str:
        """The last line of its log proper, if there is one: libraries write there too."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        own = [line for line in lines if _STAMP.match(line)]
        return _STAMP.sub("", (own or lines or ["(it has written nothing)"])[-1])

    def find_answer(self, path: str) -> tuple[int, str] | None:
        """Status and body of an HTTP request, or None if nobody answers. Blocks for 2 s at most."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_HTTP_LIMIT_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def find_metric(self, name: str) -> float | None:
        """The value of a series without labels, or None."""
        answer = self.find_answer("/metrics")
        found = re.search(rf"^{re.escape(name)} (\S+)$", answer[1], re.MULTILINE) if answer is not None else None
        return float(found[1]) if found else None


def compile_package() -> None:
    """Compile nvdp where that was not done yet, and where its directory may be written to; 10 ms where it was.

    The image ships compiled, and the limits of the tour are for that: the first tour of a fresh checkout would spend
    half a second of them on the compiler, and each one where Python was told not to keep what it compiles.
    """
    compileall.compile_dir(Path(nvdp.__file__).parent, quiet=2)


def find_free_port() -> int:
    """A TCP port that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _build_environment() -> dict[str, str]:
    """Ours without nvdp's own variables: one that is set for another purpose would override the configuration."""
    options = {name for option in list_options() for name in option.key.setting.environment}
    kept = {name: value for name, value in os.environ.items() if name not in options}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, [str(PACKAGES), kept.get("PYTHONPATH", "")]))}

"""What a test has the twin do, in a file beside the program.

The environment of a daemon is set by who starts it, so that nothing can be told through it. Orders are for all daemons
of the program, or for that of one pipe directory; they count at once, also for daemons that run.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from nvdp.simulate.mps.journal import Journal

_ALL = "*"


class Orders:
    """The orders of ``program``. Not for two writers at once; a daemon reads them within 0.05 s."""

    def __init__(self, program: Path) -> None:
        self._path = Path(f"{program}.orders")
        self._journal = Journal(program)

    def hang(self, pipe_dir: Path | None = None, *, hangs: bool = True) -> None:
        """Answer nothing. What was asked meanwhile is answered once it does not hang any more."""
        self._change(pipe_dir, hangs=hangs)

    def slow_down(self, delay_s: float, pipe_dir: Path | None = None) -> None:
        """Answer everything so much later."""
        self._change(pipe_dir, delay_s=delay_s)

    def lack_multi_user(self, *, lacks: bool = True) -> None:
        """Be a program of a driver that does not know the option."""
        self._change(None, lacks_multi_user=lacks)

    def refuse_quit(self, pipe_dir: Path | None = None, *, refuses: bool = True) -> None:
        """Go on after ``quit``."""
        self._change(pipe_dir, refuses_quit=refuses)

    def ignore_term(self, pipe_dir: Path | None = None, *, ignores: bool = True) -> None:
        """Go on after SIGTERM."""
        self._change(pipe_dir, ignores_term=ignores)

    def fail(self, command: str, *, times: int, pipe_dir: Path | None = None) -> None:
        """Refuse that command, by its first word, the next so many times, counted for each daemon that runs then."""
        self._change(pipe_dir, fails={command: times}, fails_order=os.urandom(4).hex())

    def die_at_start(self, times: int, *, code: int, text: str, pipe_dir: Path | None = None) -> None:
        """End with that exit code and last line, the next so many times that one is started (for ``pipe_dir``)."""
        until = len(self._journal.list_starts(pipe_dir)) + times
        self._change(pipe_dir, dies_at_start={"until": until, "code": code, "text": text})

    def die(self, pid: int, *, code: int, text: str) -> None:
        """Let the daemon of that PID end now."""
        self._change(None, dies={"pid": pid, "code": code, "text": text})

    def _change(self, pipe_dir: Path | None, **orders: object) -> None:
        every = _load(self._path)
        scope = str(pipe_dir or _ALL)
        every[scope] = {**every.get(scope, {}), **orders}
        written = Path(f"{self._path}.new")
        written.write_text(json.dumps(every))
        written.replace(self._path)


class StandingOrders:
    """The other side: what the daemon of ``pipe_dir`` is to do. Reads the file again when it has changed."""

    def __init__(self, program: str, pipe_dir: Path) -> None:
        self._path = Path(f"{program}.orders")
        self._journal = Journal(Path(program))
        self._pipe_dir = pipe_dir
        self._seen: tuple[int, int] | None = None
        self._own: dict[str, Any] = {}
        self._all: dict[str, Any] = {}
        self._refused: dict[str, int] = {}

    def refresh(self) -> None:
        """Look at the file."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return
        if self._seen == (found.st_ino, found.st_mtime_ns):
            return
        self._seen = (found.st_ino, found.st_mtime_ns)
        every = _load(self._path)
        before = self._find("fails_order")
        self._own, self._all = every.get(str(self._pipe_dir), {}), every.get(_ALL, {})
        if self._find("fails_order") != before:
            self._refused.clear()

    @property
    def hangs(self) -> bool:
        """Whether nothing is answered."""
        return bool(self._find("hangs"))

    @property
    def delay_s(self) -> float:
        """How much later everything is answered."""
        return float(self._find("delay_s") or 0)

    @property
    def lacks_multi_user(self) -> bool:
        """Whether the option is unknown."""
        return bool(self._find("lacks_multi_user"))

    @property
    def refuses_quit(self) -> bool:
        """Whether it goes on after ``quit``."""
        return bool(self._find("refuses_quit"))

    @property
    def ignores_term(self) -> bool:
        """Whether it goes on after SIGTERM."""
        return bool(self._find("ignores_term"))

    def refuse(self, command: str) -> bool:
        """Whether this command is refused; it counts."""
        name = command.partition(" ")[0]
        refused = self._refused.get(name, 0)
        if refused >= (self._find("fails") or {}).get(name, 0):
            return False
        self._refused[name] = refused + 1
        return True

    def find_end_at_start(self) -> tuple[int, str] | None:
        """Exit code and last line of a daemon whose start, written down before, is to fail."""
        for orders, scope in ((self._own, self._pipe_dir), (self._all, None)):
            order = orders.get("dies_at_start")
            if order is not None and len(self._journal.list_starts(scope)) <= order["until"]:
                return order["code"], order["text"]
        return None

    def find_end(self, pid: int) -> tuple[int, str] | None:
        """Exit code and last line of the daemon of that PID, if it is to end now."""
        order = self._all.get("dies")
        return (order["code"], order["text"]) if order is not None and order["pid"] == pid else None

    def _find(self, name: str) -> Any:
        return self._own.get(name, self._all.get(name))


def _load(path: Path) -> dict[str, Any]:
    try:
        every: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return every

"""What the twin writes down: each start with its words and environment, each command, each server with its limits."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Journal:
    """The file beside ``program``, which all its daemons write. Any number of readers; a missing file is empty."""

    def __init__(self, program: Path) -> None:
        self._path = Path(f"{program}.journal")

    def list_starts(self, pipe_dir: Path | None = None) -> list[dict[str, Any]]:
        """``pid``, ``argv`` and ``env`` of each daemon that was started, also of those that did not come up."""
        return self._list("start", pipe_dir)

    def list_commands(self, pipe_dir: Path | None = None) -> list[str]:
        """The commands that daemons were given, in order, also those that they refused."""
        return [entry["command"] for entry in self._list("command", pipe_dir)]

    def list_servers(self, pipe_dir: Path | None = None) -> list[dict[str, Any]]:
        """``pid``, ``user``, ``thread_percent`` and ``memory`` (by the device's name) of each server that started."""
        return self._list("server", pipe_dir)

    def write(self, kind: str, pipe_dir: Path, **facts: object) -> None:
        """Add an entry, whole whoever else writes."""
        line = json.dumps({"kind": kind, "pipe": str(pipe_dir), **facts}) + "\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def _list(self, kind: str, pipe_dir: Path | None) -> list[dict[str, Any]]:
        try:
            lines = self._path.read_text().splitlines()
        except FileNotFoundError:
            return []
        entries = map(json.loads, lines)
        return [entry for entry in entries if entry["kind"] == kind and entry["pipe"] == str(pipe_dir or entry["pipe"])]

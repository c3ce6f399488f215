"""The bare things that figures stand beside: an interpreter with grpc, and a gRPC call without content."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.bench.calls import Caller
from tests.bench.installation import Installation

_SCRIPT = Path(__file__).with_name("bare.py")


class Bare:
    """An interpreter that has imported grpc, and serves empty answers at ``socket`` if there is one.

    ``start_s`` is from its start to the end of the import, ``import_s`` the import alone. Entering blocks until then.
    """

    def __init__(self, installation: Installation, *, socket: Path | None = None) -> None:
        self._command = [*installation.python, str(_SCRIPT), *([str(socket)] if socket is not None else [])]

    def __enter__(self) -> Self:
        began = time.monotonic()
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self.start_s = time.monotonic() - began
        self.pid = self._process.pid
        if not line:
            self.close()
            raise OSError(f"{_SCRIPT.name} ended with {self._process.returncode}")
        self.import_s = float(line)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._process.communicate(timeout=10)


class BareServer:
    """A gRPC server in a process of its own that answers everything with nothing, and a connection to it."""

    def __init__(self, installation: Installation, *, socket: Path) -> None:
        self._bare = Bare(installation, socket=socket)
        self._socket = socket

    def __enter__(self) -> Self:
        self._bare.__enter__()
        self.caller = Caller(self._socket)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.caller.close()
        self._bare.close()

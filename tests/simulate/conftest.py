"""A place for the tours of a test, and a way to run them as a user does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SIMULATE = (sys.executable, "-m", "nvdp", "simulate")


class Command:
    """Runs ``nvdp simulate`` with its own directory for temporary files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        return {**kept, "TMPDIR": str(self.directory)}

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """As a rule with an allowance for a machine on which other tests run: see ``--slack``."""
        return self.run_strictly("--slack", "5", *arguments, **environment)

    def run_strictly(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*SIMULATE, *arguments],
            cwd=REPOSITORY,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=40,
            check=False,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*SIMULATE, *arguments],
            cwd=REPOSITORY,
            env={**self.environment, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def left(self) -> list[str]:
        """What is in the directory for temporary files now."""
        return sorted(path.name for path in self.directory.iterdir())


@pytest.fixture(scope="module")
def command() -> Iterator[Command]:
    directory = Path(tempfile.mkdtemp(prefix="nv", dir="/tmp"))
    yield Command(directory)
    shutil.rmtree(directory)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose sockets' paths are short enough."""
    directory = Path(tempfile.mkdtemp(prefix="nv", dir="/tmp"))
    yield directory
    shutil.rmtree(directory)

"""A driver root with a compiled fake libnvidia-ml, and children that use it."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest

from nvdp.nvml.children import NvmlChildren
from nvdp.nvml.client import NvmlClient
from nvdp.nvml.frames import Notice, Scan, Scanned
from nvdp.nvml.outcomes import Died, Outcome

SOURCE = Path(__file__).parent / "fake/fake_nvml.c"


class FakeDriver:
    """A driver root. ``configure`` writes what the library does from its next call on (see fake_nvml.c).

    ``built`` and ``basic`` are what ``install`` installs; ``install_version`` compiles its own.
    """

    def __init__(self, root: Path, built: Path | None = None, basic: Path | None = None) -> None:
        self.root = root
        self._built = built
        self._basic = basic
        self.directory = root / "usr/lib64"
        self.directory.mkdir(parents=True)
        self.configure("cards 0 1 2 3")

    @property
    def library(self) -> Path:
        return self.directory / "libnvidia-ml.so.1"

    def install(self, *, basic: bool = False) -> None:
        file = self._basic if basic else self._built
        assert file is not None
        fresh = self.directory / "library.new"
        shutil.copy(file, fresh)
        fresh.rename(self.library)  # at once, for whom looks for it all the time

    def install_version(self, version: str) -> None:
        """The library's name is a link to the file of this version, as a driver's installer leaves it."""
        file = compile_fake(self.directory, version=version)
        fresh = self.directory / "link.new"
        fresh.symlink_to(file.name)
        fresh.rename(self.library)

    @property
    def trace(self) -> list[tuple[str, float]]:
        """The calls that failed, hung or crashed under a ``trace`` line, with the monotonic second of each."""
        file = self.directory / "fake.trace"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(call, float(at)) for call, at in map(str.split, lines)]

    def configure(self, *lines: str) -> None:
        """``at`` is when the library could see it."""
        fresh = self.directory / "fake.new"
        fresh.write_text("\n".join(lines) + "\n")
        self.at = time.monotonic()
        fresh.rename(self.directory / "fake.conf")


def compile_fake(directory: Path, *, basic: bool = False, version: str | None = None) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    target = directory / (f"libnvidia-ml.so.{version}" if version else f"libnvidia-ml{'-basic' if basic else ''}.so")
    options = [*(["-DBASIC"] if basic else []), *([f'-DVERSION="{version}"'] if version else [])]
    subprocess.run([compiler, "-shared", "-fPIC", "-w", *options, "-o", target, SOURCE, "-ldl"], check=True)
    return target


@pytest.fixture(scope="session")
def fake_libraries(tmp_path_factory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("fake")
    return compile_fake(directory, basic=False), compile_fake(directory, basic=True)


@pytest.fixture
def fake_driver(tmp_path, fake_libraries) -> FakeDriver:
    return FakeDriver(tmp_path / "root", *fake_libraries)


class Heard:
    """What children told unasked, in the order in which it was heard, with the process ID of the child."""

    def __init__(self) -> None:
        self.all: list[tuple[int, Notice | Died]] = []
        self._changed = threading.Condition()

    def take(self, pid: int, notice: Notice | Died) -> None:
        with self._changed:
            self.all.append((pid, notice))
            self._changed.notify_all()

    def of(self, client: NvmlClient) -> list[Notice | Died]:
        with self._changed:
            return [notice for pid, notice in self.all if pid == client.pid]

    def wait(self, count: int, *, limit_s: float = 15.0) -> list[Notice | Died]:
        """The first ``count`` notices."""
        with self._changed:
            done = self._changed.wait_for(lambda: len(self.all) >= count, limit_s)
            assert done, f"not {count} within {limit_s}s, but {self.all}"
            return [notice for _, notice in self.all[:count]]


class Asking:
    """Children that are all ended at the end of the test, and what they told unasked."""

    def __init__(self, children: NvmlChildren) -> None:
        self.children = children
        self.heard = Heard()
        self._clients: list[NvmlClient] = []

    def spawn(self) -> NvmlClient:
        client = self.children.spawn(self.heard.take)
        self._clients.append(client)
        return client

    def watch(self) -> NvmlClient:
        """A child that has scanned: from now on it tells every event."""
        client = self.spawn()
        assert isinstance(self.scan(client), Scanned)
        return client

    def scan(self, client: NvmlClient | None = None, *, skip=(), limit_s: float = 10.0) -> Outcome:
        return (client or self.spawn()).call(Scan(skip=tuple(skip)), limit_s=limit_s)

    def end(self) -> None:
        for client in self._clients:
            self.children.end(client)


@pytest.fixture
def asking():
    """``asking(driver_root=…)`` or ``asking(simulated=…)``: an ``Asking``."""
    made: list[Asking] = []

    def make(**source: str) -> Asking:
        made.append(Asking(NvmlChildren(**source)))
        return made[-1]

    yield make
    for one in made:
        one.end()

"""A driver root with a compiled fake libnvidia-ml, and children that use it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from nvdp.nvml.children import NvmlChildren
from nvdp.nvml.client import NvmlClient, Outcome
from nvdp.nvml.frames import Scan

SOURCE = Path(__file__).parent / "fake/fake_nvml.c"


class FakeDriver:
    """A driver root. ``configure`` writes what the library does from its next call on (see fake_nvml.c)."""

    def __init__(self, root: Path, built: Path, basic: Path) -> None:
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
        shutil.copy(self._basic if basic else self._built, self.library)

    def configure(self, *lines: str) -> None:
        fresh = self.directory / "fake.new"
        fresh.write_text("\n".join(lines) + "\n")
        fresh.rename(self.directory / "fake.conf")


def compile_fake(directory: Path, *, basic: bool) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    target = directory / f"libnvidia-ml{'-basic' if basic else ''}.so"
    options = ["-DBASIC"] if basic else []
    subprocess.run([compiler, "-shared", "-fPIC", "-w", *options, "-o", target, SOURCE, "-ldl"], check=True)
    return target


@pytest.fixture(scope="session")
def fake_libraries(tmp_path_factory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("fake")
    return compile_fake(directory, basic=False), compile_fake(directory, basic=True)


@pytest.fixture
def fake_driver(tmp_path, fake_libraries) -> FakeDriver:
    return FakeDriver(tmp_path / "root", *fake_libraries)


class Asking:
    """Children that are all ended at the end of the test."""

    def __init__(self, children: NvmlChildren) -> None:
        self.children = children
        self._clients: list[NvmlClient] = []

    def spawn(self) -> NvmlClient:
        client = self.children.spawn()
        self._clients.append(client)
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

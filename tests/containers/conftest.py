"""A containerd for each test that reads the CDI directory of the test; skipped where no container can run."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.containers.containerd import Containerd
from tests.containers.cri import Runtime
from tests.containers.unpacked import find_obstacle
from tests.docs.pages import find_blocks

_CRI = "io.containerd.grpc.v1.cri"


@pytest.fixture(scope="session", autouse=True)
def possible() -> None:
    if os.environ.get("NVDP_CAMPAIGN") != "full":
        pytest.skip("runs containers; `make campaign` does it")
    if obstacle := find_obstacle():
        pytest.skip(f"no container can run here: {obstacle}")


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's name."""
    path = Path(tempfile.mkdtemp(prefix="nv", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def cdi(root: Path) -> Path:
    """The directory of generated specs."""
    directory = root / "cdi"
    directory.mkdir()
    return directory


@pytest.fixture
def start_runtime(root: Path, cdi: Path) -> Iterator[Callable[[str], Runtime]]:
    """Starts a containerd whose CRI plugin is configured with these lines as well."""
    started: list[Containerd] = []

    def start(cri: str) -> Runtime:
        started.append(Containerd(root / f"c{len(started)}", cdi=[cdi], cri=cri))
        return started[-1].wait_ready()

    yield start
    for containerd in started:
        print(containerd.log)  # noqa: T201 - pytest shows it if the test fails
        containerd.stop()


@pytest.fixture
def runtime(start_runtime: Callable[[str], Runtime]) -> Runtime:
    """Configured as docs/cdi.md says."""
    (text,) = (block.text for block in find_blocks() if (block.page, block.language) == ("cdi.md", "toml"))
    documented = tomllib.loads(text)["plugins"][_CRI]
    return start_runtime("".join(f"  {key} = {json.dumps(value)}\n" for key, value in documented.items()))

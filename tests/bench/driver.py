"""A driver to measure with: what the tests compile as libnvidia-ml, if there is a compiler."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from tests.bench.node import GPUS

_DIRECTORY = Path("usr/lib64")
_SOURCE = Path(__file__).parents[1] / "nvml/fake/fake_nvml.c"


def build_driver_root(root: Path) -> Path | None:
    """A driver root with a compiled library of eight GPUs; None if this machine has no C compiler.

    The simulated driver is written in Python and costs the NVML child megabytes that no driver costs it on a node.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    directory = root / _DIRECTORY
    directory.mkdir(parents=True)
    library = directory / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", library, _SOURCE, "-ldl"], check=True)
    report_xids(root, ())
    return root


def report_xids(root: Path, xids: Iterable[tuple[int, int]]) -> float:
    """The library has told these XIDs, each of a GPU by its number; add to the end. The monotonic time of it."""
    directory = root / _DIRECTORY
    lines = [f"cards {' '.join(map(str, range(GPUS)))}", *(f"event {gpu} {xid}" for gpu, xid in xids)]
    fresh = directory / "fake.new"
    fresh.write_text("".join(f"{line}\n" for line in lines))
    at = time.monotonic()
    fresh.rename(directory / "fake.conf")
    return at

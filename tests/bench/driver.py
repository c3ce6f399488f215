"""A driver to measure with: what the tests compile as libnvidia-ml, if there is a compiler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.bench.node import GPUS

_SOURCE = Path(__file__).parents[1] / "nvml/fake/fake_nvml.c"


def build_driver_root(root: Path) -> Path | None:
    """A driver root with a compiled library of eight GPUs; None if this machine has no C compiler.

    The simulated driver is written in Python and costs the NVML child megabytes that no driver costs it on a node.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    directory = root / "usr/lib64"
    directory.mkdir(parents=True)
    library = directory / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", library, _SOURCE, "-ldl"], check=True)
    (directory / "fake.conf").write_text(f"cards {' '.join(map(str, range(GPUS)))}\n")
    return root

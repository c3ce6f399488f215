"""What labels tell of a node beyond its GPUs as NVML has them, read from the kernel's /sys.

Nothing here raises: what cannot be read is not known. It blocks as long as a few hundred small files take.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from nvdp.errors import HostError
from nvdp.host.files import load_text
from nvdp.host.vgpu import SPACE_BYTES, parse_vgpu
from nvdp.model.traits import Traits, Vgpu

SYS: Final = Path("/sys")
_NVIDIA: Final = 0x10DE
_MOST_FUNCTIONS: Final = 4096
_NUMBER_LIMIT_BYTES: Final = 32
_MACHINE_LIMIT_BYTES: Final = 1024


def load_traits(machine_type_file: Path | None, *, sys: Path = SYS) -> Traits:
    """The traits of the node whose ``/sys`` this process sees at ``sys``.

    ``machine_type_file`` is a path as this process sees it, and None for none.
    """
    functions = list(_list_functions(sys / "bus/pci/devices"))
    classes = {path.name: found for path in functions if (found := _load_number(path / "class")) is not None}
    machine = _load(machine_type_file, limit_bytes=_MACHINE_LIMIT_BYTES) if machine_type_file is not None else b""
    return Traits(
        machine=machine.decode(errors="replace").strip(),
        pci_classes=classes,
        vgpu=_find_vgpu(functions) if (sys / "bus/pci/devices").is_dir() else None,
    )


def _list_functions(devices: Path) -> Iterator[Path]:
    """NVIDIA's, by address."""
    try:
        with os.scandir(devices) as entries:
            names = sorted(entry.name for entry in itertools.islice(entries, _MOST_FUNCTIONS))
    except OSError:
        return
    for name in names:
        if _load_number(devices / name / "vendor") == _NVIDIA:
            yield devices / name


def _find_vgpu(functions: list[Path]) -> Vgpu | None:
    """The first that is one; else whether none is, which takes all of them to be told."""
    found = [parse_vgpu(_load(path / "config", limit_bytes=SPACE_BYTES)) for path in functions]
    present = next((vgpu for vgpu in found if vgpu is not None and vgpu.present), None)
    if present is None and None not in found:
        return Vgpu(present=False)
    return present


def _load_number(path: Path) -> int | None:
    try:
        return int(_load(path, limit_bytes=_NUMBER_LIMIT_BYTES), 16)
    except ValueError:
        return None


def _load(path: Path, *, limit_bytes: int) -> bytes:
    """The beginning of a file; empty if it cannot be read."""
    try:
        return (load_text(path, limit_bytes=limit_bytes) or b"")[:limit_bytes]
    except (HostError, ValueError):  # ValueError: a path that can be none
        return b""

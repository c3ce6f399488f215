"""What the kernel's /sys knows of PCI devices: their NUMA node, and which of them the NVIDIA driver has taken."""

from __future__ import annotations

from pathlib import Path


class Sysfs:
    """Reads under ``root``, which is ``/sys`` except in tests. Raises nothing: what cannot be read is not known."""

    def __init__(self, root: Path = Path("/sys")) -> None:
        self._pci = root / "bus/pci"

    def find_numa_node(self, pci: str) -> int | None:
        """The NUMA node of a PCI address (``0000:1b:00.0``); None where the kernel knows none (it says -1)."""
        try:
            node = int((self._pci / "devices" / pci / "numa_node").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None
        return node if node >= 0 else None

    def find_bound_gpus(self) -> frozenset[str]:
        """The PCI addresses that the NVIDIA kernel driver has taken: a card that was plugged in shows up here first."""
        try:
            return frozenset(entry.name for entry in (self._pci / "drivers/nvidia").iterdir() if ":" in entry.name)
        except OSError:
            return frozenset()

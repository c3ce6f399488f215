"""The driver's device nodes of the host: which of those that belong to no single GPU are there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

# In the order in which they are handed to a container, before the GPUs' own (NVIDIA's order).
CONTROL_NODES: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")


def find_control_nodes(dev: Path) -> tuple[str, ...]:
    """The control nodes that exist, as paths of the host (``/dev/nvidiactl``, …).

    ``dev`` is this process's view of the host's ``/dev``: ``/host-dev`` where that is mounted, else ``/dev``. Nodes
    are looked at, never opened: that needs no privilege and wakes no driver. Raises nothing; what cannot be seen is
    not there.
    """
    return tuple(f"/dev/{name}" for name in CONTROL_NODES if os.path.exists(dev / name))  # noqa: PTH110 - Path.exists raises on EACCES


def choose_dev_view(host_dev: Path = Path("/host-dev"), own_dev: Path = Path("/dev")) -> Path:
    """The directory to look for device nodes in: the host's where the deployment mounts it, else our own."""
    return host_dev if os.path.isdir(host_dev) else own_dev  # noqa: PTH112 - as above

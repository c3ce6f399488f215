"""The driver's device nodes of the host: which of those that containers are handed are there."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from nvdp.model.inventory import Inventory
from nvdp.model.platforms import WSL_NODE, WSL_UUID

# In the order in which they are handed to a container, before the GPUs' own (NVIDIA's order).
CONTROL_NODES: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
# All that a configuration may ask for (``imex.channelIDs``).
_IMEX_CHANNELS: Final = (0,)
_IMEX_DIRECTORY: Final = "nvidia-caps-imex-channels"


class NodesSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What one look found, as paths of containers (``/dev/nvidiactl``).

    ``control`` are the nodes that belong to no single GPU, and are there. ``missing`` are nodes of GPUs and MIG devices
    that are not; none where that cannot be judged. ``imex_channels`` are those whose node is a character device.
    """

    control: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    imex_channels: tuple[int, ...] = ()


class NodeView:
    """Looks for nodes in ``dev``, where this process sees the host's ``/dev``.

    ``is_host``: what is not in ``dev`` is not on the host either. A container's own ``/dev`` says nothing of the kind:
    it has what its runtime put there. Nodes are looked at, never opened: that needs no privilege and wakes no driver.
    ``driver_root`` is where this process sees the driver's files; a driver container makes IMEX channels below it.
    """

    def __init__(self, dev: Path, *, is_host: bool, driver_root: str = "/") -> None:
        self._dev = dev
        self._is_host = is_host
        self._driver_root = driver_root

    def use_driver_root(self, driver_root: str) -> None:
        """Look there from the next look on."""
        self._driver_root = driver_root

    def look(self, inventory: Inventory | None) -> NodesSeen:
        """What is there now, and what is not of the devices in ``inventory``. Any thread; raises nothing."""
        wanted = _list_nodes(inventory) if self._is_host and inventory is not None else ()
        return NodesSeen(
            control=find_control_nodes(self._dev),
            missing=tuple(dict.fromkeys(path for path in wanted if not self._is_there(path))),
            imex_channels=tuple(channel for channel in _IMEX_CHANNELS if self._has_channel(channel)),
        )

    def _is_there(self, path: str) -> bool:
        return os.path.lexists(self._dev / path.removeprefix("/dev/"))

    def _has_channel(self, channel: int) -> bool:
        """In either place, as with NVIDIA's plugin."""
        return any(
            _is_character_device(dev / _IMEX_DIRECTORY / f"channel{channel}")
            for dev in (self._dev, Path(self._driver_root, "dev"))
        )


def _is_character_device(path: Path) -> bool:
    try:
        return stat.S_ISCHR(path.stat().st_mode)
    except OSError:
        return False


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


def _list_nodes(inventory: Inventory) -> Iterator[str]:
    """The nodes without which some device of the inventory is of no use to a container."""
    for gpu in inventory.gpus:
        if gpu.uuid == WSL_UUID:
            yield WSL_NODE
        if gpu.minor is not None:
            yield f"/dev/nvidia{gpu.minor}"
        for instance in gpu.instances or ():
            yield from instance.nodes

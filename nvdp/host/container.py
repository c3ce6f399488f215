"""Whether this container is worn out: the node has changed in a way that only a new container can follow.

Driver files and device permissions of a runtime-injected container are fixed when it is created, and a mounted
directory stays the one it was. ``/healthz`` fails then, after a minute, and the kubelet makes a new container.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable
from pathlib import Path

from nvdp.model.status import DriverState, DriverStatus

PATIENCE_S = 60.0
_CONTROL_NODE = "nvidiactl"
# A driver that works needs no other container. One that is let go of by order may be another one afterwards.
_NOTHING_AMISS = frozenset({DriverState.READY, DriverState.PAUSED})


class Access(enum.Enum):
    """Whether this container may open a device node."""

    GRANTED = "granted"
    DENIED = "denied"
    ABSENT = "absent"


class WornContainer:
    """Call it at each probe: one sentence once a problem has lasted for a minute, else None. For one thread at a time.

    ``directory`` is the mount of the kubelet's device-plugin directory. With ``follows_driver`` the driver root is
    mounted as a directory, so that a new driver's files are found without a new container. ``get_driver`` tells its
    state.
    """

    def __init__(
        self,
        *,
        directory: Path,
        dev: Path,
        host_dev: Path,
        follows_driver: bool,
        get_driver: Callable[[], DriverStatus],
        clock: Callable[[], float],
    ) -> None:
        self._directory = directory
        self._dev = dev
        self._host_dev = host_dev
        self._follows_driver = follows_driver
        self._get_driver = get_driver
        self._clock = clock
        self._since: float | None = None

    def __call__(self) -> str | None:
        problem = self._find()
        if problem is None:
            self._since = None
            return None
        if self._since is None:
            self._since = self._clock()
        return problem if self._clock() - self._since >= PATIENCE_S else None

    def _find(self) -> str | None:
        if directory_is_gone(self._directory):
            return f"{self._directory} was deleted and made anew on the host; this container still has the old one"
        driver = self._get_driver()
        if driver.state in _NOTHING_AMISS:
            return None
        if driver.state is DriverState.MISMATCH and not self._follows_driver:
            return "the driver library in this container and the kernel module differ"
        if find_access(self._dev, self._host_dev) is Access.DENIED:
            return f"/dev/{_CONTROL_NODE} is there, but this container may not open it: it was made before the driver"
        return None


def directory_is_gone(directory: Path) -> bool:
    """A mounted directory that was removed on the host has no links left."""
    try:
        return directory.stat().st_nlink == 0
    except OSError:
        return False


def find_access(dev: Path, host_dev: Path) -> Access:
    """What a driver library would meet: our own node first; without one, the host's, which we can only see."""
    own = _look(dev / _CONTROL_NODE)
    return own if own is not Access.ABSENT else _look(host_dev / _CONTROL_NODE)


def _look(node: Path) -> Access:
    """The kernel is asked, device cgroup included, and the node is not opened: a driver that hangs would keep us."""
    if os.access(node, os.R_OK | os.W_OK):
        return Access.GRANTED
    return Access.DENIED if os.access(node, os.F_OK) else Access.ABSENT

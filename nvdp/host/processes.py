"""The processes of the node, as far as this container sees them: names for the PIDs that the driver tells."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

_PROC: Final = Path("/proc")
# The kernel gives the first PID namespace, which is the host's, this number on every machine (PROC_PID_INIT_INO).
_HOST_NAMESPACE: Final = "pid:[4026531836]"
# Every container runtime names a container's control group by its ID, in one spelling or another.
_CONTAINER: Final = re.compile(r"[0-9a-f]{64}")
_SHOWN_ID_CHARS: Final = 12  # as crictl and docker show them


class NodeProcess(msgspec.Struct, frozen=True):
    """What is known of a process. ``container`` is the start of its container's ID, empty if it is in none."""

    name: str
    container: str = ""


class NodeProcesses:
    """Reads ``proc``, which is this container's own. Any thread; reading ``/proc`` does not block."""

    def __init__(self, proc: Path = _PROC) -> None:
        self._proc = proc

    @property
    def are_all_seen(self) -> bool:
        """Whether we are in the host's PID namespace (``hostPID: true``).

        The driver answers in the PIDs of who asks, and leaves out whoever has none there (os_find_ns_pid in NVIDIA's
        open kernel modules): from another namespace the processes of other containers are not even told.
        """
        try:
            return str((self._proc / "self" / "ns" / "pid").readlink()) == _HOST_NAMESPACE
        except OSError:
            return False

    def find_process(self, pid: int) -> NodeProcess | None:
        """The process of that PID; None if there is none, or if it cannot be seen from here."""
        place = self._proc / str(pid)
        try:
            name = (place / "comm").read_text(errors="replace").strip()
        except OSError:
            return None
        try:
            found = _CONTAINER.findall((place / "cgroup").read_text(errors="replace"))
        except OSError:
            found = []
        return NodeProcess(name, found[-1][:_SHOWN_ID_CHARS] if found else "")

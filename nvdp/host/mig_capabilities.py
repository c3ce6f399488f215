"""Which device nodes give access to MIG instances, as the NVIDIA kernel driver tells under ``/proc``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from nvdp.errors import HostError
from nvdp.host.files import load_text
from nvdp.model.mig import Capability, CapabilityNodes

# A driver lists every instance that there might be: 32 GPUs have 100 KiB.
_LIMIT_BYTES: Final = 4 << 20
_LINE: Final = re.compile(r"gpu(\d+)/gi(\d+)(?:/ci(\d+))?/access (\d+)", re.ASCII)
_PLACE: Final = re.compile(r"gpu(\d+)/mig/gi(\d+)(?:/ci(\d+))?/access", re.ASCII)
_MINOR: Final = re.compile(r"^DeviceFileMinor:\s*(\d+)\s*$", re.ASCII | re.MULTILINE)


class MigCapabilities:
    """Reads under ``proc``, which is ``/proc`` except in tests."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._minors = proc / "driver/nvidia-caps/mig-minors"
        self._capabilities = proc / "driver/nvidia/capabilities"

    def load(self) -> CapabilityNodes:
        """All that is known now. Raises nothing: what cannot be read is not known. Blocks as long as the kernel does.

        ``mig-minors`` lists all instances that there may ever be; those that there are have a file of their own too,
        which counts where the list does not name them.
        """
        return CapabilityNodes({**self._load_existing(), **parse_mig_minors(_load(self._minors))})

    def _load_existing(self) -> dict[Capability, int]:
        found: dict[Capability, int] = {}
        for pattern in ("gpu*/mig/gi*/access", "gpu*/mig/gi*/ci*/access"):
            for path in self._capabilities.glob(pattern):
                place = _PLACE.fullmatch(str(path.relative_to(self._capabilities)))
                minor = _MINOR.search(_load(path)) if place is not None else None
                if place is not None and minor is not None:
                    found[_build_capability(place)] = int(minor[1])
        return found


def parse_mig_minors(text: str) -> dict[Capability, int]:
    """The minor numbers in the driver's list; lines about other capabilities, and damaged ones, are passed over."""
    lines = filter(None, map(_LINE.fullmatch, text.splitlines()))
    return {_build_capability(match): int(match[4]) for match in lines}


def _build_capability(match: re.Match[str]) -> Capability:
    return int(match[1]), int(match[2]), int(match[3]) if match[3] is not None else None


def _load(path: Path) -> str:
    """The text of a file; empty where it cannot be read or is far too long."""
    try:
        content = load_text(path, limit_bytes=_LIMIT_BYTES) or b""
    except HostError:
        return ""
    return content.decode("ascii", errors="replace") if len(content) <= _LIMIT_BYTES else ""

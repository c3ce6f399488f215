"""Which labels are ours to write and to take away: those that docs/labels.md lists, and no other of NVIDIA's domain.

Others there steer somebody, as ``nvidia.com/device-plugin.config``, ``nvidia.com/mig.config`` and all that begins with
``nvidia.com/gpu.deploy.`` do.
"""

from __future__ import annotations

import re
from typing import Final

_FACTS: Final = (
    r"product|count|replicas|sharing-strategy|memory|multiprocessors|slices\.(gi|ci)"
    r"|engines\.(copy|decoder|encoder|jpeg|ofa)"
)
_OURS: Final = re.compile(
    r"nvidia\.com/("
    r"gfd\.timestamp|nvdp\.config-valid|mps\.capable|mig\.(capable|strategy)"
    r"|cuda\.(driver|runtime)(-version)?\.(major|minor|rev|revision|full)"
    r"|vgpu\.(present|host-driver-version|host-driver-branch)"
    r"|gpu\.(machine|family|mode|clique|compute\.(major|minor)|memory\.total|product\.[0-9A-Za-z._-]+\.count)"
    rf"|(gpu|mig-[0-9A-Za-z._-]+)\.({_FACTS})"
    r")"
)


def is_catalogued(key: str) -> bool:
    """Whether nvdp writes a label of that name."""
    return _OURS.fullmatch(key) is not None

"""Kinds of systems with NVIDIA GPUs, by how the GPUs are found and handed to containers.

On two of them there is one device for all that computes, under a name that NVIDIA's plugin gave it.
"""

from __future__ import annotations

import enum
from typing import Final


class DeviceDiscoveryStrategy(enum.Enum):
    """What the file says of how GPUs are found: by what is there, by NVML, or as on a Tegra system."""

    AUTO = "auto"
    NVML = "nvml"
    TEGRA = "tegra"


class Platform(enum.Enum):
    """NVML tells each GPU; Windows hands all GPUs to WSL2 together; a Tegra system has the one of its chip."""

    NVML = "nvml"
    WSL = "wsl"
    TEGRA = "tegra"


WSL_UUID: Final = "all"
TEGRA_UUID: Final = "tegra"
ALL_THERE_IS: Final = (WSL_UUID, TEGRA_UUID)  # each stands for every GPU of its node
WSL_NODE: Final = "/dev/dxg"

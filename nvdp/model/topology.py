"""How two GPUs of a node are connected: what decides how quickly they exchange data."""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

# A row for each GPU, with the points that it has with each other one: the more, the better they are connected. The same
# both ways, and none with itself.
Weights: TypeAlias = tuple[tuple[int, ...], ...]


class Ancestor(enum.Enum):
    """The nearest thing that the PCIe ways to two GPUs have in common, as NVML names it, from near to far.

    One board, one PCIe switch, several switches, one host bridge, one processor (its NUMA node), the whole machine.
    """

    INTERNAL = "internal"
    SINGLE = "single-switch"
    MULTIPLE = "multiple-switches"
    HOSTBRIDGE = "host-bridge"
    NODE = "node"
    SYSTEM = "system"


class Connection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What connects two GPUs, given by UUID, ``a`` before ``b``.

    ``ancestor`` is None where NVML does not tell it. ``nvlinks`` are those between the two; where both are on one
    NVSwitch fabric, ``fabric_links`` are as many as both have to it. Only those count that are up.
    """

    a: str
    b: str
    ancestor: Ancestor | None = None
    nvlinks: int = 0
    fabric_links: int = 0

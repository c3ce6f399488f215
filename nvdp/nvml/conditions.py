"""NVML's numbers for the condition of a GPU in the words of ``model.health.Vitals``; never imports pynvml."""

from __future__ import annotations

from typing import Final

import msgspec

RECOVERY_ACTION_FIELD: Final = 230
RECOVERY_ACTIONS: Final = {
    0: "None",
    1: "GPUReset",
    2: "NodeReboot",
    3: "DrainP2P",
    4: "DrainAndReset",
    5: "RecoverIMEXDomain",
    6: "BusReset",
    7: "SystemReboot",
}
UNKNOWN_ACTION: Final = "Unknown"
# 0 is a GPU that is on no fabric.
FABRIC_COMPLETED: Final = "Completed"
FABRIC_STATES: Final = {1: "NotStarted", 2: "InProgress", 3: FABRIC_COMPLETED}
FABRIC_SUCCESS: Final = "Success"


class FabricPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the fabric's health mask: ``width`` bits at ``shift``, and the one value that says it is well.

    0 says nothing: the part is not supported.
    """

    fault: str
    shift: int
    width: int
    well: int

    def is_bad(self, mask: int) -> bool:
        """Whether ``mask`` says that something is wrong here."""
        return mask >> self.shift & (1 << self.width) - 1 not in {0, self.well}


FABRIC_PARTS: Final = (
    FabricPart(fault="DegradedBandwidth", shift=0, width=2, well=2),
    FabricPart(fault="RouteRecovery", shift=2, width=2, well=2),
    FabricPart(fault="RouteUnhealthy", shift=4, width=2, well=2),
    FabricPart(fault="AccessTimeoutRecovery", shift=6, width=2, well=2),
    FabricPart(fault="Misconfigured", shift=8, width=4, well=1),
)


def find_fabric_faults(mask: int) -> tuple[str, ...]:
    """The faults that a health mask tells, in the order of its parts."""
    return tuple(part.fault for part in FABRIC_PARTS if part.is_bad(mask))

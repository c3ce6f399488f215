"""What a start begins with, of those that were before: the GPUs that they saw, and what they knew of faults."""

from __future__ import annotations

import msgspec

from nvdp.model.inventory import Inventory
from nvdp.services.health import KnownFaults


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """What a start begins with. ``inventory`` is what a predecessor knew last in this boot, None if there was none.

    ``is_held``: the driver is not to be touched before ``pause`` or ``resume`` says whether it may be.
    """

    faults: KnownFaults = KnownFaults()
    inventory: Inventory | None = None
    is_held: bool = False

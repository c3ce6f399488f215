"""How GPUs and MIG devices are shared, as labels tell it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from nvdp.config.schema import Config
from nvdp.model.listing import Strategy
from nvdp.planning.allotment import Allotment
from nvdp.planning.entries import list_entries

_SHARED: Final = "-SHARED"


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """How a device is shared. ``is_renamed``: under another name than that of its resource."""

    replicas: int = 1
    strategy: Strategy = Strategy.NONE
    is_renamed: bool = False

    @property
    def suffix(self) -> str:
        return _SHARED if self.replicas > 1 and not self.is_renamed else ""

    @property
    def rank(self) -> tuple[int, str, bool]:
        """Decides between ways of as many devices: the lowest, which has most replicas."""
        return -self.replicas, self.strategy.value, self.is_renamed


_UNSHARED: Final = Way()
NOT_OFFERED: Final = Way(replicas=0)


def find_ways(config: Config, allotment: Allotment) -> dict[str, Way]:
    """How the file has each device shared, by UUID, whether or not the node can do it now."""
    entries = {entry.path: entry for entry in list_entries(config)}
    ways = {}
    for device in allotment.devices:
        withheld = allotment.withheld.get(device.uuid)
        intended = allotment.assignments.get(device.uuid) if withheld is None else withheld.intended
        if intended is None or intended.replicas == 1:
            ways[device.uuid] = _UNSHARED
            continue
        entry = entries[intended.rule]
        is_renamed = entry.final_name != entry.setting.name
        ways[device.uuid] = Way(replicas=intended.replicas, strategy=intended.strategy, is_renamed=is_renamed)
    return ways


def choose_way(ways: Iterable[Way]) -> Way:
    """That of most devices."""
    counts = Counter(ways)
    return min(counts, key=lambda way: (-counts[way], *way.rank))

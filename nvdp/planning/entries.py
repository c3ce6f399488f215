"""The sharing entries of a file, in the order in which they take devices."""

from __future__ import annotations

from collections import Counter

import msgspec

from nvdp.config.schema import Config
from nvdp.config.sharing import SharedResource
from nvdp.model.listing import Strategy
from nvdp.model.names import ResourceName


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry with what follows from its block.

    ``identity`` tells the entry from all others of the file by what it promises, not by its place or its replicas: what
    is pinned for it stays when other entries come and go, and when its devices are only cut into more pieces.
    """

    setting: SharedResource
    strategy: Strategy
    final_name: ResourceName
    identity: str

    @property
    def path(self) -> str:
        return self.setting.path

    @property
    def shared_strategy(self) -> Strategy:
        """How its devices are shared; one replica of time-slicing is the device itself."""
        alone = self.strategy is Strategy.TIME_SLICING and not self.setting.is_shared
        return Strategy.NONE if alone else self.strategy


def list_entries(config: Config) -> tuple[Entry, ...]:
    """Time-slicing before MPS, each in the order of the file (configuration contract, "How cards are given")."""
    found = []
    seen: Counter[str] = Counter()
    blocks = (
        ("timeSlicing", Strategy.TIME_SLICING, config.sharing.time_slicing),
        ("mps", Strategy.MPS, config.sharing.mps),
    )
    for word, strategy, block in blocks:
        for setting in block.resources if block is not None else ():
            assert block is not None
            final_name = setting.build_final_name(rename_by_default=block.rename_by_default)
            promise = f"sharing.{word}({setting.name} as {final_name})"
            seen[promise] += 1
            identity = promise if seen[promise] == 1 else f"{promise}#{seen[promise]}"
            found.append(Entry(setting=setting, strategy=strategy, final_name=final_name, identity=identity))
    return tuple(found)

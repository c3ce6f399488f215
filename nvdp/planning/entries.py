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

    ``identity`` tells the entry by what it says, not by its place, so that what is pinned for it stays when others come
    and go. Entries with lists of one promise share it: no reference can stand in two of them. Entries with counts also
    tell their count and their replicas, and those that say the same are numbered.
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
        """How its devices are shared. One replica is the device itself, under MPS with a daemon that limits nothing."""
        alone = self.strategy is Strategy.TIME_SLICING and not self.setting.is_shared
        return Strategy.NONE if alone else self.strategy

    @property
    def kin(self) -> str:
        """What the identities of entries by count have in common that differ in their replicas only."""
        return self.identity.rpartition("×")[0] + "×"


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
            identity = f"sharing.{word}({setting.name} as {final_name})"
            if setting.devices.count is not None:
                identity += f"={setting.devices.count}×{setting.replicas}"
                seen[identity] += 1
                identity += f"#{seen[identity]}" if seen[identity] > 1 else ""
            found.append(Entry(setting=setting, strategy=strategy, final_name=final_name, identity=identity))
    return tuple(found)

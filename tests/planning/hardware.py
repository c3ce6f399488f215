"""The cards of one node for random histories, and what a scan finds of them: NVML's numbering is part of the trouble.

Cards sit in slots. NVML counts those that are there in the order of their slots, so that a card that is lost or added
gives others a new index.
"""

from __future__ import annotations

import dataclasses

from nvdp.model.inventory import Driver, Fault, Gpu, GpuRef, Inventory, UnreadableGpu
from nvdp.model.reasons import Cause
from nvdp.planning.presence import Silenced

SLOTS = 6
PRODUCTS = ("NVIDIA A10", "NVIDIA L4")
_LOST = Fault(call="nvmlDeviceGetName", kind="GpuIsLost", text="off the bus")
_DRIVER = Driver(version="580.65.06", cuda_version="13.0")


def slot_pci(slot: int) -> str:
    return f"0000:{slot + 16:02x}:00.0"


def card_uuid(slot: int, copy: int = 0) -> str:
    """The UUID of the ``copy``-th card that came into the slot."""
    return f"GPU-00000000-0000-0000-0000-{copy * 1000 + slot:012d}"


def card_product(slot: int, copy: int = 0) -> str:
    return PRODUCTS[(slot // 3 + copy) % 2]


@dataclasses.dataclass
class Card:
    """``state``: fine; lost (answers with its UUID alone), mute (not even that), or hung (a call does not return)."""

    slot: int
    copy: int = 0
    state: str = "fine"

    @property
    def uuid(self) -> str:
        return card_uuid(self.slot, self.copy)

    def describe(self, index: int) -> Gpu:
        if self.state != "fine":
            return Gpu(uuid=self.uuid, index=index, pci=slot_pci(self.slot), fault=_LOST)
        return Gpu(
            uuid=self.uuid,
            index=index,
            pci=slot_pci(self.slot),
            minor=self.slot,
            product=card_product(self.slot, self.copy),
            memory_bytes=24 * 2**30,
            compute_capability="8.6",
            numa_node=self.slot // 2,
        )


class Machine:
    """``cards`` are by slot; one that is pulled out is not among them."""

    def __init__(self, cards: int) -> None:
        self.cards = {slot: Card(slot) for slot in range(cards)}

    def pull(self, slot: int) -> None:
        self.cards.pop(slot, None)

    def plug(self, slot: int, copy: int = 0) -> None:
        """A card comes into an empty slot."""
        self.cards.setdefault(slot, Card(slot, copy))

    def trouble(self, slot: int, state: str) -> None:
        if slot in self.cards:
            self.cards[slot].state = state

    def heal(self) -> None:
        for card in self.cards.values():
            card.state = "fine"

    def scan(self) -> tuple[Inventory, tuple[Silenced, ...]]:
        """What a complete scan finds, and what it leaves out."""
        gpus, unreadable, silenced = [], [], []
        for index, slot in enumerate(sorted(self.cards)):
            card = self.cards[slot]
            if card.state == "mute":
                unreadable.append(UnreadableGpu(index=index, pci=slot_pci(slot), fault=_LOST))
            elif card.state == "hung":
                ref = GpuRef(index=index, count=len(self.cards), pci=slot_pci(slot), uuid=card.uuid)
                silenced.append(
                    Silenced(ref=ref, uuid=card.uuid, cause=Cause.CALL_TIMEOUT, call=_LOST.call, text="did not return")
                )
            else:
                gpus.append(card.describe(index))
        return Inventory(driver=_DRIVER, gpus=tuple(gpus), unreadable=tuple(unreadable)), tuple(silenced)

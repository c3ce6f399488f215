"""The cards of one node for random histories, and what a scan finds of them: NVML's numbering is part of the trouble.

Cards sit in slots. NVML counts those that are there in the order of their slots, so that a card that is lost or added
gives others a new index. A card may be cut into MIG devices, which are made and destroyed one by one.
"""

from __future__ import annotations

import dataclasses

from nvdp.model.inventory import Driver, Fault, Gpu, GpuRef, Inventory, MigInstance, MigMode, UnreadableGpu
from nvdp.model.reasons import Cause
from nvdp.planning.places import Silenced

SLOTS = 6
PARTS = 3  # MIG devices that a card has room for
PROFILES = ("1g.10gb", "1g.10gb", "2g.20gb+me")
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


def part_uuid(slot: int, number: int) -> str:
    """The UUID of the ``number``-th MIG device that was ever made in the slot."""
    return f"MIG-00000000-0000-0000-{slot:04d}-{number:012d}"


@dataclasses.dataclass
class Card:
    """``state``: fine; lost (answers with its UUID alone), mute (not even that), or hung (a call does not return).

    ``parts`` are its MIG devices by NVML's index; None while MIG mode is off.
    """

    slot: int
    copy: int = 0
    state: str = "fine"
    parts: dict[int, MigInstance] | None = None

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
            mig=MigMode.DISABLED if self.parts is None else MigMode.ENABLED,
            instances=None if self.parts is None else tuple(self.parts[index] for index in sorted(self.parts)),
        )


class Machine:
    """``cards`` are by slot; one that is pulled out is not among them."""

    def __init__(self, cards: int) -> None:
        self.cards = {slot: Card(slot) for slot in range(cards)}
        self.parents: dict[str, str] = {}  # of all MIG devices that there ever were
        self._made: dict[int, int] = {}

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

    def switch(self, slot: int, *, on: bool) -> None:
        """MIG mode, which takes all that the card was cut into away."""
        card = self.cards.get(slot)
        if card is not None and on is (card.parts is None):
            card.parts = {} if on else None

    def make(self, slot: int, profile: str) -> None:
        """One more MIG device, at the first free index, if there is room; the driver's numbers begin where it likes."""
        card = self.cards.get(slot)
        if card is None or card.parts is None or len(card.parts) >= PARTS:
            return
        index = next(index for index in range(PARTS) if index not in card.parts)
        number = self._made[slot] = self._made.get(slot, -1) + 1
        uuid = part_uuid(slot, number)
        self.parents[uuid] = card.uuid
        card.parts[index] = MigInstance(
            uuid=uuid, index=index, gpu_instance=(7 * number) % 13, compute_instance=0, profile=profile
        )

    def destroy(self, slot: int, number: int) -> None:
        card = self.cards.get(slot)
        if card is not None and card.parts:
            del card.parts[sorted(card.parts)[number % len(card.parts)]]

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

"""The form in which a GPU is offered: under which resource, whole or in replicas, and whether by MPS."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nvdp.model.inventory import Gpu
from nvdp.model.listing import Strategy


class Form(msgspec.Struct, frozen=True, order=True):
    """How a GPU is offered: under one name, whole or in replicas, by MPS or not. One GPU has one form at a time.

    Under one name and with the same IDs, MPS is another form: its GPU belongs to a control daemon, which no other
    container can work beside.
    """

    resource: str
    shared: bool
    mps: bool = False

    def __str__(self) -> str:
        way = ("MPS" if self.shared else "whole, by MPS") if self.mps else "shared" if self.shared else "whole"
        return f"{self.resource} ({way})"


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU's form and its number of replicas; ``rule`` is the place in the file that says so (empty: the default)."""

    form: Form
    replicas: int = 1
    strategy: Strategy = Strategy.NONE
    rule: str = ""


class Withheld(msgspec.Struct, frozen=True, kw_only=True):
    """Why a GPU is not on offer: one word for labels, the place in the file, a sentence.

    ``intended`` is the form that the file asks for, where it asks for one. Where a GPU of several lacks something,
    ``device`` is its UUID and ``minimum`` what there must be.
    """

    reason: str
    path: str
    text: str
    intended: Assignment | None = None
    device: str = ""
    minimum: str = ""


def order_gpus(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The order of every list: by PCI address, which does not change when NVML renumbers; those without one come last.

    A longer address has a higher domain, and addresses of one length are in the order of their text.
    """
    return tuple(sorted(gpus, key=lambda gpu: (gpu.pci is None, len(gpu.pci or ""), gpu.pci or "", gpu.uuid)))

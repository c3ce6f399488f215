"""What is worth telling when GPUs come, and when they are gone and their grace is over: each once."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from nvdp.model.inventory import Inventory
from nvdp.model.reasons import Reason
from nvdp.planning.wording import Announcement


def announce_arrivals(before: Inventory | None, after: Inventory, *, untold: Collection[str]) -> Iterator[Announcement]:
    """GPUs that one of two inventories has alone, but those that are ``untold``; nothing of the first inventory."""
    if before is not None:
        yield from _announce(Reason.DEVICE_ADDED, "was added", after, before, untold)
        yield from _announce(Reason.DEVICE_REMOVED, "was removed", before, after, untold)


def _announce(
    reason: Reason, what: str, more: Inventory, less: Inventory, untold: Collection[str]
) -> Iterator[Announcement]:
    """The GPUs of ``more`` that are not in ``less``."""
    known = {gpu.uuid for gpu in less.gpus}
    for gpu in more.gpus:
        if gpu.uuid not in known and gpu.uuid not in untold:
            fields = {"device": gpu.uuid, "index": gpu.index, "pci": gpu.pci}
            yield Announcement(reason, f"{gpu.product or 'a GPU'} {what}", fields)

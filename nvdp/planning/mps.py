"""What MPS needs of a GPU, and how much of it each client may have."""

from __future__ import annotations

from collections.abc import Sequence

from nvdp.model.inventory import Inventory
from nvdp.planning.entries import Entry
from nvdp.planning.sharing import Claims, Problem


def find_unsupported(entries: Sequence[Entry], claims: Claims, inventory: Inventory) -> dict[str, Problem]:
    """The MPS entries that this node cannot honour, by path."""
    del entries, claims, inventory
    return {}

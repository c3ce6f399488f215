"""Which devices were last on offer by MPS: what an ID alone does not tell. Pure.

Time-sliced or by MPS, a device may have the same IDs under the same name. A pod holds it in the form in which it was on
offer when the pod came, also after the file has changed and the process was another. So the form of what is listed and
held is remembered, and changes only with the first Healthy ID in the new form, which waits for all that was before.
"""

from __future__ import annotations

from collections.abc import Mapping

from nvdp.model.held import Held
from nvdp.planning.ledger import ByMps
from nvdp.planning.rivals import Known


def follow_by_mps(
    before: ByMps, *, offered: Mapping[tuple[str, str], bool], known: Known, held: Held
) -> dict[str, tuple[str, ...]]:
    """What is to be remembered after one plan: by resource the UUIDs of devices whose IDs are of MPS, in order.

    ``offered`` are the resource and device that the plan has on offer, or lists for the first time, and whether by MPS.
    ``known`` are all IDs that were given out before or are held: what neither is nor is listed now is forgotten, but
    only while the answer about holders can be believed to be whole.
    """
    is_told = held.source is not None and held.unreadable_since is None
    there = {(form.resource, uuid) for uuid, forms in known.items() for form in forms}
    kept = {(resource, uuid) for resource, uuids in before.items() for uuid in uuids}
    kept = (kept & there if is_told else kept) - offered.keys()
    kept |= {place for place, is_mps in offered.items() if is_mps}
    found: dict[str, list[str]] = {}
    for resource, uuid in sorted(kept):
        found.setdefault(resource, []).append(uuid)
    return {resource: tuple(uuids) for resource, uuids in found.items()}

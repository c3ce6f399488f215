"""What would keep a control daemon from its GPUs or its pipe: control daemons of others."""

from __future__ import annotations

from collections.abc import Collection

from nvdp.model.reasons import Reason
from nvdp.mps.foreign import find_foreign
from nvdp.mps.places import Places
from nvdp.services.mps_node import Node


class Obstacles:
    """Looks for them, for one resource. Used by one thread."""

    def __init__(self, resource: str, places: Places, node: Node) -> None:
        self._resource = resource
        self._places = places
        self._node = node
        self._told = ""

    def look(self, gpus: Collection[str]) -> str:
        """What is in the way of these GPUs, in a sentence that is told once; empty if nothing is."""
        node = self._node
        foreign = find_foreign(node.find_own_pids(), self._places.pipe_dir, gpus, minors=node.find_minors())
        text = "" if foreign is None else f"{foreign} has these GPUs or this pipe; end it, or take them out of MPS"
        if text and text != self._told:
            node.log(Reason.MPS_UNSUPPORTED, text, resource=self._resource)
        self._told = text
        return text

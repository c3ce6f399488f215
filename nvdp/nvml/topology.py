"""Reading what connects the GPUs of a node: PCIe and NVLink. Runs in the child.

A call that fails costs what it would have told, and nothing else. What is wired does not change: it is asked once in a
session. Which NVLinks are up, and where they lead, is known from the vitals of the same scan.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec
import pynvml

from nvdp.errors import NvmlError
from nvdp.model.health import NvLink, Vitals
from nvdp.model.topology import Ancestor, Connection
from nvdp.nvml.asking import NO_SUCH_FACT, GpuFacts
from nvdp.nvml.frames import COMMON_ANCESTOR_CALL

_ANCESTORS: Final = {
    pynvml.NVML_TOPOLOGY_INTERNAL: Ancestor.INTERNAL,
    pynvml.NVML_TOPOLOGY_SINGLE: Ancestor.SINGLE,
    pynvml.NVML_TOPOLOGY_MULTIPLE: Ancestor.MULTIPLE,
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: Ancestor.HOSTBRIDGE,
    pynvml.NVML_TOPOLOGY_NODE: Ancestor.NODE,
    pynvml.NVML_TOPOLOGY_SYSTEM: Ancestor.SYSTEM,
}


class Connected(msgspec.Struct, frozen=True):
    """A GPU that was recognised, so that its UUID is known, and has been read."""

    handle: object
    facts: GpuFacts
    vitals: Vitals

    @property
    def uuid(self) -> str:
        return self.facts.ref.uuid or ""

    @property
    def links(self) -> Sequence[NvLink]:
        """The NVLinks that are up."""
        return [link for link in self.vitals.nvlinks or () if link.up]


class _Wired(msgspec.Struct, frozen=True, kw_only=True):
    """Where the NVLinks of a GPU lead that are up: how many to switches, and to what is at which PCI address."""

    uuid: str
    pci: str | None
    fabric: str
    to_switch: int
    to_peer: Counter[str | None]


class TopologyReader:
    """For one session of NVML; remembers what is wired."""

    def __init__(self) -> None:
        self._ancestors: dict[tuple[str, str], Ancestor | None] = {}
        self._to_switch: dict[tuple[str, int], bool] = {}

    def read_links(self, gpu: Connected) -> None:
        """Ask which NVLinks lead to a switch, of those that are up and were not asked yet."""
        fresh = [link.number for link in gpu.links if (gpu.uuid, link.number) not in self._to_switch]
        if not fresh:
            return
        try:
            told = gpu.facts.ask(
                "nvmlDeviceGetNvLinkRemoteDeviceType", lambda: [_leads_to_switch(gpu.handle, n) for n in fresh]
            )
        except NvmlError:
            return
        self._to_switch |= {(gpu.uuid, number): to_switch for number, to_switch in zip(fresh, told, strict=True)}

    def connect(self, gpus: Sequence[Connected], *, ancestors: bool) -> tuple[Connection, ...]:
        """What connects each two, by what was read of each of them; ``ancestors``: see ``frames.Scan``."""
        by_uuid = sorted(gpus, key=lambda gpu: gpu.uuid)
        if ancestors:
            for a, b in itertools.combinations(by_uuid, 2):
                self._read_ancestor(a, b)
        return tuple(
            Connection(
                a=a.uuid,
                b=b.uuid,
                ancestor=self._ancestors.get((a.uuid, b.uuid)),
                nvlinks=min(a.to_peer[b.pci], b.to_peer[a.pci]),  # a link is up if both ends are
                fabric_links=min(a.to_switch, b.to_switch) if a.fabric == b.fabric else 0,
            )
            for a, b in itertools.combinations(map(self._follow_links, by_uuid), 2)
        )

    def _follow_links(self, gpu: Connected) -> _Wired:
        links = gpu.links
        to_switch = {link.number for link in links if self._to_switch.get((gpu.uuid, link.number))}
        return _Wired(
            uuid=gpu.uuid,
            pci=gpu.facts.ref.pci,
            fabric=gpu.vitals.fabric_clique,
            to_switch=len(to_switch),
            to_peer=Counter(link.peer for link in links if link.peer is not None and link.number not in to_switch),
        )

    def _read_ancestor(self, a: Connected, b: Connected) -> None:
        pair = (a.uuid, b.uuid)
        if pair in self._ancestors:
            return
        function = pynvml.nvmlDeviceGetTopologyCommonAncestor
        try:
            level = a.facts.ask(COMMON_ANCESTOR_CALL, function, a.handle, b.handle)
        except NvmlError as error:
            if error.kind in NO_SUCH_FACT:
                self._ancestors[pair] = None
            return
        self._ancestors[pair] = _ANCESTORS.get(level)


def _leads_to_switch(handle: object, number: int) -> bool:
    """Whether a link does; one of which GPU or driver do not tell it does not."""
    try:
        kind = pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, number)
    except pynvml.NVMLError as error:
        if error.value in {pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}:
            return False
        raise
    return bool(kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH)

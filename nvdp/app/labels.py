"""Gathers what the labels of a node depend on, on this node or from a node file; it only looks."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from nvdp.app.gpus import scan_once, scan_this_node
from nvdp.config.process import ProcessOptions
from nvdp.config.schema import Config
from nvdp.errors import HostError
from nvdp.host.state import State, read_state
from nvdp.host.traits import load_traits
from nvdp.model.inventory import Inventory
from nvdp.model.traits import Traits, Vgpu
from nvdp.planning.allotment import resolve_pins
from nvdp.planning.node_facts import LabelFacts
from nvdp.services.events import GpusScanned
from nvdp.services.steering import build_source

_FOR_COMPUTE: Final = 0x030200


def foresee_label_facts(config: Config, options: ProcessOptions, node_file: Path) -> LabelFacts:
    """What the labels of the machine of a node file are made of. Blocks while its child starts, half a second.

    Raises HostError for a node file that is no good, NvmlError for a machine whose driver does not answer.
    """
    from nvdp.nvml.simulated.nodefile import load_node  # noqa: PLC0415 - brings yaml

    load_node(str(node_file))
    options = msgspec.structs.replace(options, simulated_node=node_file)
    return _build_facts(config, options, scan_once(options, build_source(config)), State())


def load_label_facts(config: Config, options: ProcessOptions) -> LabelFacts:
    """What the labels of this node are made of under ``config``. Blocks while the driver answers, at worst two minutes.

    Raises NvmlError, in one line with the remedy, if it cannot be asked.
    """
    return _build_facts(config, options, scan_this_node(options, build_source(config)), _read_state(options))


def _build_facts(config: Config, options: ProcessOptions, scanned: GpusScanned, state: State) -> LabelFacts:
    """Without a time: when labels last changed, only those that are written tell."""
    inventory = scanned.inventory
    assert inventory is not None
    return LabelFacts(
        config=config,
        inventory=inventory,
        pins=resolve_pins(config, inventory.gpus, scanned.ailments, state.pins),
        traits=load_node_traits(config, options, inventory),
    )


def load_node_traits(config: Config, options: ProcessOptions, inventory: Inventory) -> Traits:
    """Of this node, as far as its ``/sys`` and the file of the configuration tell. Blocks for the disk.

    A simulated machine has no ``/sys``: its cards are for computing, and there is no vGPU among them.
    """
    if options.simulated_node is not None:
        classes = {gpu.pci: _FOR_COMPUTE for gpu in inventory.gpus if gpu.pci is not None}
        return Traits(pci_classes=classes, vgpu=Vgpu(present=False))
    file = config.flags.gfd.machine_type_file
    return load_traits(Path(file) if file else None)


def _read_state(options: ProcessOptions) -> State:
    """What the daemon keeps; one that cannot be read only means that an index is what has it now."""
    try:
        return read_state(options.state_dir)
    except HostError:
        return State()

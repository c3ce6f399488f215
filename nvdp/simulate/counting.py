"""Whether a configuration offers all GPUs of a node in one way, which is what the tour counts on."""

from __future__ import annotations

from nvdp.config.schema import Config
from nvdp.model.inventory import Driver, Gpu, Inventory, MigInstance, MigMode
from nvdp.nvml.simulated.node import Node
from nvdp.planning.allotment import Allotment, allot, resolve_pins


def find_uncounted(config: Config, node: Node, *, entry: str) -> str | None:
    """Why a GPU of ``node`` is not offered through the sharing entry at the path ``entry``; None if all are."""
    if config.devices.paused:
        return "no GPU takes pods (devices.paused)"
    inventory = _build_inventory(node)
    allotment = allot(config, inventory, resolve_pins(config, inventory.gpus, {}, {}))
    for device in allotment.devices:
        why = _find_reason(allotment, device.uuid, entry=entry)
        if why is not None:
            return f"{'GPU' if device.instance is None else 'MIG device'} {device.index} {why}"
    return None


def _find_reason(allotment: Allotment, uuid: str, *, entry: str) -> str | None:
    if uuid in allotment.withheld:
        withheld = allotment.withheld[uuid]
        return f"is not on offer ({withheld.path}: {withheld.text})"
    if uuid in allotment.cordoned:
        return f"takes no pods ({allotment.cordoned[uuid]})"
    rule = allotment.assignments[uuid].rule
    return None if rule == entry else f"is offered in another way ({rule or 'whole'})"


def _build_inventory(node: Node) -> Inventory:
    return Inventory(
        driver=Driver(version=node.driver.version, cuda_version=node.driver.cuda),
        gpus=tuple(
            Gpu(
                uuid=gpu.uuid,
                index=index,
                pci=gpu.pci,
                product=gpu.product,
                memory_bytes=gpu.memory_bytes,
                compute_capability=gpu.compute_capability,
                mig=MigMode(gpu.mig.value),
                instances=tuple(
                    MigInstance(uuid=one.uuid, index=one.index, profile=str(one.profile)) for one in gpu.instances
                ),
            )
            for index, gpu in enumerate(node.present)
        ),
    )

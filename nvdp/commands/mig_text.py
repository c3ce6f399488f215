"""The MIG part of ``nvdp plan``: the GPUs of a node that are cut, or will be, each with its MIG devices under it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nvdp.model.inventory import Gpu, MigMode
from nvdp.planning.devices import Device
from nvdp.planning.layout_news import describe_layout
from nvdp.planning.preview import Preview

PENDING = "{mode} after a reset: needs a GPU reset: nvdp pause"


def list_tree(preview: Preview, shorten: Callable[[str], str]) -> Iterator[str]:
    """A line for each GPU in MIG mode, or with another mode pending, and one for each of its MIG devices."""
    by_gpu: dict[str, list[Device]] = {}
    for device in preview.plan.devices:
        by_gpu.setdefault(device.gpu.uuid, []).append(device)
    for gpu in preview.gpus:
        if gpu.mig is not MigMode.ENABLED and gpu.mig_pending is None:
            continue
        facts = [str(gpu.index), shorten(gpu.uuid), gpu.product or "?", _describe_mode(gpu)]
        yield "  ".join(facts)
        for device in by_gpu.get(gpu.uuid, ()):
            if device.instance is not None:
                facts = [device.index, shorten(device.uuid), device.instance.profile or "?"]
                yield "  ".join(["", *facts, _describe_offer(preview, device)])


def _describe_mode(gpu: Gpu) -> str:
    pending = f"; {PENDING.format(mode=gpu.mig_pending.value)}" if gpu.mig_pending is not None else ""
    return describe_layout(gpu) + pending


def _describe_offer(preview: Preview, device: Device) -> str:
    assignment, withheld = preview.plan.assignments.get(device.uuid), preview.plan.withheld.get(device.uuid)
    if assignment is None:
        return f"not on offer: {withheld.reason}" if withheld is not None else "not on offer"
    times = f" × {assignment.replicas}" if assignment.form.shared else ""
    return f"{assignment.form.resource}{times}"

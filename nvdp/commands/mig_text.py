"""The MIG part of ``nvdp plan``: the GPUs of a node that are cut, or will be, each with its MIG devices under it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nvdp.config.schema import MigStrategy
from nvdp.model.inventory import Gpu, MigMode
from nvdp.model.reasons import Reason
from nvdp.model.status import EXCLUDED
from nvdp.planning.devices import Device
from nvdp.planning.layout_news import describe_layout
from nvdp.planning.preview import Preview

PENDING = "MIG mode {mode} is pending: needs a GPU reset: nvdp pause"


def list_tree(preview: Preview, shorten: Callable[[str], str]) -> Iterator[tuple[str, str, str, str]]:
    """A row for each GPU in MIG mode, or with another mode pending, and one for each of its MIG devices, by index."""
    by_gpu: dict[str, list[Device]] = {}
    for device in preview.plan.devices:
        by_gpu.setdefault(device.gpu.uuid, []).append(device)
    for gpu in preview.gpus:
        if gpu.mig is not MigMode.ENABLED and gpu.mig_pending is None:
            continue
        yield str(gpu.index), shorten(gpu.uuid), gpu.product or "?", _describe_gpu(preview, gpu)
        parts = [(device.instance, device) for device in by_gpu.get(gpu.uuid, ()) if device.instance is not None]
        for instance, device in sorted(parts, key=lambda part: part[0].index):
            yield device.index, shorten(device.uuid), f"  {instance.profile or '?'}", _describe_offer(preview, device)


def _describe_gpu(preview: Preview, gpu: Gpu) -> str:
    facts = [describe_layout(gpu)]
    is_none = preview.config.flags.mig_strategy is MigStrategy.NONE
    if is_none and gpu.mig is MigMode.ENABLED and gpu.uuid in preview.plan.assignments:
        facts.append("offered whole (migStrategy none)")
    if gpu.mig_pending is not None:
        facts.append(PENDING.format(mode=gpu.mig_pending.value))
    return "; ".join(facts)


def _describe_offer(preview: Preview, device: Device) -> str:
    assignment, withheld = preview.plan.assignments.get(device.uuid), preview.plan.withheld.get(device.uuid)
    if assignment is None:
        return f"not on offer: {_find_word(withheld.reason)}" if withheld is not None else "not on offer"
    times = f" × {assignment.replicas}" if assignment.form.shared else ""
    return f"{assignment.form.resource}{times}"


def _find_word(reason: str) -> str:
    """The word of the vocabulary under which it can be looked up; an excluded device needs none."""
    known = {EXCLUDED, Reason.MIG_INVALID.word, Reason.MPS_UNSUPPORTED.word}
    return reason if reason in known else Reason.ENTRY_WITHHELD.word

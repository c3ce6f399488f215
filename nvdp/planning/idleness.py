"""Which GPUs must be idle before a container starts on them, and how a refusal is put into words. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from nvdp.model.listing import ResourceList
from nvdp.model.reasons import Cause

# Nobody asks the driver about a GPU that it is known not to answer for: the wait would be for nothing.
_NOT_ANSWERING: Final = frozenset(
    {Cause.LOST, Cause.CALL_FAILED, Cause.CALL_TIMEOUT, Cause.DRIVER_LOST, Cause.DRIVER_PAUSED, Cause.VANISHED}
)
_MOST_NAMED: Final = 3  # processes in a text that must fit into a pod's status
_MIB: Final = 1 << 20


class Foreign(msgspec.Struct, frozen=True, kw_only=True):
    """A process that uses a GPU. ``name`` and ``container`` are empty, ``memory_bytes`` is None, where not known."""

    pid: int
    name: str = ""
    container: str = ""
    memory_bytes: int | None = None


class Checked(msgspec.Struct, frozen=True):
    """The GPUs, by UUID, that the driver is asked about; and of which it need not be asked, and why not."""

    asked: tuple[str, ...] = ()
    unanswered: Mapping[str, str] = {}


def choose_checked(listed: ResourceList, device_ids: Sequence[str]) -> Checked:
    """The GPUs of a container that are to be idle: those that it has for itself, whole.

    An ID that is no UUID is a share, whose others may well be at work; so is a MIG device, whose processes the driver
    tells of the GPU as a whole. A GPU whose ID is being withdrawn is perhaps
    shared already (``modeChange: immediate``). Of an ID that is not listed nothing is known. Where MPS has the GPU, a
    server is always there, and others may be its clients.
    """
    if listed.facts.mps is not None:
        return Checked()
    parts = {gpu.uuid for gpu in listed.facts.gpus if gpu.parent_uuid}
    asked: list[str] = []
    unanswered: dict[str, str] = {}
    for device in (listed.by_id[text] for text in sorted(set(device_ids)) if text in listed.by_id):
        if device.id != device.gpu_uuid or device.gpu_uuid in parts or device.cause is Cause.WITHDRAWING:
            continue
        if device.cause in _NOT_ANSWERING:
            unanswered[device.gpu_uuid] = device.text or device.cause.value
        else:
            asked.append(device.gpu_uuid)
    return Checked(tuple(asked), unanswered)


def describe_foreign(processes: Sequence[Foreign], *, nameless: str = "name unknown") -> str:
    """``PID 4711 (python3, 1024 MiB, container 0123456789ab)``; of many the first few.

    ``nameless`` is said of those that have no name.
    """
    shown = [f"PID {one.pid} ({', '.join(_list_facts(one, nameless))})" for one in processes[:_MOST_NAMED]]
    rest = len(processes) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def _list_facts(one: Foreign, nameless: str) -> list[str]:
    facts = [one.name or nameless]
    if one.memory_bytes is not None:
        facts.append(f"{one.memory_bytes // _MIB} MiB")
    if one.container:
        facts.append(f"container {one.container}")
    return facts

"""What control daemons of MPS become at their next start, and which pods keep them from it now. Pure.

A daemon has its GPUs and limits for life. While pods hold anything of it, it stays as it is, and so do GPUs that no pod
has: those that are to leave it, and those that are to join it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import msgspec

from nvdp.model.mps import DaemonSpec, Grant, MpsView
from nvdp.planning.daemons import name_holders
from nvdp.planning.plan import Plan
from nvdp.planning.wording import join_some

_NONE = "no limit"


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """What one daemon waits with, in words.

    ``holders`` are ``namespace/pod``, none while pods are only taken note of.
    """

    text: str
    holders: tuple[str, ...] = ()


def find_pending(plan: Plan, view: MpsView | None) -> dict[str, Pending]:
    """By resource, for each daemon that pods keep from what is wanted. Nothing while nobody tells of the daemons."""
    if view is None or view.problem:
        return {}
    found: dict[str, Pending] = {}
    for resource, grant in plan.grants.resources.items():
        report = view.daemons.get(resource)
        if report is None or report.running is None or grant.at_once or not grant.held:
            continue
        target = _find_target(grant, report.running)
        text = describe_next(report.running, target, build_name(plan))
        if text:
            holders = name_holders(plan.holders.get(resource, {}), grant.held)
            found[resource] = Pending(text=text, holders=holders)
    return found


def describe_next(running: DaemonSpec, wanted: DaemonSpec | None, name: Callable[[Collection[str]], str]) -> str:
    """What a daemon's next start changes, in words; empty if nothing. None: it is not wanted any more.

    Whether it serves several users does not count where it does not although it is asked to: its driver cannot.
    """
    if wanted is None:
        return "it ends"
    return ", ".join(_list_changes(running, wanted, name))


def _find_target(grant: Grant, running: DaemonSpec) -> DaemonSpec | None:
    """What is wanted of the GPUs that can be had: what it has already, and what is free."""
    if grant.wanted is None:
        return None
    there = {*grant.free, *running.gpus}
    return msgspec.structs.replace(grant.wanted, gpus=tuple(gpu for gpu in grant.wanted.gpus if gpu in there))


def build_name(plan: Plan) -> Callable[[Collection[str]], str]:
    """How GPUs of the node are named together: by NVML's index, ``GPUs 1, 3``, and by UUID what is not there."""
    indices = {device.gpu.uuid: device.gpu.index for device in plan.devices}

    def name(uuids: Collection[str]) -> str:
        known = sorted(indices[uuid] for uuid in uuids if uuid in indices)
        others = sorted(uuid for uuid in uuids if uuid not in indices)
        word = "GPU" if len(known) == 1 else "GPUs"
        return join_some([*([f"{word} {', '.join(map(str, known))}"] if known else []), *others])

    return name


def _list_changes(running: DaemonSpec, wanted: DaemonSpec, name: Callable[[Collection[str]], str]) -> Iterator[str]:
    for gpus, one, several in (
        ({*running.gpus} - {*wanted.gpus}, "leaves", "leave"),
        ({*wanted.gpus} - {*running.gpus}, "joins", "join"),
    ):
        if gpus:
            yield f"{name(gpus)} {one if len(gpus) == 1 else several} it"
    if running.thread_percent != wanted.thread_percent:
        yield f"{_percent(running)} → {_percent(wanted)} threads"
    both = [gpu for gpu in running.gpus if gpu in wanted.gpus]
    memory = dict.fromkeys((running.memory_mib.get(gpu), wanted.memory_mib.get(gpu)) for gpu in both)
    yield from (f"{_mib(before)} → {_mib(after)} memory" for before, after in memory if before != after)
    if running.multi_user and not wanted.multi_user:
        yield "one user at a time"


def _percent(spec: DaemonSpec) -> str:
    return _NONE if spec.thread_percent is None else f"{spec.thread_percent} %"


def _mib(limit: int | None) -> str:
    return _NONE if limit is None else f"{limit} MiB"

"""What waits for pods to end, and for which, as others may see it: withdrawals, mode changes, GPUs counted anew."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from nvdp.model.platforms import ALL_THERE_IS
from nvdp.model.reasons import Cause
from nvdp.model.status import Wait
from nvdp.planning.assignment import Assignment, Form
from nvdp.planning.indices import Renumbered
from nvdp.planning.plan import ModeChange, Plan


class _Leaving(msgspec.Struct):
    """The devices of one GPU in one form that are on their way out, and who holds them."""

    devices: int = 0
    holders: dict[str, None] = {}


def find_waits(plan: Plan, before: Iterable[Wait], *, wall: float) -> tuple[Wait, ...]:
    """Mode changes first, then what leaves without the GPU's becoming something else, then what takes no new pods for
    its index; each in list order.

    What waited ``before`` keeps its beginning; what is new begins now, at ``wall``. A pass over all lists, but only
    while something waits.
    """
    if not plan.waiting:
        return ()
    leaving = _find_leaving(plan)
    found = [_change(change, leaving.pop((change.gpu_uuid, change.before), _Leaving())) for change in plan.changes]
    found += [
        Wait(gpu_uuid=uuid, before=form.resource, devices=one.devices, holders=tuple(one.holders), since=0.0)
        for (uuid, form), one in leaving.items()
    ]
    found += [
        _await(uuid, plan.assignments[uuid], one) for uuid, one in plan.renumbered.items() if uuid in plan.assignments
    ]
    since = {_key(wait): wait.since for wait in before}
    return tuple(msgspec.structs.replace(wait, since=since.get(_key(wait), wall)) for wait in found)


def _find_leaving(plan: Plan) -> dict[tuple[str, Form], _Leaving]:
    found: dict[tuple[str, Form], _Leaving] = {}
    for resource, listed in plan.lists.items():
        holders = plan.holders.get(resource, {})
        clients = frozenset(plan.by_mps.get(resource, ()))
        groups: dict[tuple[str, bool], _Leaving] = {}
        for device in listed.devices:
            key = device.gpu_uuid, device.id != device.gpu_uuid
            if device.cause is not Cause.WITHDRAWING and not (
                device.cause is Cause.HELD and _is_of_old(plan, Form(resource, key[1], key[0] in clients), key[0])
            ):
                continue
            one = groups.get(key) or groups.setdefault(key, _Leaving())
            one.devices += 1
            if device.id in holders:
                one.holders[holders[device.id].holder] = None
        found |= {(uuid, Form(resource, shared, uuid in clients)): one for (uuid, shared), one in groups.items()}
    return found


def _is_of_old(plan: Plan, form: Form, gpu_uuid: str) -> bool:
    """Whether an ID of the new form is of the old one still: the same ID under the same name, by MPS or not."""
    assignment = plan.assignments.get(gpu_uuid)
    return assignment is not None and assignment.form != form and assignment.form.resource == form.resource


def _change(change: ModeChange, leaving: _Leaving) -> Wait:
    """The names of both forms, or the forms themselves where the name stays."""
    renamed = change.before.resource != change.after.resource
    before = change.before.resource if renamed else str(change.before)
    if change.before == change.after:
        how = "found as another system" if change.gpu_uuid in ALL_THERE_IS else "in another MIG layout"
        before = f"{change.before.resource} {how}"
    return Wait(
        gpu_uuid=change.gpu_uuid,
        before=before,
        after=change.after.resource if renamed else str(change.after),
        devices=leaving.devices,
        holders=tuple(leaving.holders) or ((change.holder,) if change.holder else ()),
        since=0.0,
    )


def _await(gpu_uuid: str, assignment: Assignment, one: Renumbered) -> Wait:
    return Wait(
        gpu_uuid=gpu_uuid,
        before=assignment.form.resource,
        devices=assignment.replicas,
        holders=one.pods,
        text=one.text,
        since=0.0,
    )


def _key(wait: Wait) -> tuple[str, str, str, bool]:
    return wait.gpu_uuid, wait.before, wait.after, bool(wait.text)

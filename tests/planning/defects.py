"""Planted defects: planners that are wrong in one way each, to show that the histories find such a thing.

Each is the real planner with something taken from its inputs or changed in its outcome, as a mistake in one of its
rules would. Most are wrong in rare moments only, and right in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from nvdp.config.schema import ModeChange
from nvdp.model.duration import build_duration
from nvdp.model.listing import AllocateTrace, ListedDevice
from nvdp.model.mps import Grant
from nvdp.model.reasons import Cause
from nvdp.planning.allotment import allot, resolve_pins
from nvdp.planning.granted import Granted
from nvdp.planning.ledger import Given, uuid_of_id
from nvdp.planning.means import Means
from nvdp.planning.plan import Inputs, Plan, build_plan
from tests.planning.plugin_model import Planner

_replace = msgspec.structs.replace


def _block(name: str, **keys: Any) -> Planner:
    """Keys of one block of the file are not what is written there."""

    def plan(inputs: Inputs) -> Plan:
        changed = _replace(getattr(inputs.config, name), **keys)
        return build_plan(_replace(inputs, config=_replace(inputs.config, **{name: changed})))

    return plan


def _held(**change: Callable[[Inputs], Any]) -> Planner:
    """The answer about holders is not what it is."""
    return lambda inputs: build_plan(
        _replace(inputs, held=_replace(inputs.held, **{name: how(inputs) for name, how in change.items()}))
    )


def _given(change: Callable[[Given], Given]) -> Planner:
    """The record of what was given out is not what it is."""
    return lambda inputs: build_plan(
        _replace(inputs, given={resource: change(given) for resource, given in inputs.given.items()})
    )


def _devices(change: Callable[[ListedDevice], ListedDevice | None]) -> Planner:
    """Single devices are listed in another way, or not at all."""

    def plan(inputs: Inputs) -> Plan:
        right = build_plan(inputs)
        lists = {}
        for resource, listed in right.lists.items():
            changed = (change(device) for device in listed.devices)
            lists[resource] = _replace(listed, devices=tuple(device for device in changed if device is not None))
        return _replace(right, lists=lists)

    return plan


def _heal(cause: Cause) -> Planner:
    return _devices(lambda device: _replace(device, cause=None) if device.cause is cause else device)


def _heal_parts(device: ListedDevice) -> ListedDevice:
    is_part = device.id.startswith("MIG-")
    return _replace(device, cause=None) if is_part and device.cause is Cause.HELD else device


def _hold_parts_back(inputs: Inputs) -> Plan:
    """A MIG device that is gone and held keeps new ones of its GPU from being offered."""
    plan = build_plan(inputs)
    here = {device.uuid for device in plan.devices}
    held = {uuid_of_id(device_id) for holdings in plan.holders.values() for device_id in holdings}
    busy = {plan.parents[uuid] for uuid in held - here if uuid in plan.parents}
    lists = {}
    for name, listed in plan.lists.items():
        devices = (
            _replace(one, cause=Cause.HELD) if plan.parents.get(one.gpu_uuid) in busy and one.healthy else one
            for one in listed.devices
        )
        lists[name] = _replace(listed, devices=tuple(devices))
    return _replace(plan, lists=lists)


def _age_refusals(given: Given) -> Given:
    refusals = {
        device_id: refusal if refusal.known_at is None else _replace(refusal, known_at=refusal.known_at - 1.2)
        for device_id, refusal in given.refusals.items()
    }
    return _replace(given, refusals=refusals)


def _forget_answers(given: Given) -> Given:
    traces = {device_id: AllocateTrace(trace.in_flight) for device_id, trace in given.allocations.items()}
    return _replace(given, allocations=traces)


def _drop_empty_lists(inputs: Inputs) -> Plan:
    plan = build_plan(inputs)
    return _replace(plan, lists={name: listed for name, listed in plan.lists.items() if listed.devices})


def _turn_lists(inputs: Inputs) -> Plan:
    """The last device comes first, in every other second."""
    plan = build_plan(inputs)
    if int(inputs.now) % 2:
        return plan
    lists = {
        name: _replace(listed, devices=(*listed.devices[-1:], *listed.devices[:-1]))
        for name, listed in plan.lists.items()
    }
    return _replace(plan, lists=lists)


def _keep_last_healthy(inputs: Inputs) -> Plan:
    """What leaves and nobody holds goes on being offered."""
    plan = build_plan(inputs)

    def heal() -> Iterator[tuple[str, Any]]:
        for name, listed in plan.lists.items():
            devices = (
                _replace(device, cause=None) if device.text == "leaving" else device for device in listed.devices
            )
            yield name, _replace(listed, devices=tuple(devices))

    return _replace(plan, lists=dict(heal()))


def _pin_anew(inputs: Inputs) -> Plan:
    """Indices and counts mean the GPUs that they would mean if the file were applied now."""
    pins = resolve_pins(inputs.config, inputs.inventory.gpus, inputs.ailments, {})
    return build_plan(_replace(inputs, pins=pins))


def _trust_the_file(inputs: Inputs) -> Plan:
    """What is listed and held under a name is taken to be in the form that the file has for it now."""
    by_mps: dict[str, list[str]] = {}
    for uuid, assignment in allot(inputs.config, inputs.inventory, inputs.pins).assignments.items():
        if assignment.form.mps:
            by_mps.setdefault(assignment.form.resource, []).append(uuid)
    return build_plan(_replace(inputs, by_mps=by_mps))


def _see(**change: Any) -> Planner:
    """What is seen of the daemons of MPS is not what it is."""

    def plan(inputs: Inputs) -> Plan:
        assert inputs.means.mps is not None
        view = _replace(inputs.means.mps, **change)
        return build_plan(_replace(inputs, granted=Granted(), means=_replace(inputs.means, mps=view)))

    return plan


def _grant(change: Callable[[Grant], Grant]) -> Planner:
    """What the daemons of MPS are told is not what it is."""

    def plan(inputs: Inputs) -> Plan:
        right = build_plan(inputs)
        told = {resource: change(grant) for resource, grant in right.grants.resources.items()}
        return _replace(right, grants=_replace(right.grants, resources=told))

    return plan


def _leave_out_mps(inputs: Inputs) -> Plan:
    return build_plan(
        _replace(inputs, config=_replace(inputs.config, sharing=_replace(inputs.config.sharing, mps=None)))
    )


DEFECTS: Final[dict[str, Planner]] = {
    # promises
    "a holder is forgotten": _held(holdings=lambda inputs: tuple(sorted(inputs.held.holdings)[:-1])),
    "an old answer counts as new": _held(requested_at=lambda inputs: inputs.now),
    "an answer counts two seconds too early": _held(requested_at=lambda inputs: inputs.held.requested_at + 2.0),
    "the new form does not wait for the old one": _heal(Cause.HELD),
    "the old form goes on being offered": _keep_last_healthy,
    "every mode change is immediate": _block("allocation", mode_change=ModeChange.IMMEDIATE),
    "no mode change is immediate": _block("allocation", mode_change=ModeChange.WHEN_FREE),
    "calls on their way do not count": _given(lambda given: _replace(given, allocations={})),
    "calls just answered do not count": _given(_forget_answers),
    "only NVIDIA's names are ours": _held(
        holdings=lambda inputs: tuple(one for one in inputs.held.holdings if one.resource.startswith("nvidia.com/"))
    ),
    # withdrawals
    "an ID leaves after four seconds": _given(_age_refusals),
    "an ID leaves at once": _devices(lambda device: None if device.text == "leaving" else device),
    "a held ID leaves": _devices(
        lambda device: None if device.cause is Cause.WITHDRAWING and device.text.startswith("held by") else device
    ),
    "an unread holder is waited for half as long": _block("devices", remove_after=build_duration(seconds=6)),
    "a resource ends before its list is empty": _drop_empty_lists,
    # what the file says
    "cordons are ignored": _heal(Cause.CORDONED),
    "exclusions are ignored": _block("devices", exclude=()),
    "what MPS has is offered whole": _leave_out_mps,
    # MPS
    "MPS is offered though no daemon answers": lambda inputs: build_plan(_replace(inputs, means=Means())),
    "what MPS had is offered otherwise at once": _see(claims={}),
    "what is taken back counts as heard": lambda inputs: build_plan(_replace(inputs, granted=Granted())),
    "by MPS or not is what the file says": _trust_the_file,
    "what was by MPS is forgotten": lambda inputs: build_plan(_replace(inputs, by_mps={})),
    "every card is free for MPS": _grant(
        lambda grant: grant if grant.wanted is None else _replace(grant, free=grant.wanted.gpus)
    ),
    "nobody holds anything through MPS": _grant(lambda grant: _replace(grant, held=())),
    "indices and counts follow the numbering": _pin_anew,
    "cards that ail are offered": lambda inputs: build_plan(_replace(inputs, ailments={})),
    "replicas with a seven are left out": _devices(lambda device: None if device.id.endswith("::7") else device),
    # coming to rest
    "an answer must be three seconds newer": _held(requested_at=lambda inputs: inputs.held.requested_at - 3.0),
    "nobody asks": lambda inputs: _replace(build_plan(inputs), ask_since=None),
    "nobody looks": lambda inputs: _replace(build_plan(inputs), check_at=None),
    "the order turns": _turn_lists,
}
DEFECTS_OF_MIG: Final[dict[str, Planner]] = {
    "MIG devices do not wait for their GPU": _devices(_heal_parts),
    "the GPU of a MIG device that is gone is forgotten": lambda inputs: build_plan(_replace(inputs, parents={})),
    "MIG devices that are gone hold new ones back": _hold_parts_back,
    "MIG devices of a GPU that ails are offered": lambda inputs: build_plan(
        _replace(inputs, ailments={uuid: one for uuid, one in inputs.ailments.items() if uuid.startswith("GPU-")})
    ),
    "a MIG device leaves at once": _devices(
        lambda device: None if device.text == "leaving" and device.id.startswith("MIG-") else device
    ),
}

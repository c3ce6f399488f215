"""The devices of the node in the words of ``model.status``: each GPU, and after it its MIG devices."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from nvdp.model.health import Ailment
from nvdp.model.inventory import Gpu, Inventory
from nvdp.model.reasons import Cause
from nvdp.model.status import CORDON_END, EXCLUDED, DeviceStatus
from nvdp.planning.ailing import drop_partial, list_parts
from nvdp.planning.assignment import Assignment, Form, order_gpus
from nvdp.planning.devices import Device
from nvdp.planning.plan import Plan

_NOTHING = Assignment(form=Form("", shared=False))
_OF_THE_DRIVER = frozenset({Cause.DRIVER_LOST, Cause.DRIVER_PAUSED})  # no fault of one device


def build_devices(
    inventory: Inventory,
    ailments: Mapping[str, Ailment],
    plan: Plan | None,
    changed_at: Mapping[str, float],
    *,
    by_mps: Mapping[str, str] | None = None,
) -> tuple[DeviceStatus, ...]:
    """One entry for each GPU with an identity, in list order, and one for each MIG device that there is a plan for.

    ``changed_at`` is wall time by UUID. A device whose new form waits for pods that hold an old one is withheld as
    ``Held``, and so is one that takes no new pods for its index: its health is another matter. ``by_mps`` is by UUID
    one word for why a device is withheld for a daemon of MPS.
    """
    parts: dict[str, list[Device]] = {}
    for device in plan.devices if plan is not None else ():
        if device.instance is not None:
            parts.setdefault(device.gpu.uuid, []).append(device)
    known = drop_partial(ailments, list_parts(one for members in parts.values() for one in members))
    waiting = {*(change.gpu_uuid for change in plan.changes), *plan.renumbered} if plan is not None else set()
    reasons = {**(by_mps or {}), **dict.fromkeys(waiting, Cause.HELD.value)}
    telling = _Telling(known, plan, changed_at, reasons)
    found = []
    for gpu in order_gpus(inventory.gpus):
        members = parts.get(gpu.uuid, [])
        found.append(telling.tell_cut(gpu, members) if members else telling.tell(Device(gpu=gpu)))
        found += [telling.tell(device) for device in sorted(members, key=_index_of)]
    return tuple(found)


class _Telling(msgspec.Struct, frozen=True):
    """What one picture is made of."""

    ailments: Mapping[str, Ailment]
    plan: Plan | None
    changed_at: Mapping[str, float]
    reasons: Mapping[str, str]

    def tell(self, device: Device) -> DeviceStatus:
        """A device that is, or might be, on offer."""
        plan, uuid = self.plan, device.uuid
        withheld = plan.withheld.get(uuid) if plan is not None else None
        ailment = self.ailments.get(uuid)
        reason = self.reasons.get(uuid, "")
        if withheld is not None:
            reason = withheld.reason
        elif plan is not None and uuid in plan.cordoned:
            return self._tell_cordoned(device, plan.assignments.get(uuid, _NOTHING), ailment, path=plan.cordoned[uuid])
        offered = plan.assignments.get(uuid, _NOTHING) if plan is not None else _NOTHING
        return self._build(device, offered, ailment, withheld=reason)

    def _tell_cordoned(
        self, device: Device, offered: Assignment, ailment: Ailment | None, *, path: str
    ) -> DeviceStatus:
        """The cordon counts; a fault, which somebody may be mending meanwhile, is told with it."""
        told = Ailment(cause=Cause.CORDONED, text=path, since=0.0)
        fault = ailment if ailment is not None and ailment.cause not in _OF_THE_DRIVER else None
        if fault is not None:
            text = f"{path}{CORDON_END}{fault.text}"
            told = msgspec.structs.replace(fault, cause=Cause.CORDONED, text=text)
        status = self._build(device, offered, told, withheld=Cause.CORDONED.value)
        return msgspec.structs.replace(status, fault=fault.cause if fault is not None else None)

    def tell_cut(self, gpu: Gpu, parts: list[Device]) -> DeviceStatus:
        """A GPU that is offered in MIG devices: it is excluded if all of them are."""
        assert self.plan is not None
        reasons = {held.reason if (held := self.plan.withheld.get(one.uuid)) is not None else "" for one in parts}
        reason = EXCLUDED if reasons == {EXCLUDED} else ""
        return self._build(Device(gpu=gpu), _NOTHING, self.ailments.get(gpu.uuid), withheld=reason)

    def _build(self, device: Device, offered: Assignment, ailment: Ailment | None, *, withheld: str) -> DeviceStatus:
        gpu, instance = device.gpu, device.instance
        return DeviceStatus(
            uuid=device.uuid,
            index=gpu.index,
            pci=gpu.pci or "",
            product=gpu.product or "",
            mig=gpu.mig.value if gpu.mig is not None else "",
            memory_bytes=device.memory_bytes,
            healthy=ailment is None,
            cause=ailment.cause if ailment is not None else None,
            text=ailment.text if ailment is not None else "",
            xid=ailment.xid if ailment is not None else None,
            action=ailment.action if ailment is not None else "",
            changed_at=self.changed_at.get(device.uuid, 0.0),
            withheld=withheld,
            resource=offered.form.resource,
            replicas=offered.replicas,
            strategy=offered.strategy,
            mig_pending=gpu.mig_pending.value if gpu.mig_pending is not None and instance is None else "",
            nameless=_describe_nameless(gpu) if instance is None else (),
            parent_uuid=device.parent_uuid,
            instance=instance.index if instance is not None else None,
            profile=(instance.profile or "") if instance is not None else "",
        )


def _index_of(device: Device) -> int:
    """Of a MIG device, within its GPU: people count by it."""
    return device.instance.index if device.instance is not None else 0


def _describe_nameless(gpu: Gpu) -> tuple[str, ...]:
    return tuple(
        f"MIG device {gpu.index}:{one.index} has no UUID: {one.fault.text}" for one in gpu.unreadable_instances
    )

"""What stays listed though nothing calls for it any more: IDs that were given out or are held, until they may go."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from nvdp.model.held import Holding
from nvdp.model.listing import ListedDevice
from nvdp.model.reasons import Cause
from nvdp.planning.agenda import Agenda
from nvdp.planning.assignment import Assignment
from nvdp.planning.ledger import ByMps, Given, form_of_id, order_of_id, uuid_of_id
from nvdp.planning.locality import Locality
from nvdp.planning.rivals import Rivals
from nvdp.planning.withdrawal import Verdict, Waiting, may_leave

Lists = dict[str, dict[str, ListedDevice]]
"""The lists of a plan in the making, by resource and ID."""

_EMPTY_TAKEN_S = 1.0  # how often to look whether an empty list was taken, should no report say so


class Leaving(msgspec.Struct, frozen=True, kw_only=True):
    """The circumstances, as in ``plan.Inputs``. ``assignments`` are those of the plan, ``by_mps`` of the one before."""

    given: Mapping[str, Given]
    holders: Mapping[str, Mapping[str, Holding]]
    names: Collection[str]
    assignments: Mapping[str, Assignment]
    by_mps: ByMps
    rivals: Rivals
    locality: Locality
    waiting: Waiting
    agenda: Agenda

    def keep(self, lists: Lists) -> None:
        """Add to ``lists``, Unhealthy, every ID that was given out or is held and is not in them, until it may go."""
        for resource, given in self.given.items():
            wanted = lists.setdefault(resource, {})
            for device in given.listed.devices:
                if device.id in wanted:
                    continue
                verdict = may_leave(given, device.id, self.waiting, proof=self._is_last_trace(resource, device))
                if not verdict.allowed:
                    self.agenda.note(verdict)
                    wanted[device.id] = self._withdraw(resource, device, verdict.holder)
        for resource, holdings in self.holders.items():
            if resource not in lists and resource not in self.names:
                continue  # another plugin's: its GPUs count as held, but listing them would take it over
            self._keep_held(resource, holdings, lists.setdefault(resource, {}))
        for resource in [name for name, listed in lists.items() if not listed]:
            last = self.given.get(resource)
            if last is None or (not last.listed.devices and last.taken_version >= last.version):
                del lists[resource]
            else:  # withdrawn once the kubelet has taken the empty list
                self.agenda.note(Verdict(allowed=False, at=self.waiting.now + _EMPTY_TAKEN_S))

    def _keep_held(self, resource: str, holdings: Mapping[str, Holding], wanted: dict[str, ListedDevice]) -> None:
        for device_id in sorted(holdings.keys() - wanted.keys(), key=order_of_id):
            holding = holdings[device_id]
            device = ListedDevice(id=device_id, gpu_uuid=uuid_of_id(device_id), numa_node=holding.numa_node)
            wanted[device_id] = self._withdraw(resource, device, holding.holder)
            self.agenda.waiting = True

    def _is_last_trace(self, resource: str, device: ListedDevice) -> bool:
        """Whether the ID reminds us of a form in which its GPU may be held, and it may be offered in another one."""
        if not self.rivals.are_on_node(device.gpu_uuid):
            return False
        assignment = self.assignments.get(device.gpu_uuid)
        return assignment is None or assignment.form != form_of_id(resource, device.id, self.by_mps)

    def _withdraw(self, resource: str, device: ListedDevice, holder: str) -> ListedDevice:
        return msgspec.structs.replace(
            device,
            numa_node=self.locality.find_last_node(resource, device),
            cause=Cause.WITHDRAWING,
            text=f"held by {holder}" if holder else "leaving",
        )

"""What of one plan is MPS's: which devices its daemons serve, which GPUs they may take, what is remembered. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from nvdp.config.schema import Config, ModeChange
from nvdp.model.held import Holding
from nvdp.model.listing import MpsFacts
from nvdp.model.mps import MpsGrants, MpsView
from nvdp.model.reasons import Cause
from nvdp.planning.agenda import Agenda
from nvdp.planning.allotment import Allotment
from nvdp.planning.assignment import Form
from nvdp.planning.by_mps import follow_by_mps
from nvdp.planning.daemons import Daemons
from nvdp.planning.devices import Device
from nvdp.planning.facts import build_mps_facts
from nvdp.planning.granted import Granted
from nvdp.planning.grants import Granting
from nvdp.planning.ledger import ByMps, Given
from nvdp.planning.mps_specs import build_specs
from nvdp.planning.rivals import Known
from nvdp.planning.withdrawal import Waiting


class Clients:
    """Lives for one plan. ``known`` are all IDs that the kubelet may know; the rest is as in ``plan.Inputs``.

    ``missing`` are the resources that are not given out yet, as nobody knows of them and their daemon has not answered
    once, each with a sentence that says why. ``kept`` are the devices that are free for another form than MPS, and kept
    from it for what ``nvdp mps`` has or may take.
    """

    def __init__(
        self,
        *,
        config: Config,
        allotment: Allotment,
        view: MpsView | None,
        given: Mapping[str, Given],
        holders: Mapping[str, Mapping[str, Holding]],
        known: Known,
        by_mps: ByMps,
        granted: Granted,
        waiting: Waiting,
        agenda: Agenda,
    ) -> None:
        self._config = config
        self._allotment = allotment
        self._view = view
        self._granted = granted
        self._holders = holders
        self._known = known
        self._before = by_mps
        self._waiting = waiting
        self._daemons = Daemons(view)
        self._specs = build_specs(config, allotment)
        self._granting = Granting(
            assignments=allotment.assignments,
            given=given,
            daemons=self._daemons,
            waiting=waiting,
            agenda=agenda,
        )
        self._listed: dict[tuple[str, str], bool] = {}
        self.kept: dict[str, str] = {}
        self.missing = {
            resource: self._daemons.describe(resource)
            for resource in self._specs
            if resource not in given and resource not in holders and not self._daemons.is_ready(resource)
        }

    def judge(self, device: Device, form: Form, *, is_gone: bool) -> tuple[Cause | None, str]:
        """Of a device that is free of every other form, what of MPS is in the way: the cause, and a sentence.

        Its own daemon, if it does not answer; for another form, one that has its GPU still, or may take it.
        """
        if form.mps:
            if not is_gone:
                self._granting.allow(form.resource, device.uuid)
            is_at_once = self._config.allocation.mode_change is ModeChange.IMMEDIATE
            holdings = {} if is_at_once else self._holders.get(form.resource, {})
            return self._daemons.find_fault(form.resource, device.uuid, holdings) or (None, "")
        if self._view is None:
            return None, ""
        claim = self._daemons.find_claim(device.gpu) or self._granted.find_wait(device.gpu.uuid)
        if not claim:
            return None, ""
        self.kept[device.uuid] = claim
        return Cause.HELD, claim

    def note(self, device: Device, form: Form, *, is_healthy: bool) -> None:
        """The device is listed in this form. Its IDs are of it from the first that is Healthy, or from the first."""
        if is_healthy or all(old.resource != form.resource for old in self._known.get(device.uuid, ())):
            self._listed[form.resource, device.uuid] = form.mps

    def build_facts(self, resource: str) -> MpsFacts | None:
        """How containers of the resource reach its daemon; None without one."""
        return build_mps_facts(self._config, self._allotment, self._specs.get(resource), self._view)

    def follow(self) -> dict[str, tuple[str, ...]]:
        """``Plan.by_mps``."""
        return follow_by_mps(self._before, offered=self._listed, known=self._known, held=self._waiting.held)

    def grant(self) -> MpsGrants:
        """``Plan.grants``. To be called before the agenda is read."""
        return self._granting.finish(self._config, self._specs, self._known)

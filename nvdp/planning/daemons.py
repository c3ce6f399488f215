"""What the MPS control daemons of the node mean for what is on offer: pure rules on the last report of ``nvdp mps``.

What MPS shares is Healthy only while its daemon answers; and what is to be offered otherwise, only once ``nvdp mps``
has put its compute mode back, as no container could work on it before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from nvdp.model.held import Holding
from nvdp.model.inventory import ComputeMode, Gpu
from nvdp.model.mps import CLIENT_DIR, DaemonReport, MpsView, Phase
from nvdp.model.reasons import Cause
from nvdp.planning.ledger import uuid_of_id
from nvdp.planning.wording import join_some

_NOBODY = "nobody looked for it"


class Daemons(msgspec.Struct, frozen=True):
    """The daemons as they are seen. ``view`` is None where nobody can tell: then nothing is in the way of anything."""

    view: MpsView | None

    def is_ready(self, resource: str) -> bool:
        """Whether the daemon of the resource answers."""
        return self.view is None or self._find_ready(resource) is not None

    def find_fault(self, resource: str, uuid: str, holdings: Mapping[str, Holding]) -> tuple[Cause, str] | None:
        """Why no container could work on this GPU through the daemon of the resource; None if it could.

        ``holdings`` are those for which the daemon is not started anew, by device ID of the resource.
        """
        if self.view is None:
            return None
        daemon = self._find_ready(resource)
        if daemon is None:
            return Cause.MPS_DAEMON_FAILED, self.describe(resource)
        if daemon.running is None or uuid not in daemon.running.gpus:
            gpus = daemon.running.gpus if daemon.running is not None else ()
            if pods := name_holders(holdings, gpus):
                text = f"joins the MPS control daemon on {build_pipe(resource)} once nothing of it is held"
                return Cause.HELD, f"{text}: {join_some(pods)}"
            why = f": {daemon.text}" if daemon.text else ""
            return Cause.MPS_DAEMON_FAILED, f"MPS control daemon on {build_pipe(resource)} runs without this GPU{why}"
        return None

    def has(self, resource: str, uuid: str) -> bool:
        """Whether the daemon of the resource, answering or not, runs with this GPU."""
        daemon = self.view.daemons.get(resource) if self.view is not None else None
        return daemon is not None and daemon.running is not None and uuid in daemon.running.gpus

    def describe(self, resource: str) -> str:
        """The sentence about a daemon that does not answer, and why."""
        return f"MPS control daemon does not answer on {build_pipe(resource)}: {self._explain(resource)}"

    def find_claim(self, gpu: Gpu) -> str:
        """Who has the GPU for MPS still, as a sentence; empty if nobody.

        Where no ``nvdp mps`` answers, a compute mode that is known to be another one was put back by somebody else: by
        hand, or by a reset or an upgrade of the driver.
        """
        if self.view is None or gpu.uuid not in self.view.claims:
            return ""
        if self.view.problem and gpu.compute_mode not in {None, ComputeMode.EXCLUSIVE_PROCESS}:
            return ""
        owners = [name for name, one in self.view.daemons.items() if one.running and gpu.uuid in one.running.gpus]
        if self.view.problem:
            who = f"still with the MPS control daemon of {owners[0]}" if owners else "kept for MPS"
            by_hand = f"if it never will: nvidia-smi -i {gpu.uuid} -c DEFAULT"
            return f"{who} until nvdp mps has put its compute mode back ({self.view.problem}); {by_hand}"
        if not owners:
            return "kept for MPS until nvdp mps has put its compute mode back"
        why = self.view.daemons[owners[0]].text
        return f"still with the MPS control daemon of {owners[0]}" + (f": {why}" if why else "")

    def _find_ready(self, resource: str) -> DaemonReport | None:
        if self.view is None or self.view.problem:
            return None
        daemon = self.view.daemons.get(resource)
        return daemon if daemon is not None and daemon.phase is Phase.READY else None

    def _explain(self, resource: str) -> str:
        if self.view is None:
            return _NOBODY
        if self.view.problem:
            return self.view.problem
        daemon = self.view.daemons.get(resource)
        if daemon is None:
            return "nvdp mps has not started it yet"
        return daemon.text or f"it is {daemon.phase.value}"


def name_holders(holdings: Mapping[str, Holding], gpus: Collection[str]) -> tuple[str, ...]:
    """The pods that hold any of these GPUs, of the IDs of one resource."""
    names = {holding.holder for device_id, holding in holdings.items() if uuid_of_id(device_id) in gpus}
    return tuple(sorted(names))


def build_pipe(resource: str) -> str:
    """The pipe directory of the daemon of a resource, as containers of pods see it."""
    return f"{CLIENT_DIR}/{resource}/pipe"

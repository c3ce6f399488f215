"""Short ways to write what planning sees of MPS: files that share by it, cards that can, and daemons that answer."""

from __future__ import annotations

import msgspec

from nvdp.model.inventory import Gpu, MigMode
from nvdp.model.mps import DaemonReport, DaemonSpec, MpsView, Phase
from nvdp.planning.allotment import resolve_pins
from nvdp.planning.means import Means
from nvdp.planning.plan import Plan, build_plan
from tests.planning.values import gpu, inputs, parse

MIB = 2**20
GIB = 2**30
SILENT = MpsView(problem="nvdp mps does not answer")
NONE = MpsView()


def mps_file(*entries: str, more: str = "") -> str:
    """A file whose only block of sharing is MPS."""
    return f"sharing: {{mps: {{{more} resources: [{', '.join(f'{{{entry}}}' for entry in entries)}]}}}}\n"


def plan_of(text: str, *gpus: Gpu, **others) -> Plan:
    """The plan of a file that comes into force, or as ``others`` have it (``values.inputs``)."""
    config = parse(text)
    return build_plan(inputs(config, *gpus, **({"pins": resolve_pins(config, gpus, {}, {})} | others)))


def card(number, **facts):
    """A card that can do MPS."""
    known = {"memory_bytes": 80 * GIB, "compute_capability": "8.0", "mig": MigMode.DISABLED}
    return gpu(number, **(known | facts))


def ready(*specs: DaemonSpec, claims=None, **others: DaemonReport) -> MpsView:
    """Each daemon answers, and has its cards."""
    daemons = {spec.resource: DaemonReport(phase=Phase.READY, running=spec) for spec in specs}
    had = {uuid: "Default" for spec in specs for uuid in spec.gpus}
    return MpsView(daemons=daemons | others, claims=had if claims is None else claims)


def ready_for(plan) -> MpsView:
    """Every daemon that the plan wants answers."""
    return ready(*(grant.wanted for grant in plan.grants.resources.values() if grant.wanted is not None))


def seen(view: MpsView | None) -> Means:
    return msgspec.structs.replace(Means(), mps=view)

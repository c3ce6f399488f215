"""The control daemons of MPS in the words of ``model.status``, and which devices are not on offer for them."""

from __future__ import annotations

from nvdp.model.listing import Strategy
from nvdp.model.mps import DaemonReport, DaemonSpec, MpsView, Phase
from nvdp.model.reasons import Cause
from nvdp.model.status import MpsDaemonStatus, MpsMemoryStatus, MpsServerStatus, MpsStatus
from nvdp.planning.daemons import Daemons
from nvdp.planning.mps_pending import Pending, find_pending
from nvdp.planning.mps_verdicts import is_orderly
from nvdp.planning.plan import Plan


def build_mps(view: MpsView | None, plan: Plan | None) -> MpsStatus:
    """The daemons that the plan needs, known or not, and others that answer: pods may still use them; what is kept."""
    if view is None:
        return MpsStatus()
    needed = list_needed(plan)
    kept = plan.kept if plan is not None else {}
    if view.problem and not needed:
        return MpsStatus(kept=kept)
    others = {} if view.problem else view.daemons
    names = {*needed, *(resource for resource, report in others.items() if report.phase is Phase.READY)}
    pending = find_pending(plan, view) if plan is not None else {}
    daemons = tuple(
        _build_daemon(resource, view.daemons.get(resource), view, pending.get(resource)) for resource in sorted(names)
    )
    return MpsStatus(problem=view.problem, daemons=daemons, kept=kept)


def list_needed(plan: Plan | None) -> frozenset[str]:
    """The resources of the plan that need a daemon."""
    if plan is None:
        return frozenset()
    return frozenset(one.form.resource for one in plan.assignments.values() if one.strategy is Strategy.MPS)


def find_withheld(view: MpsView | None, plan: Plan | None) -> dict[str, str]:
    """Why devices are not on offer though nothing ails them, by UUID, in one word: their daemon does not answer for
    them, or pods keep them from it; or one has them while they are to be something else.
    """
    if plan is None:
        return {}
    daemons, found = Daemons(view), dict.fromkeys(plan.kept, Cause.HELD.value)
    for uuid, assignment in plan.assignments.items():
        resource = assignment.form.resource
        if assignment.strategy is not Strategy.MPS:
            continue
        grant = plan.grants.resources.get(resource)
        is_at_once = grant is not None and grant.at_once
        fault = daemons.find_fault(resource, uuid, {} if is_at_once else plan.holders.get(resource, {}))
        if fault is not None:
            found[uuid] = fault[0].value
    return found


def _build_daemon(
    resource: str, report: DaemonReport | None, view: MpsView, pending: Pending | None
) -> MpsDaemonStatus:
    if report is None or view.problem:
        return MpsDaemonStatus(resource=resource)
    running = report.running or DaemonSpec(resource=resource, gpus=())
    return MpsDaemonStatus(
        resource=resource,
        phase=report.phase,
        text=report.text,
        waits=is_orderly(report.phase, report.text),
        gpus=running.gpus,
        thread_percent=running.thread_percent,
        memory=tuple(MpsMemoryStatus(gpu_uuid=uuid, mib=mib) for uuid, mib in running.memory_mib.items()),
        multi_user=running.multi_user,
        pending=pending.text if pending is not None else "",
        holders=pending.holders if pending is not None else (),
        pid=report.pid,
        restarts=report.restarts,
        clients=report.clients,
        servers=tuple(MpsServerStatus(pid=int(pid), state=state) for pid, state in report.servers.items()),
        exit_code=report.exit_code,
        last_lines=report.last_lines,
        waiting_users=report.waiting_users,
    )

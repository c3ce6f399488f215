"""The daemon's state in the words of ``model.status``: built from what is in force, never asked back."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from nvdp.model.health import Ailment
from nvdp.model.held import Holding
from nvdp.model.inventory import Inventory
from nvdp.model.listing import Strategy
from nvdp.model.mps import MpsView
from nvdp.model.pause import Pause
from nvdp.model.reasons import Reason
from nvdp.model.status import (
    ConfigStatus,
    DriverState,
    DriverStatus,
    ResourceStatus,
    Status,
    Trouble,
    Wait,
    Withheld,
)
from nvdp.planning.plan import Plan
from nvdp.planning.reporting_devices import build_devices
from nvdp.planning.reporting_mps import build_mps, find_withheld


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """What the actor of one resource reported last."""

    registered: bool = False
    streams: int = 0
    taken_version: int = 0
    missing: str | None = None


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the supervisor knows and others may see. Times are wall-clock seconds.

    ``planning_error`` says why the newest plan could not be made; then ``plan`` is the one before. ``mps`` is None
    until ``nvdp mps`` was looked for.
    """

    config: ConfigStatus
    fail_on_init_error: bool
    pause: Pause | None
    driver: DriverStatus
    inventory: Inventory | None
    ailments: Mapping[str, Ailment]
    changed_at: Mapping[str, float]
    plan: Plan | None
    planning_error: str
    serving: Mapping[str, Serving]
    holders: tuple[Holding, ...]
    waits: tuple[Wait, ...]
    unmatched: tuple[str, ...]
    troubles: tuple[Trouble, ...]
    mps: MpsView | None
    podresources_up: bool
    scanned_at: float | None
    nvml_children_abandoned: int


def build_status(now: Situation) -> Status:
    """The state in the words of ``model.status``. Made after every turn: it looks at GPUs, not at replicas and pods."""
    plan, inventory = now.plan, now.inventory
    resources = build_resources(plan, now.serving, now.mps) if plan is not None else ()
    ready, reason = judge_ready(
        config=now.config,
        driver=now.driver,
        resources=resources,
        planned=plan is not None,
        fail_on_init_error=now.fail_on_init_error,
    )
    troubles = now.troubles
    if now.planning_error:
        ready, reason = False, Reason.SERVICE_RESTARTED.word
        text = f"planning failed, what was offered before stays: {now.planning_error}"
        troubles = (Trouble(reason=reason, text=text), *troubles)
    return Status(
        ready=ready,
        reason=reason,
        config=now.config,
        pause=now.pause,
        driver=now.driver,
        resources=resources,
        devices=(
            build_devices(inventory, now.ailments, plan, now.changed_at, by_mps=find_withheld(now.mps, plan))
            if inventory is not None
            else ()
        ),
        unreadable=inventory.unreadable if inventory is not None else (),
        holders=now.holders,
        waits=now.waits,
        withheld=tuple(
            Withheld(gpu_uuid=uuid, reason=withheld.reason, path=withheld.path, text=withheld.text)
            for uuid, withheld in (plan.withheld.items() if plan is not None else ())
        ),
        unmatched=now.unmatched,
        troubles=troubles,
        mps=build_mps(now.mps, plan),
        podresources_up=now.podresources_up,
        scanned_at=now.scanned_at,
        nvml_children_abandoned=now.nvml_children_abandoned,
    )


def build_resources(
    plan: Plan, serving: Mapping[str, Serving], mps: MpsView | None = None
) -> tuple[ResourceStatus, ...]:
    """One entry for each resource that is given out, or is planned and cannot be yet, in order of name."""
    found = [_build_missing(resource, why, plan, mps) for resource, why in plan.missing.items()]
    for resource, listed in plan.lists.items():
        report = serving.get(resource, Serving())
        missing = None if report.registered else report.missing or "not registered yet"
        found.append(
            ResourceStatus(
                name=resource,
                planned=plan.planned.get(resource, 0),
                healthy=listed.healthy_count,
                unhealthy=len(listed.devices) - listed.healthy_count,
                registered=report.registered,
                streams=report.streams,
                strategy=listed.facts.strategy,
                replicas=listed.facts.replicas,
                missing=missing,
            )
        )
    return tuple(sorted(found, key=lambda resource: resource.name))


def _build_missing(resource: str, why: str, plan: Plan, mps: MpsView | None) -> ResourceStatus:
    """One whose daemon did not answer yet: as long as that waits for pods to end, it is as the file wants it."""
    planned = [one for one in plan.assignments.values() if one.form.resource == resource]
    is_answered = mps is not None and not mps.problem
    return ResourceStatus(
        name=resource,
        planned=plan.planned.get(resource, 0),
        healthy=0,
        unhealthy=0,
        registered=False,
        streams=0,
        strategy=planned[0].strategy if planned else Strategy.NONE,
        replicas=tuple(sorted({one.replicas for one in planned})),
        missing=why,
        waits=is_answered and any(change.after.resource == resource for change in plan.changes),
    )


def judge_ready(
    *,
    config: ConfigStatus,
    driver: DriverStatus,
    resources: tuple[ResourceStatus, ...],
    planned: bool,
    fail_on_init_error: bool,
) -> tuple[bool, str]:
    """Whether the node is as its configuration says, and if not, one word for why.

    Ready means: a valid configuration is in force, the driver is usable (or the file does not ask for it), and every
    resource of the plan is registered with its list taken by the kubelet, but for one that waits for pods to end
    (observability contract, section 5).
    """
    if not config.hash:
        return False, _explain_config(config).word
    if driver.state is not DriverState.READY:
        words = {
            DriverState.STARTING: Reason.STARTING.word,
            DriverState.MISSING: Reason.DRIVER_MISSING.word,
            DriverState.MISMATCH: Reason.DRIVER_MISMATCH.word,
            DriverState.LOST: Reason.DRIVER_LOST.word,
            DriverState.PAUSED: Reason.DRIVER_PAUSED.word,
        }
        if fail_on_init_error or driver.state in {DriverState.STARTING, DriverState.PAUSED}:
            return False, words[driver.state]
    elif not planned:
        return False, Reason.STARTING.word
    if any(not resource.registered and resource.planned and not resource.waits for resource in resources):
        return False, "NotRegistered"
    return True, ""


def _explain_config(config: ConfigStatus) -> Reason:
    """Why none is in force."""
    if config.missing or config.waiting:
        return Reason.CONFIG_MISSING
    if config.unknown:
        return Reason.CONFIG_UNKNOWN
    return Reason.STARTING if config.refused is None else Reason.CONFIG_REFUSED

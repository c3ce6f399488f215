"""The daemon's state in the words of ``model.status``: built from what is in force, never asked back."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from nvdp.model.health import Ailment
from nvdp.model.held import Holding
from nvdp.model.inventory import Inventory
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


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """What the actor of one resource reported last."""

    registered: bool = False
    streams: int = 0
    taken_version: int = 0
    missing: str | None = None


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the supervisor knows and others may see. Times are wall-clock seconds.

    ``planning_error`` says why the newest plan could not be made; then ``plan`` is the one before.
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
    podresources_up: bool
    scanned_at: float | None
    nvml_children_abandoned: int


def build_status(now: Situation) -> Status:
    """The state in the words of ``model.status``. Made after every turn: it looks at GPUs, not at replicas and pods."""
    plan, inventory = now.plan, now.inventory
    resources = build_resources(plan, now.serving) if plan is not None else ()
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
        devices=build_devices(inventory, now.ailments, plan, now.changed_at) if inventory is not None else (),
        unreadable=inventory.unreadable if inventory is not None else (),
        holders=now.holders,
        waits=now.waits,
        withheld=tuple(
            Withheld(gpu_uuid=uuid, reason=withheld.reason, path=withheld.path, text=withheld.text)
            for uuid, withheld in (plan.withheld.items() if plan is not None else ())
        ),
        unmatched=now.unmatched,
        troubles=troubles,
        podresources_up=now.podresources_up,
        scanned_at=now.scanned_at,
        nvml_children_abandoned=now.nvml_children_abandoned,
    )


def build_resources(plan: Plan, serving: Mapping[str, Serving]) -> tuple[ResourceStatus, ...]:
    """One entry for each resource that is given out, in order of name."""
    found = []
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
    return tuple(found)


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
    resource of the plan is registered with its list taken by the kubelet (observability contract, section 5).
    """
    if not config.hash:
        if config.missing:
            return False, Reason.CONFIG_MISSING.word
        return False, (Reason.STARTING if config.refused is None else Reason.CONFIG_REFUSED).word
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
    if any(not resource.registered and resource.planned for resource in resources):
        return False, "NotRegistered"
    return True, ""

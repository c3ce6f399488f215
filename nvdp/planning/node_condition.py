"""The condition of the Node that tells others whether the plan is advertised (observability contract, section 4).

Pure. Node readiness rules take pods away from a node whose condition is False: so it is False only while GPUs are truly
not on offer, and an edit with a mistake, which leaves the configuration before in force, does not count.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from nvdp.model.status import DriverState, Status
from nvdp.planning.event_rate import cut_note

SETTLE_S: Final = 1.0
START_SETTLE_S: Final = 30.0
"""A plugin that starts has so long before what the one before it wrote is taken back."""
MESSAGE_SETTLE_S: Final = 30.0
"""A message that says something else of the same state is worth a write once it stays."""

_NO_DRIVER: Final = frozenset({DriverState.MISSING, DriverState.MISMATCH, DriverState.LOST})
_SHOWN: Final = 5  # resources that a message names


class ConditionReason(enum.Enum):
    """Why the condition is as it is; the value is the word in the Node."""

    PLAN_ADVERTISED = "PlanAdvertised"
    DRIVER_MISSING = "DriverMissing"
    NOT_REGISTERED = "NotRegistered"
    ALL_UNHEALTHY = "AllUnhealthy"
    CONFIG_INVALID = "ConfigInvalid"


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """What the condition is to say. ``settle_s``: it is worth telling once it has been so for as long."""

    reason: ConditionReason
    message: str
    settle_s: float = SETTLE_S

    @property
    def status(self) -> str:
        """``True`` or ``False``; ``Unknown`` is never written."""
        return "True" if self.reason is ConditionReason.PLAN_ADVERTISED else "False"


class ConditionThere(msgspec.Struct, frozen=True, kw_only=True):
    """The condition as it is in the Node; texts are empty where there is none."""

    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition: str = ""

    def says(self, condition: Condition) -> bool:
        """Whether it is there already as it should be."""
        return (self.status, self.reason, self.message) == (
            condition.status,
            condition.reason.value,
            condition.message,
        )


def build_condition(status: Status) -> Condition:
    """True if everything that the plan holds is registered and at least one device is healthy."""
    return _judge_basis(status) or _judge_resources(status)


def find_condition(node: Mapping[str, Any], condition_type: str) -> ConditionThere:
    """The condition of that type in a Node as the API has it; whatever has not the form that it should is not there."""
    status = node.get("status")
    conditions = status.get("conditions") if isinstance(status, dict) else None
    for one in conditions if isinstance(conditions, list) else []:
        if isinstance(one, dict) and one.get("type") == condition_type:
            texts = (one.get(name) for name in ("status", "reason", "message", "lastTransitionTime"))
            known, reason, message, since = (text if isinstance(text, str) else "" for text in texts)
            return ConditionThere(status=known, reason=reason, message=message, last_transition=since)
    return ConditionThere()


def _judge_basis(status: Status) -> Condition | None:
    """What there must be before there is anything to register: a configuration and a driver."""
    config, driver = status.config, status.driver
    if not config.hash and not config.waiting and (config.refused is not None or config.missing or config.unknown):
        return _build(ConditionReason.CONFIG_INVALID, config.refused or "there is no configuration")
    if driver.state in _NO_DRIVER:
        return _build(ConditionReason.DRIVER_MISSING, driver.text or f"the driver is {driver.state.value}")
    if not config.hash or driver.state is DriverState.STARTING:
        text = config.waiting or "nvdp is starting"
        return _build(ConditionReason.NOT_REGISTERED, text, settle_s=START_SETTLE_S)
    if driver.state is DriverState.PAUSED:
        return _build(ConditionReason.ALL_UNHEALTHY, driver.text or "the driver is let go of by order")
    return None


def _judge_resources(status: Status) -> Condition:
    resources = status.resources
    missing = [one for one in resources if not one.registered and one.planned and not one.waits]
    if missing:
        told = [f"{one.name}: {one.missing or 'not registered yet'}" for one in missing[:_SHOWN]]
        return _build(ConditionReason.NOT_REGISTERED, _join(told, len(missing)))
    if not status.ready:
        text = status.troubles[0].text if status.troubles else status.reason
        return _build(ConditionReason.NOT_REGISTERED, text)
    told = [f"{one.name}: {one.healthy} of {one.healthy + one.unhealthy} healthy" for one in resources[:_SHOWN]]
    text = _join(told, len(resources)) or "there is nothing to offer"
    is_offered = any(one.healthy for one in resources)
    return _build(ConditionReason.PLAN_ADVERTISED if is_offered else ConditionReason.ALL_UNHEALTHY, text)


def build_there(condition: Condition, last_transition: str) -> ConditionThere:
    """The condition as it is in the Node once it is written."""
    return ConditionThere(
        status=condition.status,
        reason=condition.reason.value,
        message=condition.message,
        last_transition=last_transition,
    )


def find_version(found: Mapping[str, Any]) -> str:
    """The version of an object as the API has it; empty where it has none."""
    metadata = found.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    return version if isinstance(version, str) else ""


def _build(reason: ConditionReason, text: str, *, settle_s: float = SETTLE_S) -> Condition:
    return Condition(reason=reason, message=cut_note(text), settle_s=settle_s)


def _join(told: list[str], number: int) -> str:
    rest = number - len(told)
    return "; ".join(told) + (f"; and {rest} more" if rest > 0 else "")

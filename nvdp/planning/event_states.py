"""Which states last of those that become an event only if they do (``EventKind.LASTING``), seen from the status."""

from __future__ import annotations

from nvdp.model.reasons import Reason
from nvdp.model.status import Status

State = tuple[Reason, str]
"""A reason, and the resource concerned; empty where it is the node."""


def list_lasting(status: Status) -> frozenset[State]:
    """The states of now. Called after every turn of the main thread: it looks at resources and troubles only."""
    found: set[State] = {
        (Reason.REGISTRATION_FAILED, resource.name)
        for resource in status.resources
        if not resource.registered and resource.planned
    }
    if status.config.missing or status.config.waiting:
        found.add((Reason.CONFIG_MISSING, ""))
    if any(trouble.reason == Reason.HOLDERS_UNKNOWN.word for trouble in status.troubles):
        found.add((Reason.HOLDERS_UNKNOWN, ""))
    return frozenset(found)

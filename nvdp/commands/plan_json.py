"""The JSON of ``nvdp plan``, for programs: all that the text has, and more. Names are stable; see docs/plan.md."""

from __future__ import annotations

from typing import Any

from nvdp.app.preview import Outlook
from nvdp.planning.assignment import Form
from nvdp.planning.changes import Changes
from nvdp.planning.comparison import Comparison
from nvdp.planning.left_out import LeftOut
from nvdp.planning.preview import Row


def build_json(outlook: Outlook) -> dict[str, Any]:
    """One object. What does not apply is null: ``changes`` and ``comparison`` of a node file, say."""
    preview = outlook.preview
    return {
        "node": {
            "name": outlook.node_name,
            "platform": preview.node.inventory.platform.value,
            "gpusFound": preview.found,
            "gpusOurs": preview.ours,
        },
        "configuration": {"source": preview.config.name, "hash": preview.config.hash},
        "resources": [_build_row(row) for row in preview.rows],
        "leftOut": [_build_left_out(one) for one in preview.left_out],
        "toldBy": outlook.told_by.value if outlook.told_by is not None else None,
        "changes": _build_changes(outlook.changes) if outlook.changes is not None else None,
        "comparison": _build_comparison(outlook.comparison) if outlook.comparison is not None else None,
        "warnings": [*preview.warnings, *preview.cautions],
        "notes": [*preview.notes, *outlook.notes],
    }


def _build_row(row: Row) -> dict[str, Any]:
    withheld = row.withheld
    return {
        "resource": row.resource,
        "strategy": row.assignment.strategy.value,
        "replicas": row.assignment.replicas,
        "advertised": row.advertised,
        "healthy": row.healthy_count,
        "rule": row.assignment.rule or None,
        "pattern": row.pattern or None,
        "withheld": {"reason": withheld.reason, "path": withheld.path, "text": withheld.text} if withheld else None,
        "devices": [
            {
                "uuid": device.uuid,
                "index": device.gpu.index,
                "pci": device.pci,
                "product": device.product,
                "parent": device.parent_uuid or None,
                "instance": device.instance.index if device.instance is not None else None,
                "profile": device.instance.profile if device.instance is not None else None,
                "healthy": row.healthy[device.uuid],
                "mpsThreadPercent": limits.thread_percent if limits is not None else None,
                "mpsMemoryMib": limits.memory_mib if limits is not None else None,
            }
            for device in row.devices
            for limits in (row.limits.get(device.uuid),)
        ],
    }


def _build_left_out(one: LeftOut) -> dict[str, Any]:
    return {
        "uuid": one.uuid or None,
        "pci": one.pci or None,
        "product": one.product or None,
        "profile": one.profile or None,
        "why": one.why.value,
        "path": one.path or None,
        "text": one.text or None,
        "listedAs": one.listed_as or None,
    }


def _build_changes(changes: Changes) -> dict[str, Any]:
    return {
        "devices": [
            {
                "uuid": one.gpu_uuid,
                "before": _build_form(one.before),
                "after": _build_form(one.after),
                "how": one.how.value,
                "holders": list(one.holders),
                "daemon": one.daemon or None,
            }
            for one in changes.devices
        ],
        "daemons": [
            {"resource": one.resource, "text": one.text, "how": one.how.value, "holders": list(one.holders)}
            for one in changes.daemons
        ],
        "resources": None
        if changes.counts is None
        else [{"resource": one.resource, "before": one.before, "after": one.after} for one in changes.counts],
    }


def _build_form(form: Form | None) -> dict[str, Any] | None:
    return None if form is None else {"resource": form.resource, "shared": form.shared}


def _build_comparison(comparison: Comparison) -> dict[str, Any]:
    return {
        "same": comparison.is_same,
        "resources": [
            {
                "resource": one.resource,
                "now": one.now,
                "after": one.after,
                "same": one.same,
                "unhealthy": one.unhealthy,
                "new": one.fresh,
                "gone": one.gone,
            }
            for one in comparison.resources
        ],
        "held": [
            {
                "resource": one.resource,
                "id": one.device_id,
                "holder": one.holder,
                "fate": one.fate.value,
                "text": one.text,
            }
            for one in comparison.held
        ],
        "vanishing": list(comparison.vanishing),
    }

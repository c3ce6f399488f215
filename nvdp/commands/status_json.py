"""``nvdp status --json``: the daemon's state and what is wrong with it, as one object whose names stay.

Names are the state's own (``model.status``), in lower camel case as in the body of ``/readyz``; docs/status.md has them
all, and a test holds it against this.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from nvdp.config.keys import camel_key
from nvdp.model.status import Status
from nvdp.planning.findings import Finding, describe_moment

_MOMENTS: Final = frozenset({"applied_at", "pending_until", "changed_at", "since", "scanned_at"})


def build_document(status: Status, findings: Sequence[Finding]) -> dict[str, Any]:
    """JSON's own types. Times are UTC, RFC 3339; what there is not is null, an empty text or an empty list."""
    document: dict[str, Any] = _convert(status)
    told = [{**_convert(finding), "gravity": camel_key(finding.gravity.name.lower())} for finding in findings]
    verdict = {name: document.pop(name) for name in ("ready", "reason")}
    return {**verdict, "findings": told, **document}


def _convert(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return {
            camel_key(name): _convert_moment(found) if name in _MOMENTS else _convert(found)
            for name in value.__struct_fields__
            for found in (getattr(value, name),)
        }
    if isinstance(value, enum.Enum):
        return value.value
    return [_convert(item) for item in value] if isinstance(value, tuple) else value


def _convert_moment(wall: float | None) -> str | None:
    """A time of 0 is that of something that has not happened."""
    return describe_moment(wall) if wall else None

"""In which namespace objects of ours are, where nobody says it: that of the pod, as its service account has it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from nvdp.cluster.access import SERVICE_ACCOUNT

_LIMIT: Final = 64  # bytes; a name has at most 63


def find_namespace(given: str, *, service_account: Path = SERVICE_ACCOUNT) -> str:
    """What was given, else that of the service account; empty if there is none. Raises nothing."""
    if given:
        return given
    try:
        with (service_account / "namespace").open(encoding="ascii") as file:
            name = file.read(_LIMIT).strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return name if name.isprintable() and "/" not in name else ""

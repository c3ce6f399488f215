"""The version that a CDI spec declares: the lowest that has all of its fields (kubelet contract D).

A runtime refuses a version that it does not know, and one that lacks a field of the document: with the lowest, the
oldest runtimes that can read a spec do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from nvdp.model.cdi_spec import CdiSpec, SpecEdits

_LOWEST: Final = "0.3.0"


def find_version(spec: CdiSpec) -> str:
    """The lowest version for the content; what ``spec`` declares itself is not looked at."""
    return next((version for version, uses in _NEEDS if uses(spec)), _LOWEST)


def _edits(spec: CdiSpec) -> list[SpecEdits]:
    return [spec.container_edits, *(device.container_edits for device in spec.devices)]


def _adds_gids(spec: CdiSpec) -> bool:
    return any(edits.additional_gids for edits in _edits(spec))


def _has_annotations_or_dotted_class(spec: CdiSpec) -> bool:
    return (
        bool(spec.annotations)
        or any(device.annotations for device in spec.devices)
        or "." in spec.kind.partition("/")[2]
    )


def _has_host_paths_or_numeric_names(spec: CdiSpec) -> bool:
    return any(device.name[0].isdigit() for device in spec.devices) or any(
        node.host_path is not None for edits in _edits(spec) for node in edits.device_nodes
    )


def _has_mount_types(spec: CdiSpec) -> bool:
    return any(mount.type is not None for edits in _edits(spec) for mount in edits.mounts)


_NEEDS: Final[tuple[tuple[str, Callable[[CdiSpec], bool]], ...]] = (
    ("0.7.0", _adds_gids),
    ("0.6.0", _has_annotations_or_dotted_class),
    ("0.5.0", _has_host_paths_or_numeric_names),
    ("0.4.0", _has_mount_types),
)

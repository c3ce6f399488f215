"""Options of the process that exclude or demand each other. What does not fit together is wrong usage: it cannot be
mended while the process runs, and is said before anything is asked of the API server.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from nvdp.config.options import list_options
from nvdp.config.process import ProcessOptions
from nvdp.errors import UsageError

_SOURCES: Final = ("config-map", "config-dir")
_NEED_NODE: Final = (*_SOURCES, "events", "node-condition", "startup-taint")
_NEED_SOURCE: Final = ("default-config", "fallback-strategies", "node-label")

_KUBELETS: Final = frozenset({"Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"})
_CLUSTERS: Final = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")


def is_by_label(options: ProcessOptions) -> bool:
    """Whether the node's label chooses among several configurations; else there is one file, or none."""
    return bool(options.config_map) or options.config_dir is not None


def check_options(options: ProcessOptions) -> None:
    """Raise UsageError, in one line, for the first thing that does not fit. For what runs, not for what only looks."""
    given = {
        flag: options.origins[flag].text if flag in options.origins else f"--{flag}" for flag in _find_given(options)
    }
    sources = [given[flag] for flag in _SOURCES if flag in given]
    if sources and "config-file" in given:
        text = (
            f"{given['config-file']} and {sources[0]} exclude each other: one file for all, or one of several by label"
        )
        raise UsageError(f"{text}; remove one")
    needing = [*_NEED_NODE, *(["write-labels"] if options.write_labels.needs_node else [])]
    for flag in needing:
        if flag in given and not options.node_name:
            text = f"{given[flag]} needs --node-name or NODE_NAME, the name of this node in the cluster"
            raise UsageError(f"{text}; in a pod the component cluster of the manifests sets it")
    for flag in _NEED_SOURCE:
        if flag in given and not sources:
            raise UsageError(f"{given[flag]} has no effect without --config-map or --config-dir")
    if options.node_condition in _KUBELETS:
        text = f"{given['node-condition']}: {options.node_condition} is a condition of the cluster's own"
        raise UsageError(f"{text}; choose another type, like nvidia.com/GPUReady")
    if options.startup_taint.startswith(_CLUSTERS):
        text = f"{given['startup-taint']}: {options.startup_taint} is a taint of the cluster's own"
        raise UsageError(f"{text}; choose another key, like nvidia.com/gpu-not-ready")


def _find_given(options: ProcessOptions) -> Iterator[str]:
    """The flags whose value is not the default."""
    for option in list_options():
        if not option.path and getattr(options, option.key.attribute) != option.key.default:
            yield option.flag

"""The configuration that commands look at where none is named and the node's label chooses it: the last one applied."""

from __future__ import annotations

from nvdp.config.cluster_rules import is_by_label
from nvdp.config.process import ProcessOptions
from nvdp.errors import UsageError
from nvdp.host.state import read_state


def find_applied(options: ProcessOptions, *, remedy: str) -> tuple[str, bytes] | None:
    """Its name and text; None where the options have one file, or none. Blocks for the disk.

    HostError if the state cannot be read, UsageError with the ``remedy`` if nothing was applied on this node yet.
    """
    if options.config_file is not None or not is_by_label(options):
        return None
    applied = read_state(options.state_dir).config
    if applied is None:
        raise UsageError(f"the node's label chooses the configuration, and none was applied here yet; {remedy}")
    return applied.source, applied.text.encode()

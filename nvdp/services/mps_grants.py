"""What the plugin grants, read whenever its file changed and posted."""

from __future__ import annotations

from pathlib import Path

from nvdp.errors import HostError
from nvdp.host.change import PathWatch
from nvdp.host.files import FileFingerprint, config_directories, config_fingerprint
from nvdp.host.mps_grants import load_grants
from nvdp.model.mps import GRANTS_NAME
from nvdp.services.mps_events import GrantsRead, MpsPost


def load_takeable(state_dir: Path) -> frozenset[str] | None:
    """The GPUs that the plugin lets be taken for MPS, by UUID; None if it never said anything on this node.

    Raises HostError, in one line, if its word cannot be read. Any thread; blocks for the disk.
    """
    grants = load_grants(state_dir)
    return grants.list_takeable() if grants is not None else None


def build_grants_watch(state_dir: Path, post: MpsPost) -> PathWatch[FileFingerprint | None]:
    """The watch that posts ``GrantsRead``, the first time at once. The file is replaced as a whole: no settling."""
    path = state_dir / GRANTS_NAME

    def read(_fingerprint: FileFingerprint | None) -> None:
        try:
            post(GrantsRead(grants=load_grants(state_dir)))
        except HostError as error:
            post(GrantsRead(problem=str(error)))

    return PathWatch(
        fingerprint=lambda: config_fingerprint(path), directories=lambda: config_directories(path), on_change=read
    )

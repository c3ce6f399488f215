"""The file by which the plugin tells ``nvdp mps`` which daemons it wants, of which GPUs: in the state directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from nvdp.errors import HostError
from nvdp.host.exchange import load_value, replace_value
from nvdp.model.mps import GRANTS_NAME, MpsGrants

_MODE: Final = 0o600
_DIRECTORY_MODE: Final = 0o700


def load_grants(state_dir: Path) -> MpsGrants | None:
    """What the plugin said last, however long ago; None if it never said anything on this node.

    Raises HostError, in one line, if the file cannot be used. Any thread; blocks for the disk.
    """
    return load_value(state_dir / GRANTS_NAME, MpsGrants)


def has_grants(state_dir: Path) -> bool:
    """Whether there is a file of grants. Raises nothing. Any thread; blocks for the disk."""
    return os.path.lexists(state_dir / GRANTS_NAME)


def write_grants(state_dir: Path, grants: MpsGrants) -> None:
    """Replace the grants, whole or not at all, and have them on the disk when this returns.

    The directory is made, for root alone, if it is missing. Raises HostError if they cannot be written. One thread at a
    time; blocks for the disk.
    """
    try:
        state_dir.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
    except OSError as error:
        raise HostError(f"{state_dir}: cannot be made: {error.strerror}") from error
    replace_value(state_dir / GRANTS_NAME, grants, mode=_MODE, sync=True)

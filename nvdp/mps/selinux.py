"""The SELinux context of a pipe directory: without it, containers of pods may not open what is in there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from nvdp.errors import HostError

CONTEXT: Final = "system_u:object_r:container_file_t:s0"
"""What every container may use; files that a daemon makes in the directory inherit it."""

_ATTRIBUTE: Final = "security.selinux"


def label(
    pipe_dir: Path,
    *,
    sys: Path = Path("/sys"),
    get: Callable[[Path, str], bytes] = os.getxattr,
    put: Callable[[Path, str, bytes], None] = os.setxattr,
) -> None:
    """Give the directory the context of container files, where the node has SELinux and it has another one.

    SELinux is there where ``sys/fs/selinux`` is, which a container sees only if it is mounted into it. Raises HostError
    with the path and the context if that is refused. Does not block.
    """
    if not (sys / "fs/selinux/enforce").exists():
        return
    wanted = CONTEXT.encode() + b"\0"  # as the kernel keeps it
    try:
        if get(pipe_dir, _ATTRIBUTE) == wanted:
            return
    except OSError:
        pass  # it has none, or we may not see it: the change says what is wrong
    try:
        put(pipe_dir, _ATTRIBUTE, wanted)
    except OSError as error:
        raise HostError(
            f"{pipe_dir}: cannot be given the SELinux context {CONTEXT}: {error.strerror}; nvdp mps must run as a "
            "privileged container (spc_t), on a file system that keeps contexts"
        ) from error

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
_FILE_SYSTEM: Final = "selinuxfs"  # the kernel has it unless SELinux was switched off at boot


def label(
    pipe_dir: Path,
    *,
    proc: Path = Path("/proc"),
    get: Callable[[Path, str], bytes] = os.getxattr,
    put: Callable[[Path, str, bytes], None] = os.setxattr,
) -> None:
    """Give the directory the context of container files, where the node has SELinux and it has another one.

    It has where its kernel knows the file system of SELinux, which every container can see; ``/sys/fs/selinux`` it sees
    only if that is mounted into it. Raises HostError with the path and the context if it is refused. Does not block.
    """
    if not _is_there(proc):
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


def _is_there(proc: Path) -> bool:
    try:
        lines = (proc / "filesystems").read_text().splitlines()
    except OSError:
        return False
    return any(line.split()[-1:] == [_FILE_SYSTEM] for line in lines)

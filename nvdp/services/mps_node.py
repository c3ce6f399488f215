"""What the actors of all control daemons of a node have in common."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import msgspec

from nvdp.log import Log
from nvdp.services.mps_events import MpsPost
from nvdp.services.mps_running import Program, Times


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """``find_own_pids`` are the daemons of all actors; ``is_client_alive`` of a PID that the daemon said.

    ``find_minors`` are the numbers of the GPUs' device nodes, by UUID, as far as they are known.
    """

    mps_dir: Path
    program: Program
    post: MpsPost
    log: Log
    find_own_pids: Callable[[], Collection[int]]
    is_client_alive: Callable[[int], bool]
    find_minors: Callable[[], Mapping[str, int]] = dict
    times: Times = Times()
    clock: Callable[[], float] = time.monotonic

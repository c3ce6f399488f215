"""From what happens on the node to the list that follows: a kubelet that restarts, an edited file, a GPU's XID."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.bench.calls import time_in_turn
from tests.bench.driver import report_xids
from tests.bench.figures import Figure, Floor, build_figure, build_spread
from tests.bench.floors import BareServer
from tests.bench.installation import Installation
from tests.bench.node import Node
from tests.bench.scale import Scale

GROUP = "what happens to list"
_SHARE = 4
_UNDER_S = 0.05
_FLOOR_CALLS = 200
_FATAL_XID = 79


def measure_reactions(
    installation: Installation, scale: Scale, bare: BareServer, driver_root: Path | None
) -> Iterator[Figure]:
    """From the moment of the change itself, so that the notification's own way is counted.

    XIDs come from the driver's library; without one they are not measured.
    """
    floor = _measure_floor(bare)
    with Node(installation, share=_SHARE) as node:
        node.wait_list()
        yield build_figure(
            "swap_to_list",
            "..data swap to list",
            _measure_edits(node, node.swap, scale.edits),
            group=GROUP,
            unit="s",
            floor=floor,
            under=_UNDER_S,
        )
        yield build_figure(
            "restart_to_list",
            "new kubelet.sock to list",
            _measure_restarts(node, scale),
            group=GROUP,
            unit="s",
            floor=floor,
            under=_UNDER_S,
        )
    if driver_root is not None:
        with Node(installation, share=_SHARE, driver_root=driver_root) as node:
            node.wait_ready()
            yield build_figure(
                "xid_to_list",
                "XID to list",
                _measure_xids(node, driver_root, scale.xids),
                group=GROUP,
                unit="s",
                floor=floor,
                under=_UNDER_S,
            )
        report_xids(driver_root, ())
    with Node(installation, share=_SHARE, plain=True) as node:
        node.wait_list()
        for key, text, edit in (
            ("rename_to_list", "rename over file to list, 0.1 s settling", node.rename),
            ("write_to_list", "in-place write to list, 0.1 s settling", node.write_in_place),
        ):
            taken = _measure_edits(node, edit, scale.edits)
            yield build_figure(key, text, taken, group=GROUP, unit="s", floor=floor)


def _measure_floor(bare: BareServer) -> Floor:
    (times,) = time_in_turn(bare.caller.empty(), rounds=_FLOOR_CALLS)
    return Floor(text="an empty gRPC call", value=build_spread(times))


def _measure_edits(node: Node, edit: Callable[[], float], count: int) -> list[float]:
    taken = []
    for _ in range(count):
        before = len(node.kubelet.messages(node.newest.resource))
        edited_at = edit()
        taken.append(node.wait_list(after=before).at - edited_at)
    return taken


def _measure_restarts(node: Node, scale: Scale) -> list[float]:
    """The moment is the new socket's own time in the file system, which may be up to 4 ms early, never late."""
    taken = []
    for _ in range(scale.restarts):
        messages = len(node.kubelet.messages(node.newest.resource))
        registrations = len(node.kubelet.registrations)
        node.kubelet.restart(gap_s=scale.gap_s)
        since_epoch_s = time.time() - time.monotonic()
        appeared_at = node.kubelet.socket.stat().st_ctime_ns / 1e9 - since_epoch_s
        taken.append(node.wait_list(after=messages).at - appeared_at)
        node.wait_registered(after=registrations)
    return taken


def _measure_xids(node: Node, driver_root: Path, count: int) -> list[float]:
    """One GPU after the other is lost to new pods; none comes back, for the driver does not say that it may."""
    taken = []
    for lost in range(1, count + 1):
        node.wait_list(lost=lost - 1)
        told_at = report_xids(driver_root, [(gpu, _FATAL_XID) for gpu in range(lost)])
        taken.append(node.wait_list(lost=lost).at - told_at)
    return taken

"""From the start of the process to the kubelet having its list, beside the start of an interpreter with grpc."""

from __future__ import annotations

from collections.abc import Iterator

from tests.bench.figures import Figure, Floor, build_figure, build_spread
from tests.bench.floors import Bare
from tests.bench.installation import Installation
from tests.bench.node import GPUS, Node
from tests.bench.scale import Scale

GROUP = "start"
_SHARE = 4
_UNDER_FLOORS = 4.0


def measure_starts(installation: Installation, scale: Scale) -> Iterator[Figure]:
    """Floor and daemon take turns. The floor of the start is an interpreter's start and its import of grpc."""
    bare, imports, registered, listed = [], [], [], []
    for _ in range(scale.starts):
        with Bare(installation) as interpreter:
            bare.append(interpreter.start_s)
            imports.append(interpreter.import_s)
        with Node(installation, share=_SHARE) as node:
            answered_at = node.wait_registered().answered_at
            assert answered_at is not None
            registered.append(answered_at - node.daemon.started_at)
            listed.append(node.wait_list().at - node.daemon.started_at)
    floor = Floor(text="python with grpc imported", value=build_spread(bare))
    of_import = Floor(text="import grpc alone", value=build_spread(imports))
    where = f"{GPUS} GPUs x {_SHARE}"
    yield build_figure(
        "start_to_registered",
        f"start to registered, {where}",
        registered,
        group=GROUP,
        unit="s",
        floor=floor,
        under_floors=_UNDER_FLOORS,
    )
    yield build_figure(
        "start_to_registered_by_import",
        "  the same, by the import alone",
        registered,
        group=GROUP,
        unit="s",
        floor=of_import,
        under_floors=_UNDER_FLOORS,
    )
    yield build_figure("start_to_list", f"start to first list, {where}", listed, group=GROUP, unit="s", floor=floor)

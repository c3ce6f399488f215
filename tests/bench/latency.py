"""What the kubelet waits for when a pod is admitted: Allocate and GetPreferredAllocation, by the length of the list."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nvdp.kubelet.proto import deviceplugin_v1beta1_pb2 as deviceplugin
from tests.bench.calls import Caller, build_preferred_request, time_in_turn
from tests.bench.figures import Figure, Floor, build_figure, build_spread
from tests.bench.floors import BareServer
from tests.bench.installation import Installation
from tests.bench.node import GPUS, Node
from tests.bench.processes import load_memory
from tests.bench.scale import Scale

GROUP = "calls of the kubelet"
_SIZE = 4
_MOST = 1000  # the share whose times have an aim
_LIST_UNDER_S, _PREFER_UNDER_S = 1.0, 0.01


def measure_latency(installation: Installation, scale: Scale, bare: BareServer) -> Iterator[Figure]:
    """On a daemon of its own for each length. Calls take turns with the bare server's."""
    for share in scale.shares:
        with Node(installation, share=share) as node:
            listed = node.wait_list()
            node.wait_registered()
            yield from _measure_calls(node, scale, bare)
            if share == _MOST:
                yield from _describe_most(node, listed.at - node.daemon.started_at)


def _measure_calls(node: Node, scale: Scale, bare: BareServer) -> Iterator[Figure]:
    ids = node.newest.healthy
    where = f"{GPUS} x {node.share}"
    caller = Caller(node.socket)
    try:
        allocate, prefer = caller.allocate(ids[:1]), caller.prefer(ids, _SIZE)
        _check_answers(allocate, prefer)
        taken, empty = time_in_turn(allocate, bare.caller.empty(), rounds=scale.allocate_calls)
        yield build_figure(
            f"allocate_{node.share}",
            f"Allocate, 1 of {where}",
            taken,
            group=GROUP,
            unit="s",
            floor=Floor(text="an empty gRPC call", value=build_spread(empty)),
        )
        # The request names every free device: the floor carries as much and reads none of it.
        request = build_preferred_request(ids, _SIZE)
        taken, empty = time_in_turn(prefer, bare.caller.empty(request), rounds=scale.preferred_calls)
        yield build_figure(
            f"preferred_{node.share}",
            f"GetPreferredAllocation, {_SIZE} of {where}",
            taken,
            group=GROUP,
            unit="s",
            floor=Floor(text="an empty answer to the same bytes", value=build_spread(empty)),
            under=_PREFER_UNDER_S if node.share == _MOST else None,
        )
    finally:
        caller.close()


def _describe_most(node: Node, list_s: float) -> Iterator[Figure]:
    where = f"{GPUS} GPUs x {node.share}"
    yield build_figure(
        "start_to_list_most", f"start to first list, {where}", [list_s], group=GROUP, unit="s", under=_LIST_UNDER_S
    )
    daemon, _ = load_memory(node.wait_pids())
    yield build_figure("daemon_rss_most", f"daemon, resident, {where}", [daemon.rss], group=GROUP, unit="MiB")


def _check_answers(allocate: Callable[[], bytes], prefer: Callable[[], bytes]) -> None:
    """What is quick must be right, too."""
    (given,) = deviceplugin.AllocateResponse.FromString(allocate()).container_responses
    assert given.envs["NVIDIA_VISIBLE_DEVICES"].startswith("GPU-")
    (preferred,) = deviceplugin.PreferredAllocationResponse.FromString(prefer()).container_responses
    assert len({device.partition("::")[0] for device in preferred.device_ids}) == _SIZE

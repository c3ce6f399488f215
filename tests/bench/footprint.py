"""What the daemon and its NVML child take from the node: memory, threads, files and processor time, idle and used."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.calls import Caller, reconnect
from tests.bench.figures import Figure, Floor, Unit, build_figure, build_spread
from tests.bench.floors import Bare
from tests.bench.installation import Installation
from tests.bench.node import Node
from tests.bench.processes import Memory, count_files, count_threads, load_cpu_s, load_memory
from tests.bench.scale import Scale

AT_REST, AFTER_LOAD = "at rest", "after load"
_SHARE = 4
_DAEMON_UNDER_MIB, _BOTH_UNDER_MIB = 50.0, 58.0
_IDLE_UNDER_PERCENT = 0.5
_SCRAPES = 10


def measure_footprint(installation: Installation, scale: Scale, driver_root: Path | None) -> Iterator[Figure]:
    """Probed as a cluster probes it, before anything is measured; scraped with the load, for the first time."""
    with Bare(installation) as bare:
        (interpreter,) = load_memory([bare.pid])
    with Node(installation, share=_SHARE, driver_root=driver_root) as node:
        node.wait_list()
        node.wait_ready()
        yield from _measure_processes(node, AT_REST, interpreter)
        yield _measure_idleness(node, scale.idle_s)
        yield from _put_load_on(node, scale)
        yield from _measure_processes(node, AFTER_LOAD, interpreter)


def _measure_processes(node: Node, group: str, interpreter: Memory) -> Iterator[Figure]:
    slug = group.replace(" ", "_")
    pids = node.wait_pids()
    daemon, child = load_memory(pids)

    def one(
        key: str, text: str, value: float, unit: Unit, *, floor: float | None = None, under: float | None = None
    ) -> Figure:
        bare = Floor(text="python with grpc imported", value=build_spread([floor])) if floor is not None else None
        return build_figure(f"{slug}_{key}", text, [value], group=group, unit=unit, floor=bare, under=under)

    yield one("daemon_rss", "daemon, resident", daemon.rss, "MiB", floor=interpreter.rss)
    yield one("daemon_private", "daemon, private", daemon.private, "MiB", floor=interpreter.private)
    yield one("daemon_proportional", "daemon, proportional", daemon.proportional, "MiB", floor=interpreter.proportional)
    yield one(
        "daemon_alone",
        "daemon, proportional, alone",
        daemon.alone,
        "MiB",
        floor=interpreter.alone,
        under=_DAEMON_UNDER_MIB,
    )
    yield one("child_rss", "child, resident", child.rss, "MiB")
    yield one("child_private", "child, private", child.private, "MiB")
    yield one("child_proportional", "child, proportional", child.proportional, "MiB")
    yield one("both_proportional", "both, proportional", daemon.proportional + child.proportional, "MiB")
    yield one("both_alone", "both, proportional, alone", daemon.alone + child.alone, "MiB", under=_BOTH_UNDER_MIB)
    yield one("threads", "daemon, threads", count_threads(pids[0]), "count")
    yield one("files", "daemon, open files", count_files(pids[0]), "count")


def _measure_idleness(node: Node, seconds: float) -> Figure:
    pids = node.wait_pids()
    began, before = time.monotonic(), sum(map(load_cpu_s, pids))
    time.sleep(seconds)  # what is measured is that nothing happens
    used_s, taken_s = sum(map(load_cpu_s, pids)) - before, time.monotonic() - began
    return build_figure(
        "idle_cpu",
        f"both, processor over {taken_s:.0f} s",
        [100 * used_s / taken_s],
        group=AT_REST,
        unit="percent of a core",
        under=_IDLE_UNDER_PERCENT,
    )


def _put_load_on(node: Node, scale: Scale) -> Iterator[Figure]:
    """Calls, streams that come and go, and scrapes; ends when no stream is left but the kubelet's."""
    files = count_files(node.daemon.pid)
    ids = node.newest.healthy
    caller = Caller(node.socket)
    began = time.monotonic()
    try:
        calls = [caller.allocate([device]) for device in ids] + [caller.prefer(ids, 1)]
        for number in range(scale.load_calls):
            calls[number % len(calls)]()
    finally:
        caller.close()
    call_s = (time.monotonic() - began) / scale.load_calls
    yield build_figure("load_call", f"one of {scale.load_calls:,} calls in a row", [call_s], group=AFTER_LOAD, unit="s")
    began = time.monotonic()
    for _ in range(scale.load_reconnects):
        reconnect(node.socket)
    stream_s = (time.monotonic() - began) / scale.load_reconnects
    text = f"one of {scale.load_reconnects:,} new streams, to its list"
    yield build_figure("load_reconnect", text, [stream_s], group=AFTER_LOAD, unit="s")
    for _ in range(_SCRAPES):
        if node.daemon.find_metric("nvdp_ready") != 1:
            raise TimeoutError(f"/metrics does not say nvdp_ready 1; {node.daemon.last_line}")
    node.wait_for(lambda: count_files(node.daemon.pid) <= files + 3, what=f"open files back at {files}")

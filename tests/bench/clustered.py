"""What the daemon takes where it does all that there is in the cluster: beside the same without, in ``footprint``."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.bench.figures import Figure, Unit, build_figure
from tests.bench.installation import Installation
from tests.bench.node import Node, build_config
from tests.bench.processes import count_files, count_threads, load_memory
from tests.cluster.server import ApiServer

CLUSTERED = "with the cluster"
_SHARE = 4
_NODE, _CONDITION = "gpu-a3", "nvidia.com/GPUReady"
# What a start puts off for the sake of other nodes would be waited for here too, and takes up to two minutes.
_AT_ONCE = (
    "import sys, nvdp.app.cluster as parts; from nvdp.planning.start_spread import StartDelays; "
    "parts.plan_start = lambda *_, **__: StartDelays(ask_s=0.0, state_s=0.0, labels_s=0.0, events_s=0.0); "
    "from nvdp.__main__ import main; sys.exit(main())"
)


def measure_clustered(installation: Installation, driver_root: Path | None) -> Iterator[Figure]:
    """Configuration by label, labels, events, the condition and the taint, each once at work; raises TimeoutError."""
    with ApiServer() as server, tempfile.TemporaryDirectory(prefix="nv", dir="/tmp") as directory:
        _fill(server)
        flags = {
            "node-name": _NODE,
            "kubeconfig": server.write_kubeconfig(Path(directory, "kubeconfig")),
            "namespace": "nvdp",
            "pod-name": "nvdp-x7",
            "config-map": "nvdp/configs",
            "write-labels": "node-feature",
            "events": "true",
            "node-condition": _CONDITION,
            "startup-taint": "nvidia.com/gpu-not-ready",
        }
        program = (*installation.python, "-c", _AT_ONCE)
        with Node(installation, share=_SHARE, driver_root=driver_root, program=program, by_label=flags) as node:
            node.wait_list()
            node.wait_ready()
            node.wait_for(lambda: _is_all_written(server), what="labels, events and the condition")
            yield from _measure_processes(node)


def _fill(server: ApiServer) -> None:
    server.store.put(
        "nodes", {"metadata": {"name": _NODE, "labels": {"nvidia.com/device-plugin.config": "a"}}, "status": {}}
    )
    metadata = {"name": "configs", "namespace": "nvdp"}
    server.store.put("configmaps", {"metadata": metadata, "data": {"a": build_config(_SHARE)}})
    server.store.put("pods", {"metadata": {"name": "nvdp-x7", "namespace": "nvdp"}})


def _is_all_written(server: ApiServer) -> bool:
    node = server.store.find("nodes", _NODE) or {}
    shown = [one["type"] for one in node["status"].get("conditions", []) if one["status"] == "True"]
    return shown == [_CONDITION] and bool(server.store.list("nodefeatures")) and bool(server.store.list("events"))


def _measure_processes(node: Node) -> Iterator[Figure]:
    pids = node.wait_pids()
    daemon, _ = load_memory(pids)

    def one(key: str, text: str, value: float, unit: Unit) -> Figure:
        return build_figure(f"clustered_{key}", text, [value], group=CLUSTERED, unit=unit)

    yield one("daemon_rss", "daemon, resident", daemon.rss, "MiB")
    yield one("daemon_private", "daemon, private", daemon.private, "MiB")
    yield one("daemon_proportional", "daemon, proportional", daemon.proportional, "MiB")
    yield one("daemon_alone", "daemon, proportional, alone", daemon.alone, "MiB")
    yield one("threads", "daemon, threads", count_threads(pids[0]), "count")
    yield one("files", "daemon, open files", count_files(pids[0]), "count")

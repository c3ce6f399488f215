"""``nvdp devices``: the GPUs of this node as the daemon would see them, asked through a child of this command's own."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from nvdp.app.gpus import find_source, scan_this_node
from nvdp.commands.devices_text import print_devices
from nvdp.config.options import parse_options
from nvdp.model.inventory import Gpu
from nvdp.services.events import GpusScanned


@click.command()
@click.option("--json", "as_json", is_flag=True, help="one JSON object instead of a table")
@click.option("--export", is_flag=True, help="a node file instead of a table, for --simulated-node")
@click.option(
    "--simulated-node",
    "--node",
    metavar="FILE|NAME",
    help="ask the machine of this node file, or of a bundled one [env NVDP_SIMULATED_NODE]",
)
@click.option(
    "--driver-root-ctr-path",
    "--container-driver-root",
    metavar="TEXT",
    help="where this process sees the driver root [env DRIVER_ROOT_CTR_PATH, CONTAINER_DRIVER_ROOT]",
)
def devices(*, as_json: bool, export: bool, simulated_node: str | None, driver_root_ctr_path: str | None) -> None:
    """List the GPUs of this node with their MIG devices, those that ail too.

    Exit code 0 if the driver answered, 1 if it could not be asked.
    """
    if as_json and export:
        raise click.UsageError("--json and --export exclude each other.")
    flags = {"simulated-node": simulated_node, "driver-root-ctr-path": driver_root_ctr_path}
    options, overrides = parse_options(flags, os.environ)
    scanned = scan_this_node(options, find_source(overrides))
    if as_json:
        click.echo(json.dumps(_build_json(scanned), ensure_ascii=False, indent=2))
    elif export:
        from nvdp.nvml.simulated.export import build_node_file  # noqa: PLC0415 - brings yaml, for this option only

        assert scanned.inventory is not None
        click.echo(build_node_file(scanned.inventory), nl=False)
    else:
        print_devices(scanned)


def _build_json(scanned: GpusScanned) -> dict[str, Any]:
    assert scanned.inventory is not None
    gpus = []
    for gpu in scanned.inventory.gpus:
        ailment = scanned.ailments.get(gpu.uuid)
        gpus.append(
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "pci": gpu.pci,
                "minor": gpu.minor,
                "product": gpu.product,
                "memoryBytes": gpu.memory_bytes,
                "computeCapability": gpu.compute_capability,
                "numaNode": gpu.numa_node,
                "computeMode": gpu.compute_mode.value if gpu.compute_mode is not None else None,
                "mig": gpu.mig.value if gpu.mig is not None else None,
                "migPending": gpu.mig_pending.value if gpu.mig_pending is not None else None,
                "instances": _build_instances(gpu),
                "healthy": ailment is None,
                "cause": ailment.cause.value if ailment is not None else None,
                "text": ailment.text if ailment is not None else None,
            }
        )
    return {
        "platform": scanned.inventory.platform.value,
        "driver": {"version": scanned.driver.version, "cudaVersion": scanned.driver.cuda_version},
        "gpus": gpus,
        "unreadable": [
            {
                "index": gpu.index,
                "pci": gpu.pci,
                "call": gpu.fault.call,
                "error": gpu.fault.kind,
                "text": gpu.fault.text,
            }
            for gpu in scanned.inventory.unreadable
        ],
    }


def _build_instances(gpu: Gpu) -> list[dict[str, Any]] | None:
    """The MIG devices; null where the GPU is not in MIG mode, or they could not be listed."""
    if gpu.instances is None:
        return None
    readable = [
        {
            "index": instance.index,
            "uuid": instance.uuid,
            "gpuInstance": instance.gpu_instance,
            "computeInstance": instance.compute_instance,
            "profile": instance.profile,
            "memoryBytes": instance.memory_bytes,
            "text": instance.fault.text if instance.fault is not None else None,
        }
        for instance in gpu.instances
    ]
    others = [{"index": place.index, "uuid": None, "text": place.fault.text} for place in gpu.unreadable_instances]
    return sorted([*readable, *others], key=lambda entry: entry["index"])

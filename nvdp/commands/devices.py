"""``nvdp devices``: the GPUs of this node as the daemon would see them, asked through a child of this command's own."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from nvdp.app.gpus import find_driver_root, scan_this_node
from nvdp.config.options import parse_options
from nvdp.services.events import GpusScanned

_COLUMNS: Final = ("INDEX", "UUID", "PCI", "PRODUCT", "MEMORY", "CC", "NUMA", "MIG", "STATE")
_GAP: Final = "  "
_STATE_WIDTH: Final = 24


@click.command()
@click.option("--json", "as_json", is_flag=True, help="one JSON object instead of a table")
@click.option("--export", is_flag=True, help="a node file instead of a table, for --simulated-node")
@click.option("--simulated-node", metavar="PATH", help="ask the machine of this node file [env NVDP_SIMULATED_NODE]")
@click.option(
    "--driver-root-ctr-path",
    "--container-driver-root",
    metavar="TEXT",
    help="where this process sees the driver root [env DRIVER_ROOT_CTR_PATH, CONTAINER_DRIVER_ROOT]",
)
def devices(*, as_json: bool, export: bool, simulated_node: str | None, driver_root_ctr_path: str | None) -> None:
    """List the GPUs of this node, those that ail too.

    Exit code 0 if the driver answered, 1 if it could not be asked.
    """
    if as_json and export:
        raise click.UsageError("--json and --export exclude each other.")
    flags = {"simulated-node": simulated_node, "driver-root-ctr-path": driver_root_ctr_path}
    options, overrides = parse_options(flags, os.environ)
    scanned = scan_this_node(options, driver_root=find_driver_root(overrides))
    if as_json:
        click.echo(json.dumps(_build_json(scanned), ensure_ascii=False, indent=2))
    elif export:
        from nvdp.nvml.simulated.export import build_node_file  # noqa: PLC0415 - brings yaml, for this option only

        assert scanned.inventory is not None
        click.echo(build_node_file(scanned.inventory), nl=False)
    else:
        _print_table(scanned)


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
                "mig": gpu.mig.value if gpu.mig is not None else None,
                "healthy": ailment is None,
                "cause": ailment.cause.value if ailment is not None else None,
                "text": ailment.text if ailment is not None else None,
            }
        )
    return {
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


def _print_table(scanned: GpusScanned) -> None:
    assert scanned.inventory is not None
    driver = scanned.inventory.driver
    rows = _build_rows(scanned)
    count = f"{len(rows)} GPU{'' if len(rows) == 1 else 's'}"
    click.echo(f"driver {driver.version or 'unknown'}, CUDA {driver.cuda_version or 'unknown'}, {count}")
    if not rows:
        return
    widths = [max(len(row[column]) for row in (_COLUMNS, *rows)) for column in range(len(_COLUMNS))]
    if not sys.stdout.isatty():
        for row in (_COLUMNS, *rows):
            click.echo(_GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        return
    from rich.console import Console  # noqa: PLC0415 - only a terminal gets colours
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    # Names are copied into other commands and never cut. A terminal too narrow for them continues each line below, as
    # with `kubectl get -o wide`: that can be read, columns of single letters cannot.
    widths[-1] = min(widths[-1], _STATE_WIDTH)
    needed = sum(widths) + len(_GAP) * (len(widths) - 1)
    table = Table(box=None, pad_edge=False, padding=(0, len(_GAP), 0, 0))
    for column, width in zip(_COLUMNS, widths, strict=True):
        table.add_column(column, no_wrap=column != _COLUMNS[-1], overflow="fold", min_width=width)
    for *cells, state in rows:
        table.add_row(*map(Text, cells), Text(state, style="green" if state == "ok" else "bold red"))
    Console(width=max(needed, shutil.get_terminal_size().columns)).print(table)


def _build_rows(scanned: GpusScanned) -> Sequence[tuple[str, ...]]:
    assert scanned.inventory is not None
    rows: list[tuple[str, ...]] = []
    for gpu in scanned.inventory.gpus:
        ailment = scanned.ailments.get(gpu.uuid)
        rows.append(
            (
                str(gpu.index),
                gpu.uuid,
                gpu.pci or "-",
                gpu.product or "-",
                f"{gpu.memory_bytes / 2**30:.0f} GiB" if gpu.memory_bytes else "-",
                gpu.compute_capability or "-",
                "-" if gpu.numa_node is None else str(gpu.numa_node),
                gpu.mig.value if gpu.mig is not None else "-",
                "ok" if ailment is None else f"{ailment.cause.value}: {ailment.text}",
            )
        )
    for unreadable in scanned.inventory.unreadable:
        state = f"unreadable: {unreadable.fault.text}"
        rows.append((str(unreadable.index), "-", unreadable.pci or "-", *["-"] * 5, state))
    return sorted(rows, key=lambda row: int(row[0]))

"""The GPUs and their MIG devices as a table for people, plain or, on a terminal, in colour."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Final

import click

from nvdp.model.health import Ailment
from nvdp.model.inventory import ComputeMode, Gpu, MigInstance, UnreadableGpu, UnreadableInstance
from nvdp.model.platforms import Platform
from nvdp.model.reasons import Cause
from nvdp.services.events import GpusScanned

_COLUMNS: Final = ("INDEX", "UUID", "PCI", "PRODUCT", "MEMORY", "CC", "NUMA", "MIG", "STATE")
_GAP: Final = "  "
_STATE_WIDTH: Final = 24
_GIB: Final = 1 << 30
_PLATFORMS: Final = {
    Platform.WSL: ("WSL2: all GPUs are one device",),
    Platform.TEGRA: ("Tegra: nothing is known of the GPU of the chip",),
}

_COMPUTE_MODES: Final = {
    ComputeMode.EXCLUSIVE_PROCESS: "one process at a time may compute there, as which all clients of MPS count",
    ComputeMode.EXCLUSIVE_THREAD: "one thread at a time may compute there",
    ComputeMode.PROHIBITED: "no process may compute there",
}

_Row = tuple[str, ...]


def print_devices(scanned: GpusScanned) -> None:
    """Write a summary, a table with a row for each GPU and below it for each of its MIG devices, and what else to know.

    ``scanned`` has an inventory.
    """
    assert scanned.inventory is not None
    driver, gpus = scanned.inventory.driver, scanned.inventory.gpus
    counts = [_count(len(gpus) + len(scanned.inventory.unreadable), "GPU")]
    if devices := sum(len(gpu.instances or ()) for gpu in gpus):
        counts.append(_count(devices, "MIG device"))
    summary = f"driver {driver.version or 'unknown'}, CUDA {driver.cuda_version or 'unknown'}"
    click.echo(", ".join([summary, *counts, *_PLATFORMS.get(scanned.inventory.platform, ())]))
    if rows := _build_rows(scanned):
        _print_rows(rows)
    for gpu in gpus:
        if gpu.mig is not None and gpu.mig_pending is not None:
            modes = f"MIG mode is {gpu.mig.value}, {gpu.mig_pending.value} is pending"
            click.echo(f"GPU {gpu.index} ({gpu.uuid}): {modes}: needs a GPU reset: nvdp pause")
    for mode, meaning in _COMPUTE_MODES.items():
        if indices := [str(gpu.index) for gpu in gpus if gpu.compute_mode is mode]:
            click.echo(f"compute mode {mode.value} on GPU {', '.join(indices)}: {meaning}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _print_rows(rows: Sequence[_Row]) -> None:
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


def _build_rows(scanned: GpusScanned) -> list[_Row]:
    assert scanned.inventory is not None
    found: list[Gpu | UnreadableGpu] = [*scanned.inventory.gpus, *scanned.inventory.unreadable]
    rows: list[_Row] = []
    for gpu in sorted(found, key=lambda gpu: gpu.index):
        if isinstance(gpu, UnreadableGpu):
            state = f"unreadable: {gpu.fault.text}"
            rows.append((str(gpu.index), "-", gpu.pci or "-", *["-"] * 5, state))
        else:
            ailment = scanned.ailments.get(gpu.uuid)
            rows.append(_build_gpu_row(gpu, ailment))
            rows += _build_instance_rows(gpu, ailment)
    return rows


def _build_gpu_row(gpu: Gpu, ailment: Ailment | None) -> _Row:
    return (
        str(gpu.index),
        gpu.uuid,
        gpu.pci or "-",
        gpu.product or "-",
        f"{gpu.memory_bytes / _GIB:.0f} GiB" if gpu.memory_bytes else "-",
        gpu.compute_capability or "-",
        "-" if gpu.numa_node is None else str(gpu.numa_node),
        gpu.mig.value if gpu.mig is not None else "-",
        "ok" if ailment is None else f"{ailment.cause.value}: {ailment.text}",
    )


def _build_instance_rows(gpu: Gpu, ailment: Ailment | None) -> Iterator[_Row]:
    """The MIG devices of a GPU, by the index that a configuration may name them by."""
    places: list[MigInstance | UnreadableInstance] = [*(gpu.instances or ()), *gpu.unreadable_instances]
    for place in sorted(places, key=lambda place: place.index):
        index = f"{gpu.index}:{place.index}"
        if isinstance(place, UnreadableInstance):
            yield (index, "-", "-", "MIG", *["-"] * 4, f"unreadable: {place.fault.text}")
            continue
        state = "ok" if place.fault is None else f"{Cause.CALL_FAILED.value}: {place.fault.text}"
        yield (
            index,
            place.uuid,
            "-",
            f"MIG {place.profile or '-'}",
            f"{place.memory_bytes / _GIB:.1f} GiB" if place.memory_bytes else "-",
            "-",
            "-",
            "-",
            state if ailment is None else f"{ailment.cause.value}: as its GPU",
        )

"""``python -m tests.bench [--quick] [--json FILE]``: measure, show a table, and write all of it as JSON.

Exit code 0, also where an aim is missed: the table says so. 1 if something could not be measured.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import grpc
import msgspec

import nvdp
from tests.bench.choosing import measure_choosing
from tests.bench.clustered import measure_clustered
from tests.bench.driver import build_driver_root
from tests.bench.figures import Figure, Machine, Missing, Report
from tests.bench.floors import BareServer
from tests.bench.footprint import measure_footprint
from tests.bench.installation import Installation, are_dependencies_compiled
from tests.bench.latency import measure_latency
from tests.bench.reactions import measure_reactions
from tests.bench.scale import FULL, QUICK, Scale
from tests.bench.starts import measure_starts
from tests.bench.table import render_table


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make bench", description="Measure nvdp on this machine.")
    parser.add_argument("--quick", action="store_true", help="next to nothing, to see that the bench works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    chosen = parser.parse_args(arguments)
    report = measure(QUICK if chosen.quick else FULL, quick=chosen.quick)
    sys.stdout.write(render_table(report))
    if chosen.json is not None:
        chosen.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    return 1 if report.missing else 0


def measure(scale: Scale, *, quick: bool) -> Report:
    """Everything, one group after the other."""
    began, load_before = time.monotonic(), os.getloadavg()[0]
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nv", dir="/tmp")))
        installation = Installation(scratch / "nvdp")
        driver_root = build_driver_root(scratch / "driver")
        bare = stack.enter_context(BareServer(installation, socket=scratch / "bare.sock"))
        groups: dict[str, Callable[[], Iterator[Figure]]] = {
            "start": partial(measure_starts, installation, scale),
            "reactions": partial(measure_reactions, installation, scale, bare, driver_root),
            "calls": partial(measure_latency, installation, scale, bare),
            "choice": partial(measure_choosing, scale),
            "footprint": partial(measure_footprint, installation, scale, driver_root),
            "cluster": partial(measure_clustered, installation, driver_root),
        }
        figures, missing = take_all(groups)
    return Report(
        nvdp=nvdp.__version__,
        at=dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        quick=quick,
        seconds=time.monotonic() - began,
        driver="simulated" if driver_root is None else "compiled",
        compiled=are_dependencies_compiled(),
        machine=Machine(
            cpu=_find_cpu(),
            cores=os.cpu_count() or 1,
            kernel=platform.release(),
            python=platform.python_version(),
            grpc=grpc.__version__,
            load_before=load_before,
            load_after=os.getloadavg()[0],
        ),
        figures=figures,
        missing=missing,
    )


def take_all(groups: Mapping[str, Callable[[], Iterator[Figure]]]) -> tuple[tuple[Figure, ...], tuple[Missing, ...]]:
    """The figures of all groups, and which group ended early and why: it costs the others nothing."""
    figures: list[Figure] = []
    missing: list[Missing] = []
    for group, take in groups.items():
        try:
            figures.extend(take())
        except Exception as error:  # noqa: BLE001 - whatever it is, the figures of the others are worth having
            missing.append(Missing(group=group, why=f"{type(error).__name__}: {error}".splitlines()[0]))
    return tuple(figures), tuple(missing)


def _find_cpu() -> str:
    found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


if __name__ == "__main__":
    sys.exit(main())

"""The report for people: one line for each figure, at most 100 columns, aims that were missed in capitals."""

from __future__ import annotations

import itertools
import string
from collections.abc import Iterator, Mapping

from tests.bench.figures import Aim, Figure, Floor, Report, Unit

_TEXT = 43
_SHOWN: dict[Unit, tuple[float, str]] = {
    "s": (1000.0, "ms"),
    "MiB": (1.0, "MiB"),
    "percent of a core": (1.0, "%"),
    "count": (1.0, ""),
}


def render_table(report: Report) -> str:
    """Times in milliseconds. p99 stands where a thing was measured more than once."""
    return "\n".join(_render(report)) + "\n"


def _render(report: Report) -> Iterator[str]:
    machine = report.machine
    yield f"nvdp {report.nvdp}, {report.at}{', quick: figures mean little' if report.quick else ''}"
    yield f"{machine.cores} x {machine.cpu}, Linux {machine.kernel}, Python {machine.python}, grpc {machine.grpc}"
    yield (
        f"load average {machine.load_before:.1f} before, {machine.load_after:.1f} after; GPUs and kubelet simulated; "
        f"{report.seconds:.0f} s"
    )
    if report.driver == "simulated":
        yield "no C compiler: no XID, and the NVML child carries a driver in Python, 2 MiB that it does not on a node"
    if not report.compiled:
        yield "the dependencies have no byte code: starts are slower here than from an image"
    for group, figures in itertools.groupby(report.figures, key=lambda figure: figure.group):
        shown = list(figures)
        yield ""
        yield f"{group:{_TEXT}} {'n':>5} {'p50':>9} {'p99':>9} {'floor':>9}   aim".rstrip()
        texts = list(dict.fromkeys(figure.floor.text for figure in shown if figure.floor is not None))
        marks = dict(zip(texts, string.ascii_lowercase, strict=False)) if len(texts) > 1 else {}
        for figure in shown:
            yield _render_figure(figure, marks)
        for text in texts:
            yield f"  floor{f' {marks[text]}' if marks else ''}: {text}"
    for missing in report.missing:
        yield ""
        yield f"{missing.group}: NOT MEASURED: {missing.why}"


def _render_figure(figure: Figure, marks: Mapping[str, str]) -> str:
    value = figure.value
    p99 = _show(value.p99, figure.unit) if value.count > 1 else ""
    floor = _show_floor(figure.floor, figure.unit)
    mark = marks.get(figure.floor.text, "") if figure.floor is not None else ""
    aim = _show_aim(figure.aim, figure.ratio, figure.unit)
    p50 = _show(value.p50, figure.unit)
    return f"  {figure.text:{_TEXT - 2}} {value.count:>5} {p50:>9} {p99:>9} {floor:>9} {mark:1} {aim}".rstrip()


def _show(value: float, unit: Unit) -> str:
    factor, name = _SHOWN[unit]
    digits = 0 if unit == "count" or value * factor >= 1000 else 1 if value * factor >= 10 else 2
    return f"{value * factor:.{digits}f} {name}".rstrip()


def _show_floor(floor: Floor | None, unit: Unit) -> str:
    return "" if floor is None else _show(floor.value.p50, unit)


def _show_aim(aim: Aim | None, ratio: float | None, unit: Unit) -> str:
    if aim is None:
        return f"{ratio:.1f} x" if ratio is not None else ""
    verdict = "met" if aim.met else "MISSED"
    if aim.of == "ratio":
        return f"{ratio or 0:.1f} x < {aim.limit:g}  {verdict}"
    return f"< {_show(aim.limit, unit)}  {verdict}"

"""What the tour prints: plain ASCII in 80 to 100 columns, with colours on a terminal that carry no meaning alone."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any, TextIO

import click

import nvdp
from nvdp.model.platforms import Platform
from nvdp.nvml.simulated.node import Node
from nvdp.simulate.stage import Stage
from nvdp.simulate.steps import Step
from nvdp.simulate.tour import StepResult, TourResult

_MIN_WIDTH, _MAX_WIDTH = 80, 100
_TITLE_WIDTH = 68
_TIME_WIDTH = 22  # "12.34 s   limit 0.1 s"
_INDENT = " " * 6
_MAX_INDENT = 0.6  # of the width
_UNBROKEN = "\0"
_COLUMN = re.compile(r"(?<=\S) {2,}(?=\S)")


class Narrator:
    """Prints to ``stream``. ``count`` is the number of steps, ``program`` how nvdp was called."""

    def __init__(self, *, count: int, program: str, stream: TextIO | None = None) -> None:
        self._count = count
        self._program = program
        self._stream = stream or sys.stdout
        self._is_terminal = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._has_colour = self._is_terminal and not os.environ.get("NO_COLOR")
        self._width = choose_width(self._stream)
        self._title_width = min(_TITLE_WIDTH, self._width - _TIME_WIDTH)

    def introduce(self, stage: Stage, *, paced: bool) -> None:
        """What this is and what of it is real."""
        length = "." if paced else ", a few seconds."
        self._print(
            f"{self._bold(f'nvdp {nvdp.__version__}')}: a Kubernetes device plugin for NVIDIA GPUs.   "
            f"Guided tour{length}",
            "",
            f"  real       the nvdp daemon (pid {stage.daemon.pid}), gRPC on Unix sockets, "
            "the config file and its watch",
            f"  simulated  the GPUs (NVML of {stage.node_source.stem}: {describe_gpus(stage.node)}) and the kubelet",
            f"  nothing on this machine is changed; files are in {stage.root}",
        )

    def begin(self, number: int, step: Step) -> None:
        """The step's title, while it is played: on a terminal only, where it can be completed later."""
        self._print("")
        if self._is_terminal:
            self._stream.write(f"[{number}/{self._count}] {step.title} ...\r")
            self._stream.flush()

    def end(self, result: StepResult) -> None:
        """The whole step, if it went well."""
        title = f"[{result.number}/{self._count}] {result.title}"
        verdict = "" if result.is_ok else self._red("   FAILED")
        time = f"{result.seconds:5.2f} s   limit {result.limit_s:g} s"
        self._print(f"{self._bold(title)}{' ' * (self._title_width - len(title))}{time}{verdict}")
        self._print(*(f"{_INDENT}{line}" for line in result.lines))
        if not result.is_ok:
            self._print(f"        expected  {result.expected}", f"        seen      {result.seen}")

    def tell_files(self, stage: Stage) -> None:
        """Where to look after a failure."""
        self._print(f"        files     {stage.root}  (daemon.log, kubelet.log, config/config.yaml)")

    def conclude(self, result: TourResult) -> None:
        """The verdict, and what to do next."""
        ok = sum(step.is_ok for step in result.steps)
        if not result.is_ok:
            text = f"{ok} of {len(result.steps) + result.not_run} as expected, 1 failed, {result.not_run} not run."
            code = "exit 1"
            self._print(f"{self._bold(text)}{' ' * (self._title_width + _TIME_WIDTH - len(code) - len(text))}{code}")
            return
        self._print(
            "",
            self._bold(f"{ok} of {len(result.steps)} as expected in {result.seconds:.1f} s."),
            *build_next(self._program),
        )

    def _print(self, *lines: str) -> None:
        for line in lines:
            for part in wrap(to_ascii(line), self._width):
                click.echo(part, file=self._stream, color=self._has_colour)
        self._stream.flush()

    def _bold(self, text: str) -> str:
        return click.style(text, bold=True) if self._has_colour else text

    def _red(self, text: str) -> str:
        return click.style(text, fg="red", bold=True) if self._has_colour else text


def build_next(program: str) -> Sequence[str]:
    """The commands to try after the tour; each of them exists."""
    commands = (
        (f"{program} simulate --serve", "a node to play with: edit its config, watch what happens"),
        (f"{program} plan --config my.yaml --node dgx-h100", "what a config would do, before you apply it"),
        ("kubectl apply -k manifests/base", 'on a cluster; README, "On a cluster"'),
    )
    width = max(len(command) for command, _ in commands) + 3
    return [
        f"{'Next:' if number == 0 else '':<8}{command:<{width}}{text}"
        for number, (command, text) in enumerate(commands)
    ]


def build_report(stage: Stage, result: TourResult) -> dict[str, Any]:
    """The tour for programs: what ``--json`` prints."""
    return {
        "version": nvdp.__version__,
        "node": stage.node_source.stem,
        "ok": result.is_ok,
        "seconds": round(result.seconds, 3),
        "steps": [
            {
                "number": step.number,
                "name": step.name,
                "title": step.title,
                "ok": step.is_ok,
                "seconds": round(step.seconds, 4),
                "limitSeconds": step.limit_s,
                "expected": step.expected,
                "seen": step.seen,
            }
            for step in result.steps
        ],
        "notRun": result.not_run,
        "files": str(stage.root) if stage.keeps or not result.is_ok else None,
    }


def describe_gpus(node: Node) -> str:
    """``8 x NVIDIA H100 80GB HBM3, NVSwitch``."""
    if node.platform is Platform.TEGRA:
        return "a Tegra chip with its GPU"
    products = Counter(gpu.product for gpu in node.present)
    found = [f"{count} x {product}" for product, count in products.items()]
    if any(gpu.nvswitch_links for gpu in node.present):
        found.append("NVSwitch")
    return ", ".join(found) or "no GPU"


def to_ascii(text: str) -> str:
    """For logs and terminals of any kind; what has no ASCII form is escaped."""
    return text.replace("→", "->").replace("…", "...").replace("×", "x").encode("ascii", "backslashreplace").decode()


def choose_width(stream: TextIO) -> int:
    """Columns to write in: those of the terminal, within limits; the most where nobody looks yet."""
    if not stream.isatty():
        return _MAX_WIDTH
    return min(max(shutil.get_terminal_size().columns, _MIN_WIDTH), _MAX_WIDTH)


def wrap(line: str, width: int) -> Sequence[str]:
    """As many lines of at most ``width`` characters as it takes; nothing is cut, and no path is broken.

    Columns are what two spaces or more divide. What does not fit stands below one of them, the last as a whole if it
    can.
    """
    if len(click.unstyle(line)) <= width:
        return [line]
    columns = [gap.end() for gap in _COLUMN.finditer(line)]
    hanging = len(line) - len(line.lstrip()) + 2
    indent = max((column for column in columns if column <= width * _MAX_INDENT), default=hanging)
    if columns and len(line) - columns[-1] <= width - indent:
        line = line[: columns[-1]] + line[columns[-1] :].replace(" ", _UNBROKEN)
    parts = textwrap.wrap(
        line,
        width,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )
    return [part.replace(_UNBROKEN, " ") for part in parts]

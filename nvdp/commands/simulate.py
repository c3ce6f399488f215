"""``nvdp simulate``: the guided tour, and a node to play with. No GPU, no cluster, nothing changed on the machine."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final

import click

from nvdp.errors import FormatError, HostError
from nvdp.model.duration import parse_duration
from nvdp.simulate.edits import TOUR_CONFIG, parse_shared
from nvdp.simulate.narration import Narrator, build_report
from nvdp.simulate.process import OWN_COMMAND
from nvdp.simulate.scene import Scene
from nvdp.simulate.serve import serve
from nvdp.simulate.stage import Stage
from nvdp.simulate.steps import STEPS, check_fits
from nvdp.simulate.tour import TourResult, play_tour

_NODE: Final = "dgx-h100"
_AS_EXPECTED, _NOT_AS_EXPECTED = 0, 1


@click.command()
@click.option("--node", metavar="FILE|NAME", default=_NODE, show_default=True, help="the node to simulate")
@click.option("--config", "config_file", metavar="FILE", help="a configuration of your own; it is only read")
@click.option("--step", "only", type=click.Choice([step.name for step in STEPS]), help="show this step only")
@click.option("--pace", metavar="DURATION", default="0s", help="wait between the steps, like 2s")
@click.option(
    "--slack", type=click.FloatRange(1, 100), default=1, metavar="FACTOR", help="multiply the limits: a busy machine"
)
@click.option("--json", "as_json", is_flag=True, help="one JSON object instead of the text")
@click.option("--serve", "serves", is_flag=True, help="no tour: keep the node running, and show what changes")
@click.option("--keep", metavar="DIR", help="work in this directory, which stays: sockets, configuration, logs")
@click.option("--daemon", "command", metavar="COMMAND", hidden=True, help="run this in the place of nvdp")
def simulate(
    *,
    node: str,
    config_file: str | None,
    only: str | None,
    pace: str,
    slack: float,
    as_json: bool,
    serves: bool,
    keep: str | None,
    command: str | None,
) -> int:
    """See everything happen on a simulated node, in a few seconds: the guided tour.

    The daemon is real, and so are its sockets and its configuration file; GPUs and kubelet are simulated. Exit code 0
    if every step was as expected, 1 otherwise.
    """
    pace_s = _parse_pace(pace)
    if serves and (only or as_json):
        raise click.UsageError(f"--serve plays no steps; leave out {'--step' if only else '--json'}.")
    own_config = Path(config_file) if config_file is not None else None
    text = _load(own_config) if own_config is not None else TOUR_CONFIG
    shared = None if serves else parse_shared(text, name=config_file or "the tour's configuration")
    set_up = Stage(
        node=node,
        keep=Path(keep) if keep is not None else None,
        command=shlex.split(command) if command else OWN_COMMAND,
    )
    with set_up as stage, _ending_in_order():
        if shared is None:
            own_node = Path(node) if stage.node_source == Path(node) else None
            return serve(stage, config_file=own_config, node_file=own_node)
        scene = Scene(stage, shared)
        check_fits(scene)
        result = _play(scene, only=only, pace_s=pace_s, slack=slack, as_json=as_json)
        if not result.is_ok:
            stage.keeps = True  # for whoever has to find out why
        return _AS_EXPECTED if result.is_ok else _NOT_AS_EXPECTED


def _play(scene: Scene, *, only: str | None, pace_s: float, slack: float, as_json: bool) -> TourResult:
    """Play the tour and print it."""
    narrator = Narrator(count=len(STEPS), program=find_program(sys.argv[0], os.environ.get("PATH", "")))
    scene.stage.config.write(scene.shared.text)
    scene.stage.start_daemon()
    if as_json:
        result = play_tour(scene, STEPS, only=only, pace_s=pace_s, slack=slack)
        click.echo(json.dumps(build_report(scene.stage, result), indent=2))
        return result
    narrator.introduce(scene.stage, paced=pace_s > 0)
    result = play_tour(scene, STEPS, only=only, pace_s=pace_s, slack=slack, begin=narrator.begin, end=narrator.end)
    if not result.is_ok:
        scene.stage.write_journal()
        narrator.tell_files(scene.stage)
    narrator.conclude(result)
    return result


def find_program(argv0: str, path: str) -> str:
    """How to call nvdp again from the same shell: by its name if that is found, else as it was called now."""
    if shutil.which("nvdp", path=path):
        return "nvdp"
    called = Path(argv0) if Path(argv0).name == "nvdp" else Path(sys.executable)
    shown = str(called.relative_to(Path.cwd()) if called.is_relative_to(Path.cwd()) else called)
    return shown if called.name == "nvdp" else f"{shown} -m nvdp"


def _parse_pace(text: str) -> float:
    try:
        pace = parse_duration(text)
    except FormatError as error:
        raise click.BadParameter(str(error), param_hint="--pace") from error
    if pace.is_infinite:
        raise click.BadParameter("the tour would never end", param_hint="--pace")
    return pace.seconds


def _load(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HostError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


@contextlib.contextmanager
def _ending_in_order() -> Iterator[None]:
    """SIGTERM and a closed terminal end the block as Ctrl-C does; what comes after it is not interrupted any more."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

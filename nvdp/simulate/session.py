"""One call of ``nvdp simulate``: the stage is set up, something is played on it, and all of it is taken away again."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

import click
import msgspec

from nvdp.errors import HostError
from nvdp.simulate.edits import TOUR_CONFIG, parse_shared
from nvdp.simulate.narration import Narrator, build_report
from nvdp.simulate.process import OWN_COMMAND, compile_package
from nvdp.simulate.scene import Scene
from nvdp.simulate.serve import serve
from nvdp.simulate.stage import Stage
from nvdp.simulate.steps import STEPS, check_fits
from nvdp.simulate.tour import TourResult, play_tour

_AS_EXPECTED, _NOT_AS_EXPECTED = 0, 1
_AGAIN_S = 1.0


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Where to play: a node file or its name, a configuration, a directory that stays, and what runs as ``nvdp``."""

    node: str
    config_file: Path | None = None
    keep: Path | None = None
    command: Sequence[str] = ()

    def build_stage(self) -> Stage:
        return Stage(node=self.node, keep=self.keep, command=self.command or OWN_COMMAND)


def run_tour(setting: Setting, *, only: str | None, pace_s: float, slack: float, as_json: bool) -> int:
    """Play the tour and print it: 0 if all was as expected, 1 otherwise. Main thread only.

    Raises UsageError, ConfigError or HostError before anything is started.
    """
    text = _load(setting.config_file) if setting.config_file is not None else TOUR_CONFIG
    shared = parse_shared(text, name=str(setting.config_file or "the tour's configuration"))
    compile_package()
    with setting.build_stage() as stage, _ending_in_order():
        scene = Scene(stage, shared)
        check_fits(scene)
        result = _play(scene, only=only, pace_s=pace_s, slack=slack, as_json=as_json)
        if not result.is_ok:
            stage.keeps = True  # for whoever has to find out why
    return _AS_EXPECTED if result.is_ok else _NOT_AS_EXPECTED


def run_serve(setting: Setting) -> int:
    """Keep the node running until Ctrl-C; 1 if the daemon ends before. Main thread only. Raises as ``run_tour``."""
    with setting.build_stage() as stage, _ending_in_order():
        own_node = stage.node_source if stage.node_source == Path(setting.node) else None
        program = find_program(sys.argv[0], os.environ.get("PATH", ""))
        return serve(stage, config_file=setting.config_file, node_file=own_node, program=program)


def _play(scene: Scene, *, only: str | None, pace_s: float, slack: float, as_json: bool) -> TourResult:
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


def _load(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HostError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


@contextlib.contextmanager
def _ending_in_order() -> Iterator[None]:
    """SIGTERM and a closed terminal end the block as Ctrl-C does; what comes after it is not interrupted any more.

    An exception out of a signal is lost where the interpreter is just running a destructor: it is raised again until
    the block has ended.
    """
    asked: list[int] = []

    def end(number: int, _frame: FrameType | None) -> None:
        asked.append(number)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
        if asked[0] == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + asked[0])

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, end)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)

"""``nvdp simulate --serve``: a node to play with. Files are edited, pods come and go, each effect is shown."""

from __future__ import annotations

import contextlib
import datetime as dt
import queue
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click
import msgspec

import nvdp
from nvdp.errors import HostError
from nvdp.kubelet.proto import deviceplugin_v1beta1_pb2 as deviceplugin
from nvdp.nvml.simulated.nodefile import load_node
from nvdp.simulate.handed import list_cdi_names
from nvdp.simulate.kubelet import AdmissionError, Pod
from nvdp.simulate.narration import describe_gpus, to_ascii, wrap
from nvdp.simulate.stage import Stage

_CONFIG = """\
# Edit and save: nvdp follows, or says what is wrong and goes on with what it has.
version: v1
devices:
  rescanInterval: 1s   # how soon an edit of the node file is seen
sharing:
  timeSlicing:
    resources:
    - name: nvidia.com/gpu
      replicas: 4
"""
_FOR_EVER_S = 3600.0
_ADMISSION_S = 30.0
_DEFAULT_RESOURCE = "nvidia.com/gpu"
_HELP = (
    "pod NAME [COUNT] [RESOURCE]   a pod comes and asks for devices",
    "end NAME                      the pod is deleted",
    "pods                          the pods that there are, and what they have",
    "restart                       the kubelet restarts",
    "quit                          the same as Ctrl-C",
    "help                          this list",
)


class _View(msgspec.Struct, frozen=True):
    """One resource as the kubelet sees it; ``unhealthy`` counts devices by GPU."""

    capacity: int
    allocatable: int
    unhealthy: Mapping[str, int]


def serve(stage: Stage, *, config_file: Path | None, node_file: Path | None, program: str) -> int:
    """Run the node until Ctrl-C; 1 if the daemon ends before. Files of the user's own are followed where they are.

    Without one the stage's own is there to be edited. Reads commands from standard input. ``program`` is how nvdp was
    called.
    """
    if config_file is None:
        config_file = stage.root / "config.yaml"
        config_file.write_text(_CONFIG, encoding="utf-8")
    node_file = node_file or stage.node_file
    stage.start_daemon(config=config_file, node_file=node_file)
    return _Playground(stage, config_file, node_file, program).run()


class _Playground:
    def __init__(self, stage: Stage, config_file: Path, node_file: Path, program: str) -> None:
        self._stage = stage
        self._kubelet = stage.kubelet
        self._config_file = config_file
        self._node_file = node_file
        self._program = program
        self._pods: dict[str, Pod] = {}
        self._shown: dict[str, _View] = {}
        self._lines_shown = 0
        self._typed: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._commands: Mapping[str, Callable[[Sequence[str]], None]] = {
            "pod": self._add_pod,
            "end": self._end_pod,
            "pods": lambda _: _say(*(self._show_pods() or ["no pods"])),
            "restart": lambda _: self._kubelet.restart(),
            "quit": lambda _: signal.raise_signal(signal.SIGINT),
            "help": lambda _: _say(*_HELP),
        }

    def run(self) -> int:
        """Show what happens until the daemon ends, or for ever."""
        self._introduce()
        threading.Thread(target=self._read_typed, name="typed", daemon=True).start()
        while self._stage.daemon.exit_code is None:
            try:
                self._kubelet.wait_until(self._has_news, _FOR_EVER_S)
            except TimeoutError:
                continue
            self._show_log()
            self._show_changes()
            while not self._typed.empty():
                self._obey(self._typed.get())
        self._show_log()
        _say(f"the daemon ended with {self._stage.daemon.exit_code}")
        return 1

    def _introduce(self) -> None:
        port, run_dir = self._stage.port, self._stage.run_dir
        script = self._stage.write_mps_script(config=self._config_file, node_file=self._node_file)
        rows = {
            "node": f"{describe_gpus(self._stage.node)}",
            "config": f"{self._config_file}    edit and save it: how GPUs are shared",
            "node file": f"{self._node_file}    edit and save it: lost: [3] loses a GPU",
            "log": f"{self._stage.root / 'daemon.log'}",
            "ask": f"{self._program} status --run-dir {run_dir}    what there is, and what is wrong with it",
            "order": f"{self._program} pause --run-dir {run_dir}    also resume, and health clear 0",
            "mps": f"{script}    in another window: control daemons for sharing.mps, without GPU",
            "probes": f"http://127.0.0.1:{port}/readyz   http://127.0.0.1:{port}/metrics",
            "type": _HELP[0],
            **{" " * number: line for number, line in enumerate(_HELP[1:], 1)},
        }
        ending = "Ctrl-C ends it." if self._stage.keeps else "Ctrl-C ends it and removes its files."
        click.echo(f"nvdp {nvdp.__version__}: a simulated node to play with. {ending}\n")
        for name, text in rows.items():
            _print(f"  {name.strip():<11}{text}")
        click.echo()

    def _read_typed(self) -> None:
        # Unbuffered: a thread that waits in sys.stdin holds a lock which the interpreter wants at its end.
        with open(0, "rb", buffering=0, closefd=False) as keyboard:
            for line in keyboard:
                self._typed.put(line.decode("utf-8", "replace"))

    def _has_news(self) -> bool:
        return (
            not self._typed.empty()
            or self._views() != self._shown
            or len(self._stage.daemon.read_log()) > self._lines_shown
            or self._stage.daemon.exit_code is not None
        )

    def _views(self) -> dict[str, _View]:
        amounts = self._kubelet.node_status()
        views = {}
        for resource, amount in amounts.items():
            states = self._kubelet.devices(resource)
            unhealthy = Counter(
                device.partition("::")[0] for device, state in states.items() if state.health != "Healthy"
            )
            views[resource] = _View(amount.capacity, amount.allocatable, dict(unhealthy))
        return views

    def _show_changes(self) -> None:
        """One line for each resource that is not as it was shown last."""
        views = self._views()
        for resource, view in views.items():
            before = self._shown.get(resource, _View(0, 0, {}))
            if view == before:
                continue
            names = self._name_gpus()
            ailing = ", ".join(sorted(f"{names.get(uuid, uuid)} ({count})" for uuid, count in view.unhealthy.items()))
            _say(
                f"{resource}:  allocatable {_change(before.allocatable, view.allocatable)}"
                f"   capacity {_change(before.capacity, view.capacity)}" + (f"   Unhealthy: {ailing}" if ailing else "")
            )
        self._shown = views

    def _show_log(self) -> None:
        lines = self._stage.daemon.read_log()
        for line in lines[self._lines_shown :]:
            _say(f"| {line}")
        self._lines_shown = len(lines)

    def _obey(self, line: str) -> None:
        word, *rest = line.split() or [""]
        if not word:
            return
        if word not in self._commands:
            _say(f"{word}: no such command; type help")
            return
        try:
            self._commands[word](rest)
        except (AdmissionError, LookupError, ValueError, TimeoutError) as error:
            _say(str(error))

    def _add_pod(self, words: Sequence[str]) -> None:
        name, count, resource = [*words, *("", "1", _DEFAULT_RESOURCE)[len(words) :]][:3]
        if not name or not count.isdecimal() or name in self._pods:
            raise ValueError(f"pod {name}: there is one of that name" if name in self._pods else _HELP[0])
        offered = sorted(self._kubelet.node_status())
        if resource not in offered:
            raise ValueError(f"pod {name}: the node has no {resource}; there is {', '.join(offered) or 'nothing'}")
        pod, admission = self._kubelet.submit(name, {"main": {resource: int(count)}})
        try:
            admission.result(_ADMISSION_S)
        finally:
            if pod.active:  # also one whose container may not start: it has its devices until it is deleted
                self._pods[name] = pod
        _say(f"pod {name} has {', '.join(sorted(pod.ids(resource)))}", *_describe(pod.response(resource)))

    def _end_pod(self, words: Sequence[str]) -> None:
        if len(words) != 1 or words[0] not in self._pods:
            raise ValueError(f"no such pod; there are {', '.join(self._pods) or 'none'}")
        self._kubelet.delete(self._pods.pop(words[0]))
        _say(f"pod {words[0]} is gone")

    def _show_pods(self) -> list[str]:
        return [
            f"pod {name} has {', '.join(sorted(pod.ids(resource)))}  ({resource})"
            for name, pod in self._pods.items()
            for resource in sorted({resource for _, resource in pod.allocations})
        ]

    def _name_gpus(self) -> Mapping[str, str]:
        """``GPU 3`` by UUID, as the node file is now."""
        with contextlib.suppress(HostError):  # half edited; the daemon's log says what is wrong
            self._stage.node = load_node(str(self._node_file))
        return {gpu.uuid: f"GPU {index}" for index, gpu in enumerate(self._stage.node.present)}


def _change(before: int, after: int) -> str:
    return f"{before} -> {after}" if before != after else f"{after}"


def _describe(response: deviceplugin.ContainerAllocateResponse) -> Sequence[str]:
    return [
        *(f"  {name}={value}" for name, value in sorted(response.envs.items())),
        *(f"  mount {mount.container_path}" for mount in response.mounts),
        *(f"  device {device.container_path}" for device in response.devices),
        *(f"  CDI {name}" for name in list_cdi_names(response)),
    ]


def _say(*lines: str) -> None:
    stamp = dt.datetime.now().astimezone().strftime("%H:%M:%S")
    for line in lines:
        _print(f"{stamp}  {line}")
    sys.stdout.flush()


def _print(line: str) -> None:
    """One line in a file, as many as it takes on a terminal."""
    text = to_ascii(line)
    lines = wrap(text, shutil.get_terminal_size().columns) if sys.stdout.isatty() else [text]
    click.echo("\n".join(lines))

"""A node on which steps come true: its machine, its kubelet with pods, its ConfigMap, and the daemon between them."""

from __future__ import annotations

import contextlib
import signal
import time
from concurrent.futures import Future, wait
from pathlib import Path

import psutil

from nvdp.errors import HostError
from nvdp.http.control import load_status, send_order
from nvdp.http.routes import CLEAR_PATH, DEVICE, PAUSE_PATH, RESUME_PATH
from nvdp.model.orders import Carried
from nvdp.simulate.kubelet import Kubelet, Pod
from tests.daemon.node import ConfigMap
from tests.daemon.process import LIMIT_S, Daemon, check_line, wait_until
from tests.daemon.storms.files import NAMES, File
from tests.daemon.storms.machines import Machine
from tests.daemon.storms.world import CARDS, Step, World

_SOON_S = 0.2  # in a storm an order's answer is not waited for
_CONTINUED_AFTER_S = 0.02


class Node:
    """Steps are methods. ``file`` is the newest good one, ``is_paused`` is by command; both are known in calms only."""

    def __init__(self, root: Path, kubelet: Kubelet, machine: Machine, config_map: ConfigMap) -> None:
        self._root, self._config_map = root, config_map
        self._are_holders_hidden = False
        self._admitted = 0
        self.kubelet, self.machine = kubelet, machine
        self.world = World()
        self.file = File(replicas=(2,) * len(CARDS))
        self._is_file_good = True
        self._is_file_new = False
        self.is_paused = False
        self.pods: list[tuple[Pod, Future[None]]] = []
        self.seen: set[int] = set()  # the cards that the daemon knows, or one before it
        self.daemons: list[Daemon] = []

    @property
    def daemon(self) -> Daemon:
        return self.daemons[-1]

    def begin(self) -> None:
        self.machine.show(self.world)
        self._config_map.publish(self.file.build(self.machine.uuids))
        self._start()

    def do(self, step: Step) -> None:
        """Let it happen, and see that kubelet and daemon are still there."""
        if self.world.apply(step):
            self.machine.show(self.world)
        else:
            getattr(self, step.name)(*step.args)
        self.kubelet.assert_alive()
        assert self.daemon.running, f"nvdp ended with {self.daemon.process.returncode}"

    def calm_down(self, stands: tuple[Step, ...], *, file: File | None, ended: float, is_paused: bool) -> None:
        """All is well again but for what ``stands``; some pods end, and no admission is under way any more.

        ``file`` is published. Without one what was last good is in force, if the daemon had the time to read it.
        """
        if file is not None or (self._is_file_new and not self._is_file_good):
            self.edit(file or self.file)
        self._is_file_new = False
        self.world.heal()
        for step in stands:
            assert self.world.apply(step)
        self.machine.show(self.world)
        self.find_api_server()
        if self._are_holders_hidden:
            self.kubelet.serve_pod_resources()
            self._are_holders_hidden = False
        for _ in range(int(ended * len(self.pods))):
            self.end_pod(0.0)
        wait_until(self._can_be_asked, what="the control socket")
        carried = self._order(PAUSE_PATH if is_paused else RESUME_PATH, timeout_s=LIMIT_S)
        if is_paused:
            assert carried.done, carried.text
            assert not self.find_children()
        self.is_paused = is_paused
        wait([admission for _, admission in self.pods], LIMIT_S)

    def end(self) -> None:
        """The daemon ends well, and no child outlives it."""
        if self.daemon.running:
            ended = self.daemon.stop()
            assert (ended.code, ended.seconds < 5) == (0, True), ended
        self.check_logs()
        wait_until(lambda: not self.find_children(), what="the end of all children")

    def kill(self) -> None:
        for daemon in self.daemons:
            daemon.kill()

    def check_logs(self) -> None:
        for daemon in self.daemons:
            for line in daemon.log:
                check_line(line)
            assert not daemon.log.of("ServiceRestarted"), daemon.log.of("ServiceRestarted")
            assert not daemon.log.texts, daemon.log.texts

    def find_children(self) -> list[psutil.Process]:
        """All NVML children that look at this machine, whoever started them."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                if "nvdp.nvml.child" in words and self.machine.trace in words:
                    found.append(process)
        return found

    # --- steps: the daemon and its children

    def kill_child(self) -> None:
        self._signal_children(signal.SIGKILL)

    def stop_child(self, is_continued: bool) -> None:  # noqa: FBT001 - drawn
        """Whoever stopped it lets it go on a little later, or never."""
        self._signal_children(signal.SIGSTOP)
        if is_continued:
            time.sleep(_CONTINUED_AFTER_S)
            self._signal_children(signal.SIGCONT)

    def hurry(self) -> None:
        self._await_handlers()
        self.daemon.look()

    def restart_daemon(self, name: str) -> None:
        self._await_handlers()
        self.daemon.send(signal.Signals[name])
        ended = self.daemon.wait()
        assert name == "SIGKILL" or (ended.code, ended.seconds < 5) == (0, True), ended
        self._start()

    def pause(self) -> None:
        self._order_soon(PAUSE_PATH)

    def resume(self) -> None:
        self._order_soon(RESUME_PATH)

    def clear(self, card: int) -> None:
        self._order_soon(CLEAR_PATH, **{DEVICE: self.machine.uuids[card]})

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)  # what happens meanwhile is not waited for

    def _start(self) -> None:
        self.daemons.append(
            Daemon(
                *("--config-file", self._config_map.file, "--kubelet-root", self.kubelet.directory.parent),
                *("--state-dir", self._root / "state", "--run-dir", self._root / "run", "--log-format", "json"),
                *self.machine.flags,
                environment=self.machine.environment,
            )
        )

    def _await_handlers(self) -> None:
        self.daemon.log.wait_for("Starting")  # before, signals are the interpreter's

    def _signal_children(self, number: signal.Signals) -> None:
        for child in self.daemon.children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.send_signal(number)

    def _order_soon(self, path: str, **query: str) -> None:
        with contextlib.suppress(HostError):  # the daemon may just be starting
            self._order(path, timeout_s=_SOON_S, **query)

    def _order(self, path: str, *, timeout_s: float, **query: str) -> Carried:
        return send_order(self._root / "run", path, query, timeout_s=timeout_s)

    def _can_be_asked(self) -> bool:
        with contextlib.suppress(HostError):
            load_status(self._root / "run", timeout_s=LIMIT_S)
            return True
        return False

    # --- steps: the file

    def edit(self, file: File) -> None:
        self.file = file
        self._is_file_good = self._is_file_new = True
        self._config_map.publish(file.build(self.machine.uuids))

    def break_file(self, text: str) -> None:
        self._is_file_good = False
        self._config_map.publish(text)

    def hide_file(self) -> None:
        """The ConfigMap is there, and the file is not in it."""
        self._is_file_good = False
        self._config_map.file.unlink(missing_ok=True)

    # --- steps: the kubelet and its pods

    def restart_kubelet(self, gap_s: float) -> None:
        self.kubelet.restart(gap_s=gap_s)
        self._are_holders_hidden = False

    def cut_stream(self, part: float) -> None:
        with contextlib.suppress(LookupError):
            self.kubelet.close_stream(_pick(NAMES, part))

    def delete_sockets(self) -> None:
        for path in self.kubelet.directory.glob("nvdp-*.sock"):
            path.unlink(missing_ok=True)

    def hide_holders(self) -> None:
        """No PodResources until the calm, or until the kubelet starts again."""
        self.kubelet.drop_pod_resources()
        self._are_holders_hidden = True

    def lose_api_server(self) -> None:
        """No pod comes or goes until it is found again; a kubelet that starts meanwhile knows none."""
        self.kubelet.lose_api_server()

    def find_api_server(self) -> None:
        if self.kubelet.faults.api_server_away:
            self.kubelet.find_api_server()

    def admit(self, part: float, count: int) -> None:
        if not self.kubelet.faults.api_server_away:
            self.submit(_pick(NAMES, part), count)

    def submit(self, name: str, count: int) -> Future[None]:
        """A pod arrives, and may be refused."""
        self._admitted += 1
        pod, admission = self.kubelet.submit(f"team/{self._admitted}", {"main": {name: count}})
        self.pods.append((pod, admission))
        return admission

    def end_pod(self, part: float) -> None:
        if self.pods and not self.kubelet.faults.api_server_away:
            pod, _ = self.pods.pop(int(part * len(self.pods)))
            self.kubelet.delete(pod)


def _pick(names: tuple[str, ...], part: float) -> str:
    return names[int(part * len(names))]

"""The kubelet's twin: everything a test or the tour does with it. See docs/twin.md."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Self

from nvdp.simulate.kubelet.behaviour import BEHAVIOURS
from nvdp.simulate.kubelet.faults import Faults
from nvdp.simulate.kubelet.history import History
from nvdp.simulate.kubelet.life import Life, Settings
from nvdp.simulate.kubelet.observed import Observed
from nvdp.simulate.kubelet.records import (
    DeviceState,
    NodeAmount,
    Pod,
)
from nvdp.simulate.kubelet.topology import POLICIES

KUBELET_FILES = frozenset({"DEPRECATION", "kubelet_internal_checkpoint", "kubelet.sock"})


class Kubelet(Observed):
    """A kubelet under ``root`` (a real one has /var/lib/kubelet). As a context manager it starts and stops itself.

    ``version`` is a key of BEHAVIOURS, ``topology_policy`` one of POLICIES. ``clock`` is for the 5 minutes after which
    a stopped plugin is forgotten. Any thread; methods block only where they say so. If the plugin does what would crash
    the kubelet, it stops serving, ``crashed`` tells the story, and ``wait_until``, ``assert_alive`` and leaving the
    context raise KubeletCrashedError until ``wait_for_crash`` has taken it.
    """

    def __init__(
        self,
        root: Path,
        *,
        version: str = "1.36",
        topology_policy: str = "none",
        numa_nodes: tuple[int, ...] = (0, 1),
        clock: Callable[[], float] = time.monotonic,
        dial_limit_s: float = 10.0,
        seed: int = 0,
    ) -> None:
        super().__init__(History())
        if topology_policy not in POLICIES:
            raise ValueError(f"{topology_policy}: not one of {', '.join(POLICIES)}")
        self._settings = Settings(
            root=root,
            behaviour=BEHAVIOURS[version],
            policy=topology_policy,
            numa_nodes=numa_nodes,
            clock=clock,
            dial_limit_s=dial_limit_s,
            seed=seed,
        )
        self.faults = Faults()
        self.directory = self._settings.directory
        self.socket = self._settings.socket
        self.checkpoint = self._settings.checkpoint
        self.pod_resources_socket = self._settings.pod_resources_socket
        self._life: Life | None = None
        self._pods: dict[str, Pod] = {}
        self._node: dict[str, NodeAmount] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if error is None:
            self.assert_alive()

    # --- its life

    def start(self) -> None:
        """Remove all sockets of the directory, then listen. Pods of a life before run on and are admitted again."""
        self._start(containers_running=True)

    def stop(self) -> None:
        """Stop as on TERM or KILL: streams end, files stay. Pods run on. Idempotent; waits for its threads."""
        with self._changes:
            life = self._life
        if life is None:
            return
        if not life.stopping.is_set():
            self.node_status()
        life.close()
        with self._changes:
            self._life = None
            self._history.note("stopped")

    def restart(self, *, gap_s: float = 0.0) -> None:
        """Stop and start; ``gap_s`` is how long nobody listens."""
        self.stop()
        time.sleep(gap_s)
        self.start()

    def reboot(self) -> None:
        """Stop and start as after a reboot of the node: no container runs, and each has to get its devices again."""
        self.stop()
        self._start(containers_running=False)

    def recreate_directory(self) -> None:
        """Stop, remove the directory with all that is in it, and start with a new one."""
        self.stop()
        shutil.rmtree(self.directory)
        self.start()

    @property
    def running(self) -> bool:
        with self._changes:
            return self._life is not None and not self._life.stopping.is_set()

    # --- what it saw

    def devices(self, resource: str) -> Mapping[str, DeviceState]:
        """Each device as it counts now: a stopped plugin's are all Unhealthy. Empty while the kubelet is down."""
        with self._changes:
            return {} if self._life is None else self._life.devices.states(resource)

    def open_streams(self, resource: str) -> int:
        with self._changes:
            return 0 if self._life is None else self._life.registry.open_streams(resource)

    # --- the node

    def node_status(self) -> Mapping[str, NodeAmount]:
        """The Node's extended resources after an update that is made now; while the kubelet is down, as they were.

        A resource that was forgotten stays, with 0.
        """
        with self._changes:
            if self._life is not None:
                amounts, dropped = self._life.devices.node_amounts()
                self._node.update(amounts)
                self._node.update(dict.fromkeys(dropped, NodeAmount(0, 0)))
            return dict(self._node)

    def capacity(self, resource: str) -> int:
        return self.node_status().get(resource, NodeAmount(0, 0)).capacity

    def allocatable(self, resource: str) -> int:
        return self.node_status().get(resource, NodeAmount(0, 0)).allocatable

    # --- pods

    def admit(
        self,
        pod: str,
        containers: Mapping[str, Mapping[str, int]],
        *,
        init_containers: Mapping[str, Mapping[str, int]] | None = None,
        timeout_s: float = 30.0,
    ) -> Pod:
        """A pod arrives, past the scheduler: wait until it runs. Raise AdmissionError with the kubelet's text.

        ``pod`` is ``name`` or ``namespace/name``; limits are container to resource to number.
        """
        admitted, waiting = self.submit(pod, containers, init_containers=init_containers)
        waiting.result(timeout_s)
        return admitted

    def submit(
        self,
        pod: str,
        containers: Mapping[str, Mapping[str, int]],
        *,
        init_containers: Mapping[str, Mapping[str, int]] | None = None,
    ) -> tuple[Pod, Future[None]]:
        """The same without waiting: the future ends with the admission. Pods are admitted one after the other."""
        namespace, _, name = pod.rpartition("/")
        arrived = Pod(namespace or "default", name, str(uuid.uuid4()), containers, init_containers or {})
        self.assert_alive()
        with self._changes:
            life = self._require_life()
            self._pods[arrived.uid] = arrived
            self._changes.notify_all()
        return arrived, life.submit(arrived)

    def delete(self, pod: Pod) -> None:
        """The pod goes. Its devices come back with the next look at what is taken, as in a real kubelet."""
        with self._changes:
            pod.deleted = True
            self._pods.pop(pod.uid, None)
            self._history.note(f"pod {pod.namespace}/{pod.name} deleted")

    def finish(self, pod: Pod) -> None:
        """The pod's containers end well; the pod stays until it is deleted."""
        with self._changes:
            pod.phase = "Succeeded"
            self._history.note(f"pod {pod.namespace}/{pod.name} Succeeded")

    def restart_container(self, pod: Pod, container: str) -> None:
        """A container starts again, with the answer that is kept. Blocks as long as the plugin, if it is asked."""
        with self._changes:
            life = self._require_life()
            pod.restarted.add(container)
        life.start_container(pod, container)

    @property
    def readmissions_pending(self) -> int:
        """Pods that the kubelet has not yet admitted again since it started."""
        with self._changes:
            return 0 if self._life is None else self._life.readmissions_pending

    # --- what goes wrong; more in ``faults``

    def close_stream(self, resource: str) -> None:
        """End the newest list stream of ``resource`` from the kubelet's side."""
        with self._changes:
            client = self._require_life().registry.find_client(resource)
        if client is None:
            raise LookupError(f"no plugin serves {resource}")
        client.drop_stream()

    def drop_pod_resources(self, *, remove: bool = True) -> None:
        """No more PodResources, until ``serve_pod_resources`` or a restart; without ``remove`` the socket stays."""
        self._require_life().drop_pod_resources(remove=remove)

    def serve_pod_resources(self) -> None:
        """PodResources again, on a new socket."""
        self._require_life().serve_pod_resources()

    def lose_api_server(self) -> None:
        """A kubelet that starts from now on knows no pod, and lists none, until ``find_api_server``. Pods run on."""
        self.faults.api_server_away = True

    def find_api_server(self) -> None:
        """The API server is back, and names the pods of this node."""
        self.faults.api_server_away = False
        self._require_life().hear_of_pods()

    def corrupt_checkpoint(self) -> None:
        """Damage the file; the kubelet notices at its next start."""
        self.checkpoint.write_bytes(self.checkpoint.read_bytes()[:-20] + b"\0" * 20)

    def wait_for_crash(self, timeout_s: float = 5.0) -> str:
        """Wait for a crash and take its story: the kubelet may be started again. Raise TimeoutError."""
        with self._changes:
            if not self._changes.wait_for(lambda: self.crashed is not None, timeout_s):
                raise TimeoutError(f"no crash within {timeout_s} s")
            story, self.crashed = self.crashed, None
        assert story is not None
        self.stop()
        return story

    def _start(self, *, containers_running: bool) -> None:
        with self._changes:
            if self._life is not None:
                raise RuntimeError("the kubelet runs already")
        life = Life(
            self._settings,
            history=self._history,
            faults=self.faults,
            pods=self._pods,
            containers_running=containers_running,
            on_crash=self._crash,
        )
        with self._changes:
            self._life = life
            if not life.had_checkpoint:
                self._node = dict.fromkeys(self._node, NodeAmount(0, 0))
            self._history.note("started")

    def _require_life(self) -> Life:
        if self._life is None:
            raise RuntimeError("the kubelet is down")
        return self._life

    def _crash(self, story: str) -> None:
        with self._changes:
            self.crashed = story
            self._history.note(f"CRASH {story}")

"""One kubelet process's life, from start to stop or crash: its servers, its state, its single admission thread."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from nvdp.simulate.kubelet.admission import Admission, PanicError
from nvdp.simulate.kubelet.behaviour import Behaviour
from nvdp.simulate.kubelet.checkpoint import Checkpoint, CheckpointDamagedError, read_checkpoint
from nvdp.simulate.kubelet.devices import DeviceManager
from nvdp.simulate.kubelet.faults import Faults
from nvdp.simulate.kubelet.history import History
from nvdp.simulate.kubelet.plugin import PluginError
from nvdp.simulate.kubelet.podresources import PodResources
from nvdp.simulate.kubelet.records import AdmissionError, KubeletCrashedError, Pod
from nvdp.simulate.kubelet.registry import Registry
from nvdp.simulate.kubelet.sockets import UnixServer, remove_sockets


class Settings:
    """What stays the same over restarts. ``dial_limit_s`` is 10 in a real kubelet."""

    def __init__(
        self,
        *,
        root: Path,
        behaviour: Behaviour,
        policy: str,
        numa_nodes: tuple[int, ...],
        clock: Callable[[], float],
        dial_limit_s: float,
        seed: int,
    ) -> None:
        self.root = root
        self.directory = root / "device-plugins"
        self.socket = self.directory / "kubelet.sock"
        self.checkpoint = self.directory / "kubelet_internal_checkpoint"
        self.pod_resources_socket = root / "pod-resources" / "kubelet.sock"
        self.behaviour = behaviour
        self.policy = policy
        self.numa_nodes = numa_nodes
        self.clock = clock
        self.dial_limit_s = dial_limit_s
        self.rng = random.Random(seed)  # noqa: S311 - Go's map order, not a secret


class Life:
    """Starts with its making: reads the checkpoint, removes all sockets, then listens.

    ``pods`` is the node's, owned by the caller; pods that were active before are admitted again as soon as a list has
    come for each of their resources. ``on_crash`` is told the story, once, from the thread that crashed.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        history: History,
        faults: Faults,
        pods: dict[str, Pod],
        containers_running: bool,
        on_crash: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._history = history
        self._faults = faults
        self._pods = pods
        self._containers_running = containers_running
        self._on_crash = on_crash
        self._knows_pods = not faults.api_server_away
        self._closing = threading.Lock()
        self._closed = False
        self.stopping = threading.Event()
        with history.changes:
            self._to_readmit = {uid for uid, pod in pods.items() if pod.active}
            self._readmitting: set[str] = set()
        settings.directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        settings.pod_resources_socket.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        (settings.directory / "DEPRECATION").touch()
        self.had_checkpoint = settings.checkpoint.exists()
        self.devices = DeviceManager(
            history=history,
            behaviour=settings.behaviour,
            clock=settings.clock,
            active_pods=self._find_active_pods,
            checkpoint=self._load_checkpoint(),
            checkpoint_path=settings.checkpoint,
        )
        remove_sockets(settings.directory)
        self.registry = Registry(
            directory=settings.directory,
            devices=self.devices,
            history=history,
            behaviour=settings.behaviour,
            faults=faults,
            dial_limit_s=settings.dial_limit_s,
            on_list=self._admit_again,
        )
        self._admission = Admission(
            devices=self.devices,
            history=history,
            behaviour=settings.behaviour,
            faults=faults,
            policy=settings.policy,
            numa_nodes=settings.numa_nodes,
            rng=settings.rng,
            stopping=self.stopping,
        )
        self._admitter = ThreadPoolExecutor(1, thread_name_prefix="kubelet-admission")
        self._pod_resources: UnixServer | None = None
        self.serve_pod_resources()
        self._registration = UnixServer(
            settings.socket, link=settings.root / ".dp", services=[self.registry.build_service()]
        )

    def close(self) -> None:
        """End like a process that gets TERM: everything stops where it is, and no file changes. Idempotent."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self.stopping.set()
            self._registration.close()
            self.drop_pod_resources(remove=False)
            self.registry.close()
            self._admitter.shutdown(cancel_futures=True)

    def serve_pod_resources(self) -> None:
        """Listen on the pod-resources socket, which is a new one."""
        socket = self._settings.pod_resources_socket
        socket.unlink(missing_ok=True)
        service = PodResources(
            devices=self.devices,
            history=self._history,
            behaviour=self._settings.behaviour,
            faults=self._faults,
            pods=self._known_pods,
        )
        self._pod_resources = UnixServer(socket, link=self._settings.root / ".pr", services=[service.build_service()])

    def drop_pod_resources(self, *, remove: bool) -> None:
        """Stop answering there; ``remove`` takes the socket file away too."""
        if self._pod_resources is not None:
            self._pod_resources.close()
            self._pod_resources = None
        if remove:
            self._settings.pod_resources_socket.unlink(missing_ok=True)

    def submit(self, pod: Pod) -> Future[None]:
        """Admit a new pod after those that wait. The future raises AdmissionError or KubeletCrashedError."""
        return self._admitter.submit(self._admit, pod, running=False)

    def start_container(self, pod: Pod, container: str) -> None:
        """Start a container again, in the caller's thread. Raise AdmissionError or KubeletCrashedError."""
        self._start_container(pod, container)
        if pod.phase == "Pending":
            self._set_phase(pod, "Running", None)

    def _start_container(self, pod: Pod, container: str) -> None:
        try:
            self._admission.start_container(pod, container)
        except PluginError as error:
            raise AdmissionError(str(error), reason="CreateContainerConfigError") from error
        except PanicError as error:
            raise self._crash(error) from error

    @property
    def readmissions_pending(self) -> int:
        """Pods of the life before that are not admitted again yet, or are being so just now."""
        with self._history.changes:
            return len(self._pods.keys() & (self._to_readmit | self._readmitting))

    def _admit(self, pod: Pod, *, running: bool) -> None:
        try:
            self._admission.admit(pod, running=running)
        except PanicError as error:
            raise self._crash(error) from error
        except (AdmissionError, PluginError) as error:
            if self.stopping.is_set():
                return  # the pod is still to be admitted, by the next life
            refusal = error if isinstance(error, AdmissionError) else AdmissionError(str(error))
            self._set_phase(pod, "Failed", refusal)
            raise refusal from error
        if not running:
            self._start_containers(pod)
        self._set_phase(pod, "Running", None)

    def _start_containers(self, pod: Pod) -> None:
        """A start that fails leaves the pod waiting with what it has; it is tried again (``start_container``)."""
        try:
            for container in pod.all_containers:
                self._start_container(pod, container)
        except AdmissionError as error:
            if not self.stopping.is_set():
                self._set_phase(pod, "Pending", error)
            raise

    def _set_phase(self, pod: Pod, phase: str, error: AdmissionError | None) -> None:
        with self._history.changes:
            pod.phase = phase
            pod.error = error
            self._to_readmit.discard(pod.uid)
            self._readmitting.discard(pod.uid)
            self._history.note(f"pod {pod.namespace}/{pod.name} {phase}: {error or 'admitted'}")

    def hear_of_pods(self) -> None:
        """The API server tells which pods there are."""
        with self._history.changes:
            self._knows_pods = True
        self._admit_again()

    def _admit_again(self) -> None:
        """Admit each pod of the life before once a list has come for all that it has, and the API server named it."""
        with self._history.changes:
            if self.stopping.is_set() or not self._knows_pods:
                return
            self._to_readmit &= self._pods.keys()
            due = [
                self._pods[uid]
                for uid in self._to_readmit
                if all(
                    self.devices.is_listed(resource) or not self.devices.is_plugin_resource(resource)
                    for limits in self._pods[uid].all_containers.values()
                    for resource in limits
                )
            ]
            for pod in due:
                running = self._containers_running and pod.phase == "Running"
                self._to_readmit.discard(pod.uid)
                self._readmitting.add(pod.uid)
                self._admitter.submit(self._admit, pod, running=running)

    def _known_pods(self) -> list[Pod]:
        """A kubelet that starts learns of its pods one by one; until then PodResources does not name them."""
        with self._history.changes:
            return [pod for uid, pod in self._pods.items() if uid not in self._to_readmit]

    def _find_active_pods(self) -> set[str] | None:
        """None before the API server named any: then nothing is taken from those of the checkpoint."""
        with self._history.changes:
            return {uid for uid, pod in self._pods.items() if pod.active} if self._knows_pods else None

    def _load_checkpoint(self) -> Checkpoint | None:
        try:
            return read_checkpoint(self._settings.checkpoint)
        except CheckpointDamagedError as error:
            self._history.note(f"checkpoint ignored: {error}")
            return None

    def _crash(self, cause: PanicError) -> KubeletCrashedError:
        story = str(cause)
        self._on_crash(story)
        threading.Thread(target=self.close, name="kubelet-crash", daemon=True).start()
        return KubeletCrashedError(story)

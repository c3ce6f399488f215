"""Pods as users write them, on the Node of a real kubelet."""

from __future__ import annotations

from typing import Any

from nvdp.kubelet.podresources import PodResourcesClient
from tests.containers.cri import Container, Runtime
from tests.containers.image import IMAGE
from tests.daemon.node import GPU
from tests.daemon.process import wait_until
from tests.real.cluster import NODE
from tests.real.controlplane import ControlPlane
from tests.real.kubelet import RealKubelet

LIMIT_S = 60.0
_GONE_S = 150.0  # a kubelet that missed the moment removes containers once a minute, and the pod after them


class Pods:
    """Made, waited for and looked into; all of them in the namespace default, with a container that sleeps."""

    def __init__(self, control: ControlPlane, kubelet: RealKubelet, runtime: Runtime) -> None:
        self._control = control
        self._kubelet = kubelet
        self._runtime = runtime

    def create(self, *names: str, count: int = 1, resource: str = GPU) -> None:
        self._control.create(*(build_pod(name, {resource: count}) for name in names))

    def delete(self, *names: str) -> None:
        """Blocks until they are gone."""
        self._control.kubectl("delete", "pod", *names, "--wait=false")
        wait_until(lambda: not self._list_names() & {*names}, _GONE_S, what=f"{names} are gone")

    def wait_running(self, *names: str) -> list[Container]:
        """Their containers, once they run."""
        wait_until(lambda: all(self.phase(name) == "Running" for name in names), LIMIT_S, what=f"{names} run")
        return [self.find_container(name) for name in names]

    def wait_unschedulable(self, name: str) -> str:
        """What the scheduler says of it."""

        def look() -> str:
            conditions = self.status(name).get("conditions", [])
            return next((one["message"] for one in conditions if one.get("reason") == "Unschedulable"), "")

        found: str = wait_until(look, LIMIT_S, what=f"{name} is Unschedulable")
        assert self.phase(name) == "Pending"
        return found

    def _list_names(self) -> set[str]:
        return {pod["metadata"]["name"] for pod in self._control.get("pods")["items"]}

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._control.get("pod", name)["status"]
        return found

    def phase(self, name: str) -> str:
        return str(self.status(name).get("phase"))

    def find_container(self, name: str) -> Container:
        (status,) = self.status(name)["containerStatuses"]
        return Container(self._runtime, status["containerID"].removeprefix("containerd://"))

    def read_visible(self, name: str) -> set[str]:
        """The GPUs that its container was told to use."""
        return set(self.find_container(name).environment()["NVIDIA_VISIBLE_DEVICES"].split(","))

    def list_held(self) -> dict[str, set[str]]:
        """The IDs by pod, as the kubelet's PodResources says."""
        client = PodResourcesClient(self._kubelet.root / "pod-resources/kubelet.sock")
        try:
            held: dict[str, set[str]] = {}
            for holding in client.list(LIMIT_S):
                held.setdefault(holding.pod, set()).add(holding.device_id)
            return held
        finally:
            client.close()

    def read_resources(self, resource: str = GPU) -> tuple[int, int]:
        """Capacity and allocatable, as the Node has them."""
        status = self._control.get("node", NODE)["status"]
        capacity, allocatable = (int(status[key].get(resource, -1)) for key in ("capacity", "allocatable"))
        return capacity, allocatable

    def wait_resources(self, capacity: int, allocatable: int, *, resource: str = GPU) -> None:
        seen: list[tuple[int, int]] = []

        def look() -> bool:
            seen.append(self.read_resources(resource))
            return seen[-1] == (capacity, allocatable)

        try:
            wait_until(look, LIMIT_S, what=f"{resource} {capacity}, of which {allocatable} can be had")
        except AssertionError as error:
            raise AssertionError(f"{error}; last {seen[-1:]}") from error


def build_pod(name: str, limits: dict[str, int], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "hostNetwork": True,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": "main",
                    "image": IMAGE,
                    "imagePullPolicy": "Never",
                    "command": ["/bin/sleep", "100000"],
                    "resources": {"limits": limits},
                }
            ],
            **spec,
        },
    }

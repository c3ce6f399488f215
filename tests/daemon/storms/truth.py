"""What is true of a node in a calm, by its world, its files and its pods, against what the kubelet sees."""

from __future__ import annotations

from nvdp.simulate.kubelet import Pod
from tests.daemon.storms.files import NAMES, Key, find_key, sort_ids
from tests.daemon.storms.node import Node
from tests.daemon.storms.world import CARDS


class Truth:
    """Nothing of it is asked of the daemon. ``calm_s`` is how long it may take until the kubelet sees it."""

    def __init__(self, node: Node, *, calm_s: float) -> None:
        self._node = node
        self.calm_s = calm_s

    @property
    def ailing(self) -> set[int]:
        """The cards that no pod may be given, whatever the file says of them."""
        return self._node.world.ailing if self.is_driver_used else {*CARDS}

    @property
    def is_driver_used(self) -> bool:
        """Whether it is there and not let go of."""
        return self._node.world.is_driver_well and not self._node.is_paused and not self._node.file.is_paused

    def wait_seen(self, *, is_long: bool) -> None:
        """Wait until the kubelet sees what is true."""
        mistakes = [""]

        def is_true() -> bool:
            mistakes[0] = self._find_mistake(is_long=is_long)
            return not mistakes[0]

        try:
            self._node.kubelet.wait_until(is_true, self.calm_s)
        except TimeoutError as error:
            raise AssertionError(f"not true within {self.calm_s} s: {mistakes[0]}") from error
        # Of an excluded card nobody can tell whether it has been seen.
        self._node.seen |= {*CARDS} - self._unseen - self._node.file.excluded

    def list_healthy(self) -> set[tuple[str, str]]:
        """What pods may be given, by resource and ID."""
        return {(name, device) for name in NAMES for device, healthy in self._list(name).items() if healthy}

    def find_held(self) -> dict[Key, set[str]]:
        """What the pods that run hold, by card and form."""
        held: dict[Key, set[str]] = {}
        for pod, _ in self._node.pods:
            for _, name in pod.allocations:
                for device in pod.ids(name):
                    held.setdefault(find_key(name, device), set()).add(device)
        return held

    @property
    def _unseen(self) -> set[int]:
        return self._node.world.unseen if self.is_driver_used else {*CARDS}

    @property
    def _is_new_to_node(self) -> bool:
        """A daemon that has not met a driver yet has nothing to list, not even what pods hold."""
        return not self._node.seen and not self.is_driver_used

    def _list(self, name: str) -> dict[str, bool]:
        """What is listed now. The kubelet remembers for a while what nobody lists any more."""
        if not self._node.kubelet.open_streams(name):
            return {}
        return {device: state.health == "Healthy" for device, state in self._node.kubelet.devices(name).items()}

    def _is_served(self, pod: Pod) -> bool:
        """Whether what the pod asks for is, or will be, on offer.

        The twin has a pod of old wait for a list. None comes if a daemon registered in vain while it stopped, and the
        next one has no such resource.
        """
        offered = {self._node.file.find_form(card)[0] for card in {*CARDS} - self._node.file.excluded}
        asked = {name for limits in pod.all_containers.values() for name in limits}
        return all(name in offered or self._node.kubelet.open_streams(name) for name in asked)

    def _find_mistake(self, *, is_long: bool) -> str:
        """What the kubelet sees and is not true. Runs with its lock held. Pods that failed are replaced, as ever."""
        node = self._node
        for pod, admission in [*node.pods]:
            if pod.phase == "Failed" or (pod.phase == "Pending" and not self._is_served(pod)):
                node.pods.remove((pod, admission))
                node.kubelet.delete(pod)
        if node.kubelet.readmissions_pending:
            return "pods are still to be admitted again"
        found = sort_ids({name: self._list(name) for name in NAMES})
        held = self.find_held() if found or not self._is_new_to_node else {}
        return node.file.find_mistake(
            found,
            held,
            uuids=node.machine.uuids,
            ailing=self.ailing,
            unseen=self._unseen - node.seen,
            is_long=is_long,
        )

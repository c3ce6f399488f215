"""What surrounds the daemon on its node: the machine, as a node file that tests edit, and the mounted ConfigMap."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from nvdp.simulate.kubelet import Kubelet
from tests.daemon.process import LIMIT_S
from tests.kubelet.plugin_client import PluginClient

GPU = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"
_SLOTS = 14  # of one PCI domain
FULL = os.environ.get("NVDP_CAMPAIGN") == "full"

KUBELETS = ("1.36", "1.37")
both_kubelets = pytest.mark.parametrize("version", KUBELETS)
# The driver that the daemon asks; each on one of the kubelets, so that a requirement is still shown with both.
both_libraries = pytest.mark.parametrize(("version", "library"), [("1.36", "simulated"), ("1.37", "compiled")])


def at_length(test: Callable[..., None]) -> Callable[..., None]:
    """What virtual time, planning and shorter tests show here, by the clock of a real node in ``make campaign``."""
    why = "takes its time on a real node; `make campaign` does it"
    return pytest.mark.campaign(pytest.mark.skipif(not FULL, reason=why)(test))


def on_node(**settings: dict[str, Any]) -> pytest.MarkDecorator:
    """Give a test a node of its own: arguments for the ``kubelet`` and for the ``machine``."""
    return pytest.mark.parametrize("settings", [settings], ids=["node"])


def gpu_uuid(number: int) -> str:
    """The UUID of the card in the ``number``-th slot."""
    return f"GPU-{number:08d}-0000-4000-8000-000000000000"


def pci_address(number: int) -> str:
    """The PCI address of the ``number``-th slot."""
    domain, place = divmod(number, _SLOTS)
    return f"{domain:04x}:{0x11 + 0x10 * place:02x}:00.0"


def replicas(number: int, count: int) -> set[str]:
    """All IDs of one card that is shared by ``count``."""
    return {f"{gpu_uuid(number)}::{n}" for n in range(count)}


def build_config(share: int | None = None, **blocks: Any) -> dict[str, Any]:
    """A configuration whose GPUs have ``share`` replicas each, scanned every second unless ``devices`` says otherwise.

    ``blocks`` are blocks of the file; ``timeSlicing`` adds keys to the entry's surroundings.
    """
    config: dict[str, Any] = {"version": "v1", "devices": {"rescanInterval": "1s", **blocks.pop("devices", {})}}
    time_slicing = blocks.pop("timeSlicing", {})
    if share is not None:
        resources = [{"name": GPU, "replicas": share}]
        config["sharing"] = {"timeSlicing": {**time_slicing, "resources": resources}}
    return {**config, **blocks}


def build_sliced(*entries: dict[str, Any], **blocks: Any) -> dict[str, Any]:
    """A configuration that offers some cards in two pieces under another name, as each entry says."""
    resources = [{"name": GPU, "rename": SHARED, "replicas": 2, **entry} for entry in entries]
    return build_config(sharing={"timeSlicing": {"resources": resources}}, **blocks)


class Machine:
    """A simulated machine with ``count`` cards, half of them on each of two NUMA nodes; each change is one rename.

    ``card`` has facts of all of them; a list of ``models``, ``products``, ``numa`` or ``uuid`` has one for each. Slots
    keep their PCI address, and the order of the cards in the file is that of their NVML index.
    """

    def __init__(
        self,
        path: Path,
        *,
        count: int = 4,
        models: Sequence[str] = (),
        products: Sequence[str] = (),
        numa: Sequence[int | None] | None = (),
        uuid: Sequence[str] = (),
        **card: Any,
    ) -> None:
        self.path = path
        self.uuids = [*uuid] or [gpu_uuid(number) for number in range(count)]
        if numa is not None and not numa:
            numa = [number * 2 // count for number in range(count)]
        self._cards: list[dict[str, Any]] = [
            {
                "model": models[number] if models else "a10",
                "uuid": self.uuids[number],
                "pci": pci_address(number),
                "minor": number,
                **({"product": products[number]} if products else {}),
                **({"numa": numa[number]} if numa is not None else {}),
                **card,
            }
            for number in range(count)
        ]
        self._order = list(range(count))
        self._described: dict[str, Any] = {}
        self._write()

    @property
    def flags(self) -> tuple[str | Path, ...]:
        """What a daemon is told, so that it looks at this machine."""
        return "--simulated-node", self.path

    def change(self, **described: Any) -> float:
        """Set top-level keys of the node file (``lost``, ``removed``, ``faults``, ``driver``); when that was done."""
        self._described.update(described)
        return self._write()

    def exchange(self, slot: int, uuid: str) -> float:
        """Another card of the same kind in this slot; when that was done."""
        self._cards[slot]["uuid"] = uuid
        return self._write()

    def occupy(self, slot: int, *processes: dict[str, int]) -> float:
        """These and no other processes use the card in this slot; when that was done."""
        self._cards[slot]["processes"] = [*processes]
        return self._write()

    def renumber(self, *order: int) -> float:
        """NVML counts the cards in these slots, in this order; others are not there. When that was done."""
        self._order = list(order)
        return self._write()

    def fault(self, call: str = "*", *, gpu: int | None = None, **effect: Any) -> float:
        """From now on ``call`` fails: ``error="GpuIsLost"``, ``hang=True`` or ``crash=True``."""
        return self.change(faults=[{"call": call, **({} if gpu is None else {"gpu": str(gpu)}), **effect}])

    def heal(self) -> float:
        """No faults, nothing lost or removed, the driver ready."""
        return self.change(faults=[], lost=[], removed=[], driver={})

    def _write(self) -> float:
        fresh = self.path.with_suffix(".new")
        cards = [self._cards[slot] for slot in self._order]
        fresh.write_text(yaml.safe_dump({"gpus": cards, **self._described}))
        at = time.monotonic()
        fresh.replace(self.path)
        return at


class ConfigMap:
    """A ConfigMap as the kubelet mounts it: the file is a link through ``..data``, which each edit swaps."""

    def __init__(self, directory: Path) -> None:
        self._versions = itertools.count()
        self.directory = directory
        self.file = directory / "config.yaml"
        directory.mkdir()

    def publish(self, config: dict[str, Any] | str) -> float:
        """Swap in ``config``; monotonic time of the swap."""
        version = self.directory / f"..2026_11_29_{next(self._versions)}"
        version.mkdir()
        (version / self.file.name).write_text(config if isinstance(config, str) else yaml.safe_dump(config))
        data = self.directory / "..data"
        before = data.resolve() if data.exists() else None
        fresh = self.directory / "..data_tmp"
        fresh.symlink_to(version.name)
        at = time.monotonic()
        fresh.replace(data)
        if not self.file.is_symlink():
            self.file.symlink_to(f"..data/{self.file.name}")
        if before is not None:
            shutil.rmtree(before)
        return at

    def replace_directory(self, config: dict[str, Any]) -> float:
        """Remove the directory with all that is in it and make a new one of the same name; when that was done."""
        shutil.rmtree(self.directory)
        self.directory.mkdir()
        return self.publish(config)


def rename_over(path: Path, text: str) -> float:
    """Replace a plain file as most editors do; when that was done."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    at = time.monotonic()
    os.replace(fresh, path)  # noqa: PTH105 - the name of the system call is the point
    return at


def healthy(kubelet: Kubelet, resource: str = GPU) -> set[str]:
    """The IDs that the kubelet may give to pods."""
    return {device for device, state in kubelet.devices(resource).items() if state.health == "Healthy"}


def wait_healthy(kubelet: Kubelet, ids: Iterable[str], *, resource: str = GPU, timeout_s: float = LIMIT_S) -> None:
    """Wait until exactly these IDs are Healthy."""
    wanted = set(ids)
    kubelet.wait_until(
        lambda: healthy(kubelet, resource) == wanted, timeout_s, what=f"{len(wanted)} Healthy IDs of {resource}"
    )


def find_plugin_socket(kubelet: Kubelet, resource: str = GPU) -> Path:
    """The socket that was registered last for the resource."""
    endpoints = [found.endpoint for found in kubelet.registrations if found.resource == resource]
    return kubelet.directory / endpoints[-1]


def connect(kubelet: Kubelet, resource: str = GPU, **options: object) -> PluginClient:
    """A caller beside the kubelet."""
    return PluginClient(find_plugin_socket(kubelet, resource), **options)

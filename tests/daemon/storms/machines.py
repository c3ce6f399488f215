"""Two machines on which a world comes true: the simulated library, and a compiled libnvidia-ml under a driver root."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from nvdp.nvml.conditions import FABRIC_PARTS, FABRIC_STATES, RECOVERY_ACTIONS
from nvdp.nvml.kinds import find_kind
from tests.daemon.node import gpu_uuid, pci_address
from tests.daemon.storms.world import CARDS, LINKED, Condition, Fault, World
from tests.nvml.conftest import FakeDriver

_NOT_LOADED = 9
_LOST = 15


class Machine(Protocol):
    """``flags`` and ``environment`` are what a daemon is started with; ``trace`` is in its children's arguments."""

    uuids: tuple[str, ...]
    flags: Sequence[str | Path]
    environment: dict[str, str]
    trace: str

    def show(self, world: World) -> None:
        """From now on the library answers by ``world``."""
        ...


class SimulatedMachine:
    """A node file."""

    def __init__(self, root: Path) -> None:
        self._path = root / "node.yaml"
        self.uuids = tuple(gpu_uuid(card) for card in CARDS)
        self.flags: Sequence[str | Path] = ("--simulated-node", self._path)
        self.environment: dict[str, str] = {}
        self.trace = str(self._path)

    def show(self, world: World) -> None:
        node = {
            "driver": {"state": world.driver},
            "gpus": [self._describe(card) for card in world.order],
            "lost": [self.uuids[card] for card in sorted(world.lost)],
            "removed": [self.uuids[card] for card in sorted(world.removed)],
            "faults": [self._describe_fault(fault) for fault in world.faults],
            "conditions": [{"gpu": self.uuids[card], **told} for card, told in sorted(world.conditions.items())],
            "events": [
                {"gpu": self.uuids[event.card], **({"ecc": event.ecc} if event.xid is None else {"xid": event.xid})}
                for event in world.events
            ],
        }
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps(node))
        fresh.replace(self._path)

    def _describe(self, card: int) -> dict[str, Any]:
        kind = {"model": "h100-sxm5-80gb", "nvswitchLinks": 2} if card in LINKED else {"model": "t4"}
        place = {"uuid": self.uuids[card], "pci": pci_address(card), "minor": card, "numa": card % 2}
        return {**kind, **place}

    def _describe_fault(self, fault: Fault) -> dict[str, Any]:
        effect = {"error": fault.effect} if fault.is_error else {fault.effect: True}
        return {"call": fault.call, **({} if fault.card is None else {"gpu": self.uuids[fault.card]}), **effect}


class CompiledMachine:
    """A driver root. The library is there unless the driver is missing; what it answers is in a file beside it."""

    def __init__(self, root: Path, library: Path) -> None:
        self._driver = FakeDriver(root / "driver", library, library)
        self.uuids = tuple(f"GPU-{card:08x}-0000-0000-0000-000000000000" for card in CARDS)
        self.flags: Sequence[str | Path] = ()
        self.environment = {
            "CONTAINER_DRIVER_ROOT": str(self._driver.root),
            "DRIVER_ROOT_CTR_PATH": str(self._driver.root),
        }
        self.trace = str(self._driver.root)

    def show(self, world: World) -> None:
        self._driver.configure(*self._describe(world))
        if world.driver == "missing":
            self._driver.library.unlink(missing_ok=True)
        elif not self._driver.library.exists():
            self._driver.install()

    def _describe(self, world: World) -> Iterator[str]:
        yield " ".join(["cards", *(str(card) for card in world.order if card not in world.removed)])
        for fault in world.faults:
            about = "" if fault.card is None else f" {fault.card}"
            if fault.is_error:
                kind = find_kind(word=fault.effect)
                assert kind is not None
                yield f"fail {fault.call} {kind.code}{about}"
            else:
                yield f"{'abort' if fault.effect == 'crash' else 'hang'} {fault.call}{about}"
        if world.driver != "ready":
            for call in ("nvmlInit", "nvmlDeviceGetCount", "nvmlSystemGetDriverVersion", "nvmlEventSetWait"):
                yield f"fail {call} {_NOT_LOADED}"
        for card in sorted(world.lost):
            for call in ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetName"):
                yield f"fail {call} {_LOST} {card}"
        for card in CARDS:
            for name, value in _translate(world.conditions.get(card, {})).items():
                yield f"vital {card} {name} {value}"
        for event in world.events:
            yield f"ecc {event.card} {event.ecc}" if event.xid is None else f"event {event.card} {event.xid}"


def _translate(condition: Condition) -> dict[str, int]:
    """The readings of a card, in the library's numbers."""
    actions = {word: number for number, word in RECOVERY_ACTIONS.items()} | {"Unknown": 99, "Unsupported": -1}
    fabric = condition.get("fabric", {})
    ecc = condition.get("ecc", {})
    faults = fabric.get("faults", ())
    parts = {part.shift: 3 - part.well if part.fault in faults else part.well for part in FABRIC_PARTS}
    states = {word: number for number, word in FABRIC_STATES.items()}
    return {
        "recovery": actions[condition.get("recoveryAction", "None")],
        "remap_failure": int(condition.get("remapFailure", False)),
        "pages_pending": int(condition.get("retiredPagesPending", False)),
        "ecc_memory": ecc.get("memory", 0),
        "ecc_sram": ecc.get("sram", 0),
        "links": 2,
        "links_down": sum(1 << link for link in condition.get("linksDown", ())),
        "fabric_state": states[fabric.get("state", "Completed")],
        "fabric_status": 0,
        "fabric_mask": sum(value << shift for shift, value in parts.items()),
    }

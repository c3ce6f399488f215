"""The machine of the daemon's tests as a compiled libnvidia-ml under a driver root: the same words, another library."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nvdp.model.mig import parse_profile
from nvdp.nvml.conditions import RECOVERY_ACTIONS
from nvdp.nvml.kinds import find_kind
from nvdp.nvml.simulated.mig_kinds import build_kinds, build_whole
from nvdp.nvml.simulated.models import MODELS
from tests.daemon.node import gpu_uuid
from tests.nvml.conftest import FakeDriver

VERSION = "570.1.1"
_ACTIONS = {word: number for number, word in RECOVERY_ACTIONS.items()} | {"Unsupported": -1}
_GPU_IS_LOST = 15
_NOT_LOADED = 9
_MODES = {"disabled": 0, "enabled": 1}
_MODEL = MODELS["a100-sxm4-80gb"]  # whose MIG profiles all cards have
_FIRST_INSTANCE, _PER_CARD = 64, 8  # MIG devices in rules, see fake_nvml.c


class CompiledMachine:
    """Understands what tests of faults, health and MIG tell a simulated ``Machine``; anything else is an error."""

    def __init__(self, root: Path, *, count: int = 4) -> None:
        self.uuids = [gpu_uuid(number) for number in range(count)]
        self._lines: tuple[str, ...] = ()
        self.driver = FakeDriver(root)
        self._described: dict[str, Any] = {}
        self._version = ""
        self.change()

    @property
    def flags(self) -> tuple[str | Path, ...]:
        return "--container-driver-root", self.driver.root

    def change(self, **described: Any) -> float:
        """Set ``layouts``, ``events``, ``conditions``, ``faults``, ``lost``, ``removed`` or ``driver``; when it was."""
        self._described |= described
        self.driver.configure(*self._render(**self._described), *self._lines)
        has_moved = self._place_library(**self._described.get("driver", {}))
        return time.monotonic() if has_moved else self.driver.at

    def fault(self, call: str = "*", *, gpu: int | None = None, **effect: Any) -> float:
        return self.change(faults=[{"call": call, **({} if gpu is None else {"gpu": gpu}), **effect}])

    def tell(self, *lines: str) -> float:
        """Lines of the library's own file (fake_nvml.c) that a node file has no words for, instead of those before."""
        self._lines = lines
        return self.change()

    def heal(self) -> float:
        return self.change(faults=[], lost=[], removed=[], driver={})

    def _place_library(self, state: str = "ready", version: str = VERSION, **_: str) -> bool:
        """Whether it is another library now."""
        wanted = "" if state == "missing" else version
        before, self._version = self._version, wanted
        if wanted == before:
            return False
        if wanted:
            self.driver.install_version(wanted)
        else:
            self.driver.library.unlink()
        return True

    def _render(
        self, *, driver=None, removed=(), lost=(), faults=(), conditions=(), events=(), layouts=()
    ) -> Iterator[str]:
        driver = driver or {}
        gone = {int(number) for number in removed}
        numbers = range(len(self.uuids))
        yield f"cards {' '.join(str(number) for number in numbers if number not in gone)}"
        for number in numbers:
            yield f"uuid {number} {self.uuids[number]}"
            yield f"vital {number} recovery {_ACTIONS['None']}"
        if "kernel" in driver:
            yield f"kernel {driver['kernel']}"
        if driver.get("state") == "not-loaded":
            yield f"fail * {_NOT_LOADED}"
        for number in lost:
            yield f"fail nvmlDevice* {_GPU_IS_LOST} {number}"
        yield from map(_render_fault, faults)
        for condition in conditions:
            yield f"vital {condition['gpu']} recovery {_ACTIONS[condition['recoveryAction']]}"
        yield from (_render_event(event, layouts) for event in events)
        yield from _render_layouts(layouts)


def _render_fault(fault: dict[str, Any]) -> str:
    call = re.sub(r"(WithFlags|_v\d)$", "", fault["call"])  # the library strikes all spellings of a call
    card = fault.get("gpu", "")
    if "instance" in fault:
        card = _FIRST_INSTANCE + _PER_CARD * int(card) + int(fault["instance"])
    if "error" in fault:
        kind = find_kind(word=fault["error"])
        return f"fail {call} {kind.code} {card}"
    return f"{'hang' if fault.get('hang') else 'abort'} {call} {card}"


def _render_event(event: dict[str, Any], layouts: Sequence[dict[str, Any]]) -> str:
    if "xid" not in event:
        return f"ecc {event['gpu']} {event['ecc']}"
    told = f"event {event['gpu']} {event['xid']}"
    if "instance" not in event:
        return told
    parts = next(layout["instances"] for layout in layouts if layout["gpu"] == event["gpu"])
    return f"{told} {parts[event['instance']]['gpuInstance']} 0"


def _render_layouts(layouts: Sequence[dict[str, Any]]) -> Iterator[str]:
    described = [part for layout in layouts for part in layout.get("instances", ()) if part is not None]
    profiles = {part["profile"]: parse_profile(part["profile"]) for part in described}
    kinds = build_kinds(_MODEL.mig_kinds, list(profiles.values()), total_bytes=_MODEL.memory_bytes)
    for kind in kinds if layouts else ():
        engines = ",".join(map(str, kind.engines))
        yield f"profile {kind.number} {kind.id} {kind.profile.slices} {kind.memory_mib} {engines} MIG {kind.profile}"
    by_profile = {kind.profile: kind for kind in kinds}
    for layout in layouts:
        card, mode = layout["gpu"], layout["mig"]
        yield f"mig {card} {_MODES[mode]} {_MODES[layout.get('migPending', mode)]}"
        for index, part in enumerate(layout.get("instances", ())):
            if part is not None:
                profile = profiles[part["profile"]]
                kind = by_profile[build_whole(profile)]
                yield (
                    f"instance {card} {index} {part['gpuInstance']} 0 {profile.slices} {profile.compute_slices} "
                    f"{kind.memory_mib} {kind.number} {part['uuid']}"
                )

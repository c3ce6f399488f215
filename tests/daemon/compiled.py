"""The machine of the daemon's tests as a compiled libnvidia-ml under a driver root: the same words, another library."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nvdp.nvml.conditions import RECOVERY_ACTIONS
from nvdp.nvml.kinds import find_kind
from tests.daemon.node import gpu_uuid
from tests.nvml.conftest import FakeDriver

VERSION = "570.1.1"
_ACTIONS = {word: number for number, word in RECOVERY_ACTIONS.items()}
_GPU_IS_LOST = 15
_NOT_LOADED = 9


class CompiledMachine:
    """Understands what tests of faults and health tell a simulated ``Machine``; anything else is an error."""

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
        """Set ``events``, ``conditions``, ``faults``, ``lost``, ``removed`` or ``driver``; when that was done."""
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

    def _render(self, *, driver=None, removed=(), lost=(), faults=(), conditions=(), events=()) -> Iterator[str]:
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
        yield from map(_render_event, events)


def _render_fault(fault: dict[str, Any]) -> str:
    call = re.sub(r"(WithFlags|_v\d)$", "", fault["call"])  # the library strikes all spellings of a call
    card = fault.get("gpu", "")
    if "error" in fault:
        kind = find_kind(word=fault["error"])
        return f"fail {call} {kind.code} {card}"
    return f"{'hang' if fault.get('hang') else 'abort'} {call} {card}"


def _render_event(event: dict[str, Any]) -> str:
    return f"event {event['gpu']} {event['xid']}" if "xid" in event else f"ecc {event['gpu']} {event['ecc']}"

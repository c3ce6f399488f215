"""What outlives the process is saved by a thread of its own, the newest state only, and again after a failure."""

from __future__ import annotations

import threading
import time

import msgspec
import pytest

from nvdp.errors import HostError
from nvdp.host.state import AppliedConfig, State
from nvdp.services.remembering import Memory

pytestmark = pytest.mark.invariant(9)

CONFIG = AppliedConfig(text="version: v1\n", source="/config/x", hash="sha256:0")


class Disk:
    """Where states are saved: it can be slow, and it can be full."""

    def __init__(self):
        self.saved = []
        self.tries = 0
        self.full = False
        self.lost = False
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()

    def save(self, state):
        self.entered.set()
        self.tries += 1
        self.open.wait(5)
        if self.full:
            raise HostError("/state/state.json: cannot be written: No space left on device")
        self.lost = False
        self.saved.append(state)

    def is_kept(self):
        return not self.lost


@pytest.fixture
def disk():
    return Disk()


@pytest.fixture
def told():
    return []


@pytest.fixture
def memory(disk, told):
    memory = Memory(
        State(resources=("nvidia.com/gpu",), pins={"devices.exclude=0": "GPU-a"}),
        disk.save,
        is_kept=disk.is_kept,
        log=lambda reason, text, **_: told.append((reason.word, text)),
        retry_s=0.05,
    )
    memory.start()
    yield memory
    disk.full = False
    disk.open.set()
    memory.remember_names(["last"])
    assert memory.flush(5)  # its thread is at rest


def test_what_was_found_is_known_and_not_saved_again(memory, disk):
    assert memory.names == {"nvidia.com/gpu"}
    assert memory.pins == {"devices.exclude=0": "GPU-a"}
    assert memory.flush(1.0)
    assert disk.tries == 0


def test_each_change_is_saved_with_all_that_was_known_before(memory, disk):
    memory.remember_config(CONFIG, {"devices.exclude=1": "GPU-b"})
    assert memory.flush(1.0)
    memory.remember_names(["nvidia.com/gpu.shared"])
    assert memory.flush(1.0)
    memory.remember_pins({})
    assert memory.flush(1.0)
    indices, by_cdi = {"nvidia.com/gpu": {"GPU-a": "0"}}, {"nvidia.com/gpu": ("GPU-a",)}
    memory.remember_handed_out(indices=indices, by_cdi=by_cdi, parents={"MIG-a": "GPU-a"})
    assert memory.flush(1.0)
    assert (memory.indices, memory.by_cdi) == (indices, by_cdi)
    assert memory.parents == {"MIG-a": "GPU-a"}
    memory.remember_by_mps(by_mps := {"nvidia.com/gpu.mps": ("GPU-a",)})
    assert memory.flush(1.0)
    assert memory.by_mps == by_mps
    names = ("nvidia.com/gpu", "nvidia.com/gpu.shared")
    assert disk.saved == [
        State(config=CONFIG, pins={"devices.exclude=1": "GPU-b"}, resources=("nvidia.com/gpu",)),
        State(config=CONFIG, pins={"devices.exclude=1": "GPU-b"}, resources=names),
        State(config=CONFIG, pins={}, resources=names),
        (
            last := State(
                config=CONFIG,
                pins={},
                resources=names,
                indices=indices,
                by_cdi=by_cdi,
                parents={"MIG-a": "GPU-a"},
            )
        ),
        msgspec.structs.replace(last, by_mps=by_mps),
    ]


def test_what_waits_to_be_judged_is_saved_beside_what_is_in_force_until_another_is(memory, disk):
    newer = msgspec.structs.replace(CONFIG, hash="sha256:1")
    memory.remember_config(CONFIG, {})
    memory.remember_candidate(newer)
    assert memory.flush(1.0)
    assert (disk.saved[-1].config, disk.saved[-1].candidate) == (CONFIG, newer)
    memory.remember_config(newer, {})
    assert memory.flush(1.0)
    assert (disk.saved[-1].config, disk.saved[-1].candidate) == (newer, None)


def test_what_is_known_already_is_not_saved_again(memory, disk):
    memory.remember_names(["nvidia.com/gpu"])
    memory.remember_pins({"devices.exclude=0": "GPU-a"})
    assert memory.flush(1.0)
    assert disk.tries == 0


def test_while_the_disk_is_slow_nobody_waits_and_only_the_newest_state_is_saved(memory, disk):
    disk.open.clear()
    memory.remember_names(["a"])
    assert disk.entered.wait(5)
    for name in "bcd":
        memory.remember_names([name])
    assert memory.names == {"nvidia.com/gpu", "a", "b", "c", "d"}
    assert not memory.flush(0.01)
    disk.open.set()
    assert memory.flush(5)
    assert [len(state.resources) for state in disk.saved] == [2, 5]


def test_a_full_disk_is_told_once_and_tried_again_until_it_takes_the_newest_state(memory, disk, told):
    disk.full = True
    memory.remember_names(["a"])
    deadline = time.monotonic() + 5
    while disk.tries < 3 and time.monotonic() < deadline:
        disk.entered.clear()
        disk.entered.wait(1)
    memory.remember_names(["b"])
    assert not memory.flush(1.0)
    assert (memory.trouble.reason, memory.trouble.text) == told[0]
    disk.full = False
    while not disk.saved and time.monotonic() < deadline:
        disk.entered.clear()
        disk.entered.wait(1)
    assert memory.flush(1.0)
    assert memory.trouble is None
    assert disk.saved[-1].resources == ("a", "b", "nvidia.com/gpu")
    assert told == [
        (
            "StateDamaged",
            (
                "/state/state.json: cannot be written: No space left on device; "
                "nvdp goes on, but a restart with a broken file would find no last good one"
            ),
        )
    ]
    disk.full = True
    memory.remember_names(["c"])
    assert not memory.flush(1.0)
    assert len(told) == 2


@pytest.mark.parametrize("is_end", [True, False])
def test_what_somebody_took_away_is_saved_again_after_a_while_or_at_the_end(memory, disk, is_end):
    memory.remember_names(["a"])
    assert memory.flush(1.0)
    disk.lost = True
    if is_end:
        assert memory.flush(1.0)
    deadline = time.monotonic() + 5
    while disk.lost and time.monotonic() < deadline:
        disk.entered.clear()
        disk.entered.wait(1)
    assert [state.resources for state in disk.saved] == [("a", "nvidia.com/gpu")] * 2
    assert memory.flush(1.0)
    assert disk.tries == 2


def test_what_was_taken_away_and_cannot_be_saved_again_is_a_trouble(memory, disk, told):
    disk.lost = disk.full = True
    assert not memory.flush(1.0)
    assert (memory.trouble.reason, memory.trouble.text) == told[0]


def test_a_disk_that_fails_does_not_hold_up_the_end(memory, disk):
    disk.full = True
    memory.remember_names(["a"])
    started_at = time.monotonic()
    assert not memory.flush(30.0)
    assert time.monotonic() - started_at < 5

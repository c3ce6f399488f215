"""When a container is worn out, and when it is only waiting."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvdp.host.container import Access, WornContainer, directory_is_gone, find_access
from nvdp.model.status import DriverState, DriverStatus

_IN_OPEN = 0x20


class Node:
    """A container's surroundings, and a clock."""

    def __init__(self, root: Path) -> None:
        self.dev, self.host_dev, self.directory = root / "dev", root / "host-dev", root / "device-plugins"
        for path in (self.dev, self.host_dev, self.directory):
            path.mkdir()
        self.driver = DriverState.MISSING
        self.now = 1000.0

    def worn(self, *, follows_driver: bool = False, directory: Path | None = None) -> WornContainer:
        return WornContainer(
            directory=directory or self.directory,
            dev=self.dev,
            host_dev=self.host_dev,
            follows_driver=follows_driver,
            get_driver=lambda: DriverStatus(state=self.driver),
            clock=lambda: self.now,
        )


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def removed_directory() -> Iterator[Path]:
    """A path to a directory that has been removed, as a mount of it would show."""
    path = tempfile.mkdtemp(prefix="nv", dir="/tmp")
    descriptor = os.open(path, os.O_RDONLY)
    shutil.rmtree(path)
    yield Path(f"/proc/self/fd/{descriptor}")
    os.close(descriptor)


def test_a_driver_of_another_version_wears_the_container_out_after_a_minute(node: Node):
    node.driver = DriverState.MISMATCH
    worn = node.worn()
    assert worn() is None
    node.now += 59.9
    assert worn() is None
    node.now += 0.1
    assert worn() == OTHER_DRIVER


def test_the_minute_begins_anew_when_the_problem_goes_away_meanwhile(node: Node):
    worn = node.worn()
    for state in (DriverState.MISMATCH, DriverState.READY, DriverState.MISMATCH):
        node.driver = state
        assert worn() is None
        node.now += 50
    assert worn() is None
    node.now += 10
    assert worn() is not None


def test_a_directory_that_exists_or_never_did_is_not_gone(node: Node):
    assert not directory_is_gone(node.directory)
    assert not directory_is_gone(node.directory / "missing")


def test_access_is_judged_by_the_own_node_and_without_one_by_the_hosts(node: Node):
    assert find_access(node.dev, node.host_dev) is Access.ABSENT
    (node.host_dev / "nvidiactl").touch()
    assert find_access(node.dev, node.host_dev) is Access.GRANTED
    (node.dev / "nvidiactl").symlink_to("nowhere")
    assert find_access(node.dev, node.host_dev) is Access.GRANTED


@contextlib.contextmanager
def without_privileges() -> Iterator[None]:
    """As root permissions mean nothing; as somebody else a file of mode 0 may not be opened."""
    root = os.getuid() == 0
    if root:
        os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        if root:
            os.setresuid(0, 0, 0)


OTHER_DRIVER = "the driver library in this container and the kernel module differ"
MAY_NOT_OPEN = "/dev/nvidiactl is there, but this container may not open it: it was made before the driver"
GONE = "was deleted and made anew on the host; this container still has the old one"

# What is the matter with the node; then what the driver's states lead to, in a container that was given its driver.
INJECTED = {
    "nothing": {DriverState.MISMATCH: OTHER_DRIVER},
    "no driver": {DriverState.MISMATCH: OTHER_DRIVER},
    "no access": {
        DriverState.MISMATCH: OTHER_DRIVER,
        DriverState.STARTING: MAY_NOT_OPEN,
        DriverState.MISSING: MAY_NOT_OPEN,
        DriverState.LOST: MAY_NOT_OPEN,
    },
    "no directory": dict.fromkeys(DriverState, GONE),
}
# Where the driver root is mounted a new driver is found there. Access to nodes that came later no mount gives, and no
# mount can follow a directory; a privileged container has all access, and never sees the former.
MOUNTED = {
    "no access": {state: MAY_NOT_OPEN for state in DriverState if state not in {DriverState.READY, DriverState.PAUSED}},
    "no directory": dict.fromkeys(DriverState, GONE),
}


@contextlib.contextmanager
def have(trouble: str, node: Node) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if trouble != "no driver":
            (node.host_dev / "nvidiactl").touch(mode=0 if trouble == "no access" else 0o666)
        if trouble == "no access":
            stack.enter_context(without_privileges())
        yield


@pytest.mark.parametrize("trouble", INJECTED)
@pytest.mark.parametrize("mode", ["runtime-injected", "driver root mounted"])
def test_a_container_is_worn_out_after_a_minute_of_exactly_these_and_of_nothing_else(trouble, mode, removed_directory):
    told = (MOUNTED if mode == "driver root mounted" else INJECTED).get(trouble, {})
    with tempfile.TemporaryDirectory(prefix="nv", dir="/tmp") as path:
        Path(path).chmod(0o755)
        node = Node(Path(path))
        directory = removed_directory if trouble == "no directory" else None
        with have(trouble, node):
            for state in DriverState:
                node.driver = state
                worn = node.worn(follows_driver=mode == "driver root mounted", directory=directory)
                assert worn() is None
                node.now += 59.9
                assert worn() is None
                node.now += 0.1
                assert told.get(state, "None") in str(worn()), state
                node.now += 3600
                assert told.get(state, "None") in str(worn()), state


def test_another_driver_that_comes_during_a_pause_counts_from_the_end_of_the_pause(node: Node):
    worn = node.worn()
    for state in (DriverState.READY, DriverState.PAUSED, DriverState.STARTING, DriverState.MISMATCH):
        assert worn() is None
        node.now += 3600
        node.driver = state
    assert worn() is None
    node.now += 60
    assert worn() == OTHER_DRIVER


def test_the_control_node_is_never_opened(node: Node):
    """A driver that hangs would keep whoever opens it, and one that is to be changed must be let go of."""
    control = node.dev / "nvidiactl"
    control.touch()
    libc = ctypes.CDLL(None)
    opened = libc.inotify_init1(os.O_NONBLOCK)
    try:
        assert libc.inotify_add_watch(opened, bytes(control), _IN_OPEN) >= 0
        assert node.worn()() is None
        with pytest.raises(BlockingIOError):
            os.read(opened, 4096)
        control.read_bytes()
        assert os.read(opened, 4096)
    finally:
        os.close(opened)

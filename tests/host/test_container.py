"""When a container is worn out, and when it is only waiting."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvdp.host.container import Access, WornContainer, directory_is_gone, find_access
from nvdp.model.status import DriverState, DriverStatus


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
    assert worn() == "the driver library in this container and the kernel module differ"


def test_the_minute_begins_anew_when_the_problem_goes_away_meanwhile(node: Node):
    worn = node.worn()
    for state in (DriverState.MISMATCH, DriverState.READY, DriverState.MISMATCH):
        node.driver = state
        assert worn() is None
        node.now += 50
    assert worn() is None
    node.now += 10
    assert worn() is not None


@pytest.mark.parametrize("state", [DriverState.STARTING, DriverState.MISSING, DriverState.LOST, DriverState.READY])
def test_no_driver_state_but_a_mismatch_is_cured_by_a_new_container(node: Node, state: DriverState):
    node.driver = state
    worn = node.worn()
    worn()
    node.now += 3600
    assert worn() is None


def test_with_the_driver_root_mounted_a_mismatch_converges_by_itself(node: Node):
    node.driver = DriverState.MISMATCH
    worn = node.worn(follows_driver=True)
    worn()
    node.now += 3600
    assert worn() is None


def test_a_device_directory_that_was_removed_on_the_host_wears_the_container_out(node: Node, removed_directory: Path):
    assert directory_is_gone(removed_directory)
    node.driver = DriverState.READY
    worn = node.worn(directory=removed_directory, follows_driver=True)
    worn()
    node.now += 60
    assert "was deleted and made anew on the host" in (worn() or "")


def test_a_directory_that_exists_or_never_did_is_not_gone(node: Node):
    assert not directory_is_gone(node.directory)
    assert not directory_is_gone(node.directory / "missing")


def test_access_is_judged_by_the_own_node_and_without_one_by_the_hosts(node: Node):
    assert find_access(node.dev, node.host_dev) is Access.ABSENT
    (node.host_dev / "nvidiactl").touch()
    assert find_access(node.dev, node.host_dev) is Access.OPENED
    (node.dev / "nvidiactl").mkdir()  # cannot be opened for writing, for a reason that is no denial
    assert find_access(node.dev, node.host_dev) is Access.OPENED


@contextlib.contextmanager
def without_privileges() -> Iterator[None]:
    """As root permissions mean nothing; as somebody else a file of mode 0 may not be opened."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_control_node_that_may_not_be_opened_wears_the_container_out():
    with tempfile.TemporaryDirectory(prefix="nv", dir="/tmp") as path:
        Path(path).chmod(0o755)
        node = Node(Path(path))
        (node.host_dev / "nvidiactl").touch(mode=0)
        worn = node.worn()
        with without_privileges():
            assert find_access(node.dev, node.host_dev) is Access.DENIED
            assert worn() is None
            node.now += 60
            problem = worn()
            node.driver = DriverState.READY
            assert worn() is None
    assert problem == "/dev/nvidiactl is there, but this container may not open it: it was made before the driver"

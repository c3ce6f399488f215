"""Names for PIDs, from a tree that looks like /proc."""

from __future__ import annotations

import os

import pytest

from nvdp.host.processes import NodeProcess, NodeProcesses

CONTAINER = "0123456789abcdef" * 4


@pytest.fixture
def proc(tmp_path):
    return tmp_path


def add(proc, pid: int, name: str, cgroup: str | None = None) -> None:
    place = proc / str(pid)
    place.mkdir()
    (place / "comm").write_text(f"{name}\n")
    if cgroup is not None:
        (place / "cgroup").write_text(f"0::{cgroup}\n")


def test_a_process_has_its_name_and_its_container_however_the_runtime_spells_that(proc):
    pod = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1b4e28ba_2fa1_11d2_883f_0016d3cca427.slice"
    add(proc, 41, "python3", f"{pod}/cri-containerd-{CONTAINER}.scope")
    add(proc, 42, "train", f"/kubepods/burstable/pod1b4e28ba-2fa1-11d2-883f-0016d3cca427/{CONTAINER}")
    add(proc, 43, "Xorg", "/system.slice/gdm.service")
    add(proc, 44, "leaving")
    processes = NodeProcesses(proc)
    assert processes.find_process(41) == NodeProcess("python3", CONTAINER[:12])
    assert processes.find_process(42) == NodeProcess("train", CONTAINER[:12])
    assert processes.find_process(43) == NodeProcess("Xorg")
    assert processes.find_process(44) == NodeProcess("leaving")


def test_a_process_that_is_not_seen_from_here_has_no_name(proc):
    assert NodeProcesses(proc).find_process(4711) is None


@pytest.mark.parametrize(("namespace", "all_seen"), [("pid:[4026531836]", True), ("pid:[4026532836]", False)])
def test_all_processes_are_seen_from_the_hosts_namespace_only(proc, namespace, all_seen):
    (proc / "self" / "ns").mkdir(parents=True)
    (proc / "self" / "ns" / "pid").symlink_to(namespace)
    assert NodeProcesses(proc).are_all_seen is all_seen


def test_where_the_namespace_cannot_be_read_nothing_is_taken_for_granted(proc):
    assert not NodeProcesses(proc).are_all_seen


def test_the_kernels_own_tree_is_read():
    found = NodeProcesses().find_process(os.getpid())
    assert found is not None
    assert found.name

"""Starts, restarts, the checkpoint and the directory at the twin (kubelet contract 0, A.12)."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading

import pytest

from nvdp.kubelet.sockets import find_socket_identity
from nvdp.simulate.kubelet import KUBELET_FILES, AdmissionError, Kubelet
from tests.twin.reference_plugin import RESOURCE, ReferencePlugin, device, devices

ONE = {"main": {RESOURCE: 1}}
POLICIES = ["best-effort", "restricted", "single-numa-node"]


def serve(kubelet: Kubelet, plugin: ReferencePlugin) -> None:
    plugin.register()
    kubelet.wait_until(lambda: kubelet.capacity(plugin.resource) == len({listed.id for listed in plugin.listed}))


def names(kubelet: Kubelet) -> set[str]:
    return {path.name for path in kubelet.directory.iterdir()}


def stats(kubelet: Kubelet) -> dict[str, os.stat_result]:
    return {path.name: path.stat() for path in kubelet.directory.iterdir()}


def stale_socket(path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def test_a_start_removes_every_socket_and_nothing_else(root):
    kubelet = Kubelet(root)
    kubelet.directory.mkdir()
    (kubelet.directory / "subdirectory").mkdir()
    (kubelet.directory / "notes.txt").write_text("mine")
    stale_socket(kubelet.directory / "stale.sock")
    stale_socket(kubelet.directory / "subdirectory" / "kept.sock")
    with kubelet:
        assert names(kubelet) == {"subdirectory", "notes.txt", "DEPRECATION", "kubelet.sock"}
        assert (kubelet.directory / "subdirectory" / "kept.sock").is_socket()


def test_the_directory_is_made_if_it_is_missing(root):
    with Kubelet(root / "kubelet") as kubelet:
        assert stat.S_IMODE(kubelet.directory.stat().st_mode) == 0o750
        assert kubelet.socket.is_socket()
        assert kubelet.pod_resources_socket.is_socket()


def test_a_stop_ends_the_streams_and_changes_no_file(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory) as plugin:
        serve(kubelet, plugin)
        before = stats(kubelet)
        assert set(before) == KUBELET_FILES | {plugin.name}
        kubelet.stop()
        plugin.wait_stream_ended()
        assert stats(kubelet) == before
        with pytest.raises(ConnectionRefusedError), socket.socket(socket.AF_UNIX) as client:
            client.connect(str(kubelet.socket))
        assert kubelet.node_status()[RESOURCE] == (4, 4)  # as the API server has it


def test_a_restart_gives_the_socket_a_new_identity_and_takes_the_plugins_away(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory) as plugin:
        serve(kubelet, plugin)
        before = find_socket_identity(kubelet.socket)
        kubelet.restart()
        assert find_socket_identity(kubelet.socket) not in {None, before}
        assert not (kubelet.directory / plugin.name).exists()
        assert kubelet.node_status()[RESOURCE] == (0, 0)
        plugin.stop()
        with ReferencePlugin(kubelet.directory, name="again.sock") as again:
            serve(kubelet, again)
            assert [message.stream for message in kubelet.messages(RESOURCE)] == [1, 2]
            assert kubelet.messages(RESOURCE)[0].raw == kubelet.messages(RESOURCE)[1].raw


def test_after_a_restart_the_grace_of_a_plugin_that_stays_away_runs(root):
    now = [0.0]
    with Kubelet(root, clock=lambda: now[0]) as kubelet, ReferencePlugin(kubelet.directory) as plugin:
        serve(kubelet, plugin)
        kubelet.restart()
        with pytest.raises(AdmissionError, match="no healthy devices present"):
            kubelet.admit("early", ONE)
        now[0] = 301.0
        assert kubelet.node_status()[RESOURCE] == (0, 0)
        assert kubelet.admit("late", ONE).ids(RESOURCE) == frozenset()  # nobody knows the resource any more


def test_a_pod_that_is_deleted_is_not_waited_for_after_a_restart(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory) as plugin:
        serve(kubelet, plugin)
        pod = kubelet.admit("pod", ONE)
        kubelet.restart()
        assert kubelet.readmissions_pending == 1
        kubelet.delete(pod)
        assert kubelet.readmissions_pending == 0


def test_running_pods_survive_a_restart_and_keep_their_devices(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory) as plugin:
        serve(kubelet, plugin)
        pod = kubelet.admit("pod", ONE)
        kubelet.restart()
        assert kubelet.readmissions_pending == 1
        plugin.stop()
        with ReferencePlugin(kubelet.directory, name="again.sock") as again:
            serve(kubelet, again)
            kubelet.wait_until(lambda: kubelet.readmissions_pending == 0)
            other = kubelet.admit("other", {"main": {RESOURCE: 3}})
            assert not pod.ids(RESOURCE) & other.ids(RESOURCE)
            kubelet.restart_container(pod, "main")
            assert [call.method for call in kubelet.calls] == ["Allocate", "Allocate"]


def test_a_pod_deleted_while_the_kubelet_was_down_gives_its_devices_back(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory) as plugin:
        serve(kubelet, plugin)
        pod = kubelet.admit("pod", {"main": {RESOURCE: 4}})
        kubelet.stop()
        kubelet.delete(pod)
        kubelet.start()
        plugin.stop()
        with ReferencePlugin(kubelet.directory, name="again.sock") as again:
            serve(kubelet, again)
            assert len(kubelet.admit("next", {"main": {RESOURCE: 4}}).ids(RESOURCE)) == 4


@pytest.mark.parametrize("policy", POLICIES)
def test_a_held_id_that_is_missing_after_a_restart_crash_loops_1_36(root, policy):
    with Kubelet(root, topology_policy=policy) as kubelet:
        with ReferencePlugin(kubelet.directory, listed=devices(4, numa=True)) as plugin:
            serve(kubelet, plugin)
            pod = kubelet.admit("pod", ONE)
            (held,) = pod.ids(RESOURCE)
            kubelet.restart()
        without = [listed for listed in devices(4, numa=True) if listed.id != held]
        for name in ("first.sock", "second.sock"):
            with ReferencePlugin(kubelet.directory, name=name, listed=without) as plugin:
                plugin.register()
                assert f"default/pod holds {held}" in kubelet.wait_for_crash()
                plugin.wait_stream_ended()
            kubelet.start()
        kept = [*without, device(held, "Unhealthy", (0,))]
        with ReferencePlugin(kubelet.directory, name="kept.sock", listed=kept) as plugin:
            serve(kubelet, plugin)
            kubelet.wait_until(lambda: kubelet.readmissions_pending == 0)
            assert pod.phase == "Running"
            kubelet.delete(pod)
            plugin.update(without)
            kubelet.wait_until(lambda: kubelet.capacity(RESOURCE) == 3)
            kubelet.restart()


@pytest.mark.parametrize(
    ("version", "policy", "numa"),
    [("1.36", "none", True), ("1.36", "restricted", False), ("1.37", "restricted", True), ("1.33", "restricted", True)],
)
def test_a_held_id_may_be_missing_where_nothing_looks_at_it(root, version, policy, numa):
    with Kubelet(root, version=version, topology_policy=policy) as kubelet:
        with ReferencePlugin(kubelet.directory, listed=devices(4, numa=numa)) as plugin:
            serve(kubelet, plugin)
            pod = kubelet.admit("pod", ONE)
            kubelet.restart()
        without = [listed for listed in devices(4, numa=numa) if listed.id not in pod.ids(RESOURCE)]
        with ReferencePlugin(kubelet.directory, name="again.sock", listed=without) as plugin:
            serve(kubelet, plugin)
            kubelet.wait_until(lambda: kubelet.readmissions_pending == 0)
            assert kubelet.restart_container(pod, "main") is None


def test_after_a_reboot_a_pod_whose_device_is_unhealthy_fails(root):
    with Kubelet(root) as kubelet:
        with ReferencePlugin(kubelet.directory) as plugin:
            serve(kubelet, plugin)
            lucky, unlucky = kubelet.admit("lucky", ONE), kubelet.admit("unlucky", ONE)
            kubelet.reboot()
        listed = [
            device(name, "Unhealthy" if name in unlucky.ids(RESOURCE) else "Healthy")
            for name in (listed.id for listed in devices(4))
        ]
        with ReferencePlugin(kubelet.directory, name="again.sock", listed=listed) as plugin:
            plugin.register()
            kubelet.wait_until(lambda: (lucky.phase, unlucky.phase) == ("Running", "Failed"))
            assert str(unlucky.error) == (
                "Allocate failed due to previously allocated devices are no longer healthy; "
                "cannot allocate unhealthy devices nvidia.com/gpu, which is unexpected"
            )
            assert [call.method for call in kubelet.calls] == ["Allocate", "Allocate"]  # none after the reboot


def test_the_checkpoint_has_the_kubelets_form(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory, listed=devices(4, numa=True)) as plugin:
        serve(kubelet, plugin)
        pod = kubelet.admit("pod", {"main": {RESOURCE: 4}})
        content = json.loads(kubelet.checkpoint.read_bytes())
        assert content.keys() == {"Data", "Checksum"}
        (entry,) = content["Data"]["PodDeviceEntries"]
        assert (entry["PodUID"], entry["ContainerName"], entry["ResourceName"]) == (pod.uid, "main", RESOURCE)
        assert {node: set(ids) for node, ids in entry["DeviceIDs"].items()} == {
            "0": {"dev-0", "dev-2"},
            "1": {"dev-1", "dev-3"},
        }
        assert set(content["Data"]["RegisteredDevices"][RESOURCE]) == {f"dev-{n}" for n in range(4)}


def test_a_corrupt_checkpoint_frees_devices_of_running_pods(root):
    """And a container that starts again is given others, off the admission path."""
    with Kubelet(root) as kubelet:
        with ReferencePlugin(kubelet.directory) as plugin:
            serve(kubelet, plugin)
            pod = kubelet.admit("pod", {"main": {RESOURCE: 2}})
            kubelet.corrupt_checkpoint()
            kubelet.restart()
        with ReferencePlugin(kubelet.directory, name="again.sock") as plugin:
            serve(kubelet, plugin)
            kubelet.wait_until(lambda: kubelet.readmissions_pending == 0)
            other = kubelet.admit("other", {"main": {RESOURCE: 2}})
            kubelet.restart_container(pod, "main")
            assert len(pod.ids(RESOURCE) | other.ids(RESOURCE)) == 4
            assert [call.method for call in kubelet.calls] == ["Allocate"] * 3


def test_without_a_checkpoint_the_nodes_resources_are_reset(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory) as plugin:
        serve(kubelet, plugin)
        kubelet.stop()
        kubelet.checkpoint.unlink()
        kubelet.start()
        assert kubelet.node_status()[RESOURCE] == (0, 0)


def test_the_directory_can_be_exchanged_for_a_new_one(root):
    with Kubelet(root) as kubelet:
        before = kubelet.directory.stat().st_ino, find_socket_identity(kubelet.socket)
        descriptor = os.open(kubelet.directory, os.O_RDONLY)
        try:
            kubelet.recreate_directory()
            assert os.fstat(descriptor).st_nlink == 0
        finally:
            os.close(descriptor)
        assert (kubelet.directory.stat().st_ino, find_socket_identity(kubelet.socket)) != before


def test_a_stopped_kubelet_leaves_no_thread(root):
    before = set(threading.enumerate())
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory) as plugin:
        serve(kubelet, plugin)
        kubelet.admit("pod", ONE)
    own = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("kubelet")]
    for thread in own:
        thread.join(5)
    assert not [thread for thread in own if thread.is_alive()]

"""Which running pods a restarting kubelet keeps (kubelet contract A.12): by its version, the pod, and the devices."""

from __future__ import annotations

import pytest

from nvdp.simulate.kubelet import Kubelet
from tests.twin.reference_plugin import RESOURCE, ReferencePlugin, devices

ONE = {"main": {RESOURCE: 1}}


def serve(kubelet: Kubelet, plugin: ReferencePlugin) -> None:
    plugin.register()
    kubelet.wait_until(lambda: kubelet.capacity(plugin.resource) == len(plugin.listed))


# Over a kubelet's restart: its version, the pod, and what becomes of it on a device that is Unhealthy by then.
ON_UNHEALTHY_DEVICES = [
    ("1.33", "plain", "Running"),
    ("1.33", "restarted", "Failed"),  # it does not know that the container runs
    ("1.33", "with init", "Failed"),
    ("1.36", "restarted", "Running"),
    ("1.36", "with init", "Failed"),
    ("1.37", "restarted", "Running"),
    ("1.37", "with init", "Failed"),
]


@pytest.mark.parametrize("policy", ["none", "restricted"])
@pytest.mark.parametrize("case", ON_UNHEALTHY_DEVICES, ids=" ".join)
def test_over_a_restart_a_container_that_is_known_to_run_keeps_a_device_that_is_unhealthy(root, case, policy):
    version, kind, phase = case
    with Kubelet(root, version=version, topology_policy=policy) as kubelet:
        with ReferencePlugin(kubelet.directory, listed=devices(4, numa=True)) as plugin:
            serve(kubelet, plugin)
            pod = kubelet.admit("pod", ONE, init_containers={"prepare": {RESOURCE: 1}} if kind == "with init" else None)
            if kind == "restarted":
                kubelet.restart_container(pod, "main")
            kubelet.restart()
        listed = devices(4, numa=True)
        for one in listed:
            one.health = "Unhealthy" if one.id in pod.ids(RESOURCE) else "Healthy"
        with ReferencePlugin(kubelet.directory, name="again.sock", listed=listed) as plugin:
            serve(kubelet, plugin)
            kubelet.wait_until(lambda: kubelet.readmissions_pending == 0)
            assert pod.phase == phase
            if phase == "Failed":
                assert "previously allocated devices are no longer healthy" in str(pod.error)


@pytest.mark.parametrize("version", ["1.33", "1.36", "1.37"])
def test_over_a_restart_a_pod_whose_devices_are_healthy_is_kept_whatever_its_containers_did(root, version):
    with Kubelet(root, version=version) as kubelet:
        with ReferencePlugin(kubelet.directory) as plugin:
            serve(kubelet, plugin)
            pod = kubelet.admit("pod", {"main": {RESOURCE: 2}}, init_containers={"prepare": {RESOURCE: 1}})
            before = pod.ids(RESOURCE)
            kubelet.restart_container(pod, "main")
            kubelet.restart()
        with ReferencePlugin(kubelet.directory, name="again.sock") as plugin:
            serve(kubelet, plugin)
            kubelet.wait_until(lambda: kubelet.readmissions_pending == 0)
            assert (pod.phase, pod.ids(RESOURCE)) == ("Running", before)
            assert [call.method for call in kubelet.calls if call.method == "Allocate"] == ["Allocate"] * 2

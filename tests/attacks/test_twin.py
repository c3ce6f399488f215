"""The twin itself under histories that only an adversary writes: a fault of it would be taken for one of nvdp."""

from __future__ import annotations

from nvdp.simulate.kubelet import Kubelet
from tests.twin.reference_plugin import RESOURCE, ReferencePlugin


def test_a_pod_deleted_between_a_restart_and_its_admission_is_forgotten(root):
    one = {"main": {RESOURCE: 1}}
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory) as plugin:
        plugin.register()
        kubelet.wait_until(lambda: kubelet.capacity(RESOURCE) == 4)
        gone, stays = kubelet.admit("gone", one), kubelet.admit("stays", one)
        kubelet.restart()
        kubelet.delete(gone)
        with ReferencePlugin(kubelet.directory, name="again.sock") as again:
            again.register()
            kubelet.wait_until(lambda: kubelet.readmissions_pending == 0)

            assert kubelet.open_streams(RESOURCE) == 1
            assert stays.phase == "Running"

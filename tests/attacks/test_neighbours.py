"""Other plugins of the same node, and what they gave to pods: ours to know of, not to take over."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nvdp.simulate.kubelet import Kubelet
from tests.daemon.node import GPU, SHARED, both_kubelets, build_config, gpu_uuid, healthy, wait_healthy
from tests.daemon.process import LIMIT_S
from tests.twin.reference_plugin import ReferencePlugin, device

MIG = "nvidia.com/mig-1g.10gb"
WHOLE = "nvidia.com/whole"


@contextmanager
def _neighbour(kubelet: Kubelet, resource: str, ids: list[str]) -> Iterator[None]:
    """Another plugin, for ``resource``."""
    with ReferencePlugin(kubelet.directory, resource=resource, listed=[device(name) for name in ids]) as plugin:
        plugin.register()
        kubelet.wait_until(lambda: healthy(kubelet, resource) == set(ids))
        yield


@both_kubelets
def test_a_resource_of_another_plugin_stays_its_own_when_a_pod_gets_it(kubelet, daemon, config_map):
    ids = [f"MIG-0000000{number}-1111-4000-8000-000000000000" for number in range(4)]
    with _neighbour(kubelet, MIG, ids):
        kubelet.admit("theirs", {"main": {MIG: 1}})
        ours = kubelet.admit("ours", {"main": {GPU: 1}})
        config_map.publish(build_config(share=3))  # something leaves: holders are asked for until it has
        kubelet.wait_until(lambda: len(kubelet.devices(GPU)) == 12, LIMIT_S)

        assert healthy(kubelet, MIG) == set(ids)
        assert {found.endpoint for found in kubelet.registrations if found.resource == MIG} == {"reference.sock"}
    assert ours.phase == "Running"


@pytest.mark.invariant(4)
def test_a_gpu_that_a_pod_has_from_another_plugin_is_not_on_offer_meanwhile(kubelet, daemon):
    with _neighbour(kubelet, WHOLE, [gpu_uuid(2)]):
        theirs = kubelet.admit("theirs", {"main": {WHOLE: 1}})
        daemon.send(signal.SIGHUP)
        kubelet.wait_until(lambda: len(healthy(kubelet)) == 12, LIMIT_S)
        assert not [device for device in healthy(kubelet) if device.startswith(gpu_uuid(2))]

        kubelet.delete(theirs)
        kubelet.wait_until(lambda: len(healthy(kubelet)) == 16, LIMIT_S)


@pytest.mark.invariant(3)
def test_what_a_predecessor_gave_is_kept_also_if_the_kubelet_can_be_asked_only_later(kubelet, start, root):
    before = start(build_config(share=2, timeSlicing={"renameByDefault": True}))
    kubelet.wait_until(lambda: len(healthy(kubelet, SHARED)) == 8, LIMIT_S)
    pod = kubelet.admit("old", {"main": {SHARED: 1}})
    (held,) = pod.ids(SHARED)
    before.stop()
    shutil.rmtree(root / "state")
    kubelet.drop_pod_resources()
    kubelet.checkpoint.rename(root / "aside")
    kubelet.checkpoint.mkdir()

    start(build_config(share=4))
    kubelet.wait_until(lambda: healthy(kubelet), LIMIT_S)
    kubelet.checkpoint.rmdir()
    (root / "aside").rename(kubelet.checkpoint)
    kubelet.serve_pod_resources()

    kubelet.wait_until(lambda: kubelet.messages(SHARED)[-1].ids == (held,), LIMIT_S)
    assert not healthy(kubelet, SHARED)
    free = {
        f"{gpu_uuid(number)}::{n}" for number in range(4) for n in range(4) if not held.startswith(gpu_uuid(number))
    }
    wait_healthy(kubelet, free)

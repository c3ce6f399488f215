"""Other plugins of the same node, and what they gave to pods: ours to know of, not to take over."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nvdp.simulate.kubelet import Kubelet
from tests.daemon.node import SHARED, both_kubelets, build_config, gpu_uuid, healthy, wait_healthy
from tests.daemon.process import LIMIT_S
from tests.twin.reference_plugin import ReferencePlugin, device

WHOLE = "nvidia.com/whole"


@contextmanager
def _neighbour(kubelet: Kubelet, resource: str, ids: list[str]) -> Iterator[None]:
    """Another plugin, for ``resource``."""
    with ReferencePlugin(kubelet.directory, resource=resource, listed=[device(name) for name in ids]) as plugin:
        plugin.register()
        kubelet.wait_until(lambda: healthy(kubelet, resource) == set(ids))
        yield


@both_kubelets
@pytest.mark.invariant(4)
def test_a_gpu_that_a_pod_has_from_another_plugin_is_not_on_offer_meanwhile_nor_that_plugin_replaced(kubelet, daemon):
    mine = {gpu_uuid(2), "MIG-00000000-1111-4000-8000-000000000000"}
    with _neighbour(kubelet, WHOLE, sorted(mine)):
        theirs = kubelet.admit("theirs", {"main": {WHOLE: 2}})
        daemon.send(signal.SIGHUP)
        kubelet.wait_until(lambda: len(healthy(kubelet)) == 12, LIMIT_S)
        assert not [device for device in healthy(kubelet) if device.startswith(gpu_uuid(2))]

        kubelet.delete(theirs)
        kubelet.wait_until(lambda: len(healthy(kubelet)) == 16, LIMIT_S)
        assert healthy(kubelet, WHOLE) == mine
        assert {found.endpoint for found in kubelet.registrations if found.resource == WHOLE} == {"reference.sock"}


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

"""Who holds what, asked of the twin by the parts of the daemon that ask a real kubelet."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from functools import partial

import pytest

from nvdp.kubelet.checkpoint import load_checkpoint
from nvdp.kubelet.podresources import PodResourcesClient
from nvdp.kubelet.sockets import is_listening
from nvdp.model.held import Held, Source
from nvdp.services.held import HeldService
from nvdp.simulate.kubelet import Kubelet
from tests.twin.reference_plugin import RESOURCE, ReferencePlugin, device

GPU = "GPU-11111111-2222-3333-4444-555555555555"
LISTED = [device(f"{GPU}::{number}", numa=(0, 1)) for number in range(4)]
ONE = {"main": {RESOURCE: 1}}


class Asker:
    def __init__(self, kubelet: Kubelet) -> None:
        self.events = queue.SimpleQueue()
        self.service = HeldService(
            self.events.put,
            pod_resources=PodResourcesClient(kubelet.pod_resources_socket),
            load_checkpoint=partial(load_checkpoint, kubelet.checkpoint),
            kubelet_answers=partial(is_listening, kubelet.socket),
            log=lambda *_, **__: None,
        )
        self.service.start()

    def __enter__(self) -> Asker:  # noqa: PYI034 - a test's own
        return self

    def __exit__(self, *_: object) -> None:
        self.service.stop()

    def ask(self) -> Held:
        """An answer that is requested from here on."""
        asked = time.monotonic()
        self.service.ask()
        return self.wait(lambda held: held.requested_at >= asked)

    def wait(self, predicate: Callable[[Held], object]) -> Held:
        """The next answer that is told and has ``predicate``."""
        while not predicate(held := self.events.get(timeout=5).held):
            pass
        return held


def serve(kubelet: Kubelet, plugin: ReferencePlugin) -> None:
    plugin.register()
    kubelet.wait_until(lambda: kubelet.capacity(RESOURCE) == len(plugin.listed))


@pytest.mark.requirement(47)
@pytest.mark.parametrize("version", ["1.33", "1.36", "1.37"])
def test_pods_that_come_and_go_are_seen_by_name(root, version):
    with Kubelet(root, version=version) as kubelet, ReferencePlugin(kubelet.directory, listed=LISTED) as plugin:
        serve(kubelet, plugin)
        with Asker(kubelet) as asker:
            assert asker.ask().holdings == ()
            pod = kubelet.admit("team-a/pod", {"main": {RESOURCE: 2}})
            held = asker.ask()
            assert {(one.device_id, one.holder, one.container) for one in held.holdings} == {
                (name, "team-a/pod", "main") for name in pod.ids(RESOURCE)
            }
            kubelet.delete(pod)
            assert asker.ask().holdings == ()


def test_without_pod_resources_the_checkpoint_tells_and_names_the_pods_uid(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory, listed=LISTED) as plugin:
        serve(kubelet, plugin)
        pod = kubelet.admit("team-a/pod", ONE)
        kubelet.drop_pod_resources()
        with Asker(kubelet) as asker:
            held = asker.ask()
            assert held.source is Source.CHECKPOINT
            assert {(one.device_id, one.holder) for one in held.holdings} == {
                (name, pod.uid) for name in pod.ids(RESOURCE)
            }
            kubelet.serve_pod_resources()
            assert asker.ask().source is Source.POD_RESOURCES


@pytest.mark.invariant(3)
def test_over_a_kubelet_restart_no_answer_ever_says_that_a_running_pods_device_is_free(root):
    with Kubelet(root) as kubelet:
        with ReferencePlugin(kubelet.directory, listed=LISTED) as plugin:
            serve(kubelet, plugin)
            pod = kubelet.admit("team-a/pod", ONE)
            asker = Asker(kubelet)
            asker.wait(lambda held: held.holdings)
            kubelet.restart()
        with asker, ReferencePlugin(kubelet.directory, name="again.sock", listed=LISTED) as plugin:
            assert {one.device_id for one in asker.ask().holdings} == pod.ids(RESOURCE)
            serve(kubelet, plugin)
            kubelet.wait_until(lambda: kubelet.readmissions_pending == 0)
            assert {one.holder for one in asker.ask().holdings} == {"team-a/pod"}
            kubelet.delete(pod)
            assert asker.ask().holdings == ()


@pytest.mark.invariant(3)
def test_with_both_sources_gone_and_the_kubelet_up_the_answer_is_that_nobody_knows(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory, listed=LISTED) as plugin:
        serve(kubelet, plugin)
        kubelet.admit("team-a/pod", ONE)
        with Asker(kubelet) as asker:
            before = asker.ask()
            kubelet.drop_pod_resources()
            kubelet.corrupt_checkpoint()
            asker.service.ask()
            assert asker.wait(lambda held: held.unreadable_since is not None).holdings == before.holdings
            kubelet.stop()
            assert asker.wait(lambda held: held.unreadable_since is None).holdings == before.holdings

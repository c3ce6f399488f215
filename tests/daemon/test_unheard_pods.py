"""A kubelet that started while its API server is away: it lists no pod, for however long, and its pods run on.

As seen with kubelet 1.20: its PodResources answers, empty, while the checkpoint names every holder. That is written
with each list, and then without the pods that are gone once the API server has named those that are not.
"""

from __future__ import annotations

import time

import grpc
import pytest

from nvdp.http.control import load_status
from tests.daemon.node import (
    GPU,
    SHARED,
    at_length,
    build_config,
    build_sliced,
    healthy,
    on_node,
    replicas,
    wait_healthy,
)
from tests.daemon.process import wait_until

pytestmark = [pytest.mark.invariant(3), pytest.mark.invariant(4)]
two_gpus, one_gpu = (on_node(machine={"count": count}) for count in (2, 1))
SOON_S = 15.0
LONG_S = 40.0


@pytest.fixture
def daemon(kubelet, start):
    """Offers whole GPUs."""
    return start(build_config(), wait=True)


@pytest.fixture
def pod(kubelet, daemon):
    """Has one of them."""
    return kubelet.admit("team/a", {"main": {GPU: 1}})


def share(config_map, machine, pod):
    """An edit by which each GPU is shared; what is then to be offered while the pod has its own, and afterwards."""
    config_map.publish(build_sliced({}))
    afterwards = {one for number in range(len(machine.uuids)) for one in replicas(number, 2)}
    return {one for one in afterwards if one.partition("::")[0] not in pod.ids(GPU)}, afterwards


def find_holders(root):
    return {holding.holder for holding in load_status(root / "run", timeout_s=SOON_S).holders}


def watch(kubelet, wanted, seconds):
    """For so long nothing else is on offer."""
    until = time.monotonic() + seconds
    wait_healthy(kubelet, wanted, resource=SHARED)
    while time.monotonic() < until:
        assert healthy(kubelet, SHARED) == wanted
        time.sleep(0.05)


def check_outage(kubelet, config_map, machine, pod, seconds):
    kubelet.stop()
    kubelet.lose_api_server()
    kubelet.start()
    while_held, afterwards = share(config_map, machine, pod)
    watch(kubelet, while_held, seconds)
    kubelet.find_api_server()
    wait_until(lambda: not kubelet.readmissions_pending, what="that the pod is admitted again")
    watch(kubelet, while_held, 2.0)
    kubelet.delete(pod)
    wait_healthy(kubelet, afterwards, resource=SHARED, timeout_s=SOON_S)


@two_gpus
def test_what_only_the_checkpoint_names_is_held_while_the_api_server_is_away(kubelet, config_map, machine, pod):
    """Over two lists that are sent again for that."""
    check_outage(kubelet, config_map, machine, pod, 6.0)


@two_gpus
@at_length
def test_and_so_it_is_however_long_that_takes(kubelet, config_map, machine, pod):
    check_outage(kubelet, config_map, machine, pod, LONG_S)


@one_gpu
def test_it_is_not_taken_for_a_holder_either_where_nothing_waits_for_it(kubelet, daemon, pod, root):
    """As nvdp mps does, by what the plugin says: it kept the daemon of a pod that was gone."""
    wait_until(lambda: find_holders(root) == {"team/a"}, 40.0, what="that its holder is known")
    kubelet.stop()
    kubelet.delete(pod)
    kubelet.faults.list_pods_error = grpc.StatusCode.UNAVAILABLE, "not yet"
    kubelet.start()
    kubelet.wait_until(lambda: healthy(kubelet), SOON_S, what="a list, before any question")
    kubelet.faults.list_pods_error = None
    wait_until(lambda: not find_holders(root), SOON_S, what="that nobody holds it")
    assert len(kubelet.messages(GPU)) <= 4, "two kubelets, and a list that was sent again"


@one_gpu  # so that no other has lists sent
def test_a_pod_that_went_while_the_kubelet_was_away_holds_nothing_for_long(kubelet, config_map, machine, daemon, pod):
    """Its checkpoint still names it, and would for ever: nothing but a list makes the kubelet write it again."""
    kubelet.stop()
    kubelet.delete(pod)
    _, afterwards = share(config_map, machine, pod)
    daemon.log.wait_for("ConfigApplied", text=SHARED)
    kubelet.faults.list_pods_error = grpc.StatusCode.UNAVAILABLE, "not yet"
    kubelet.start()
    kubelet.wait_until(
        lambda: kubelet.messages(SHARED) and kubelet.devices(GPU), SOON_S, what="lists, before any question"
    )
    kubelet.faults.list_pods_error = None
    wait_healthy(kubelet, afterwards, resource=SHARED, timeout_s=SOON_S)

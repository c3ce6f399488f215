"""``deviceIDStrategy: index`` on a node whose driver counts its cards anew while pods run."""

from __future__ import annotations

import grpc
import pytest

from nvdp.__main__ import main
from nvdp.http.control import load_status
from nvdp.planning.diagnosis import diagnose
from tests.daemon.node import GPU, build_config, connect, gpu_uuid, replicas, wait_healthy
from tests.daemon.process import LIMIT_S, wait_until
from tests.kubelet.plugin_client import visible_devices

MOUNTS = "/var/run/nvidia-container-devices/"
ALL = frozenset().union(*(replicas(number, 2) for number in range(4)))


def by_index(*strategies):
    plugin = {"deviceIDStrategy": "index", "deviceListStrategy": list(strategies)}
    return build_config(share=2, flags={"plugin": plugin})


def card_of(pod):
    (device_id,) = pod.ids(GPU)
    return next(number for number in range(4) if device_id.startswith(gpu_uuid(number)))


def is_told(daemon, number, pod):
    told = daemon.log.of("DeviceUnhealthy", text=f"{gpu_uuid(number)} (index")
    return [line["pods"] for line in told][-1:] == [[pod]]


@pytest.mark.invariant(10)
def test_the_card_of_a_pod_and_the_card_that_has_its_index_now_take_no_new_pods_until_it_is_gone(
    kubelet, start, machine, config_map, capsys
):
    root, daemon = machine.path.parent, start(by_index("envvar"))
    wait_healthy(kubelet, ALL)
    pod = kubelet.admit("team/nb", {"main": {GPU: 1}})
    card = card_of(pod)
    assert pod.response(GPU).envs["NVIDIA_VISIBLE_DEVICES"] == str(card)
    heir, *others = ((card + step) % 4 for step in (1, 2, 3))
    offered = ALL - replicas(card, 2) - replicas(heir, 2)

    machine.renumber(1, 2, 3, 0)
    wait_healthy(kubelet, offered)
    for number in (card, heir):
        wait_until(lambda number=number: is_told(daemon, number, "team/nb"), what="the pod's name")
    kubelet.restart_container(pod, "main")  # it gets what it got, whose card that may be
    assert pod.phase == "Running"
    with connect(kubelet) as client:
        for other in others:
            assert visible_devices(client.allocate([f"{gpu_uuid(other)}::0"])) == [str((other - 1) % 4)]
        with pytest.raises(grpc.RpcError) as refusal:
            client.allocate([f"{gpu_uuid(heir)}::1"])
    told = f"{gpu_uuid(card)} is held by team/nb as index {card}, which is this GPU now"
    assert told in refusal.value.details()
    assert any(told in finding.cause for finding in diagnose(load_status(root / "run", timeout_s=LIMIT_S)))

    # Who only looks knows it as well, and so does a successor; an edit to UUIDs changes nothing for that pod.
    flags = ("--kubelet-root", kubelet.directory.parent, "--simulated-node", machine.path)
    flags += ("--state-dir", root / "state", "--run-dir", root / "run", "--config", config_map.file)
    assert main(["plan", *map(str, flags)]) == 0
    assert told in " ".join(capsys.readouterr().out.split())
    seen = len(kubelet.messages(GPU))
    assert daemon.stop().code == 0
    daemon = start()
    wait_healthy(kubelet, offered)
    lines = len(daemon.log)
    config_map.publish(build_config(share=2))
    daemon.log.wait_for("ConfigApplied", after=lines)
    assert all(not set(message.healthy) - offered for message in kubelet.messages(GPU)[seen:])

    kubelet.delete(pod)
    wait_healthy(kubelet, ALL)
    assert daemon.log.wait_for("DeviceRecovered")["cause"] == "Held"


@pytest.mark.invariant(10)
def test_the_index_of_a_lost_card_is_not_for_new_pods_while_its_own_has_not_ended(kubelet, start, machine):
    start(by_index("volume-mounts"))
    wait_healthy(kubelet, ALL)
    pod = kubelet.admit("team/nb", {"main": {GPU: 1}})
    card = card_of(pod)
    assert [mount.container_path for mount in pod.response(GPU).mounts] == [f"{MOUNTS}{card}"]

    left = [number for number in range(4) if number != card]
    machine.renumber(*left)
    heir = left[card] if card < len(left) else None
    wait_healthy(kubelet, ALL - replicas(card, 2) - (replicas(heir, 2) if heir is not None else set()))

    machine.renumber(0, 1, 2, 3)
    wait_healthy(kubelet, ALL)

"""Kubelets that restart, directories that are exchanged, and other plugins of the same resource that come and go."""

from __future__ import annotations

import itertools
import time

import pytest

from tests.daemon.node import (
    FULL,
    GPU,
    KUBELETS,
    both_kubelets,
    build_config,
    find_plugin_socket,
    healthy,
    on_node,
)
from tests.daemon.process import LIMIT_S

LEAVERS = ("older", "newer")


@both_kubelets
@pytest.mark.requirement(19)
@pytest.mark.invariant(7)
def test_a_kubelet_that_restarts_has_the_same_devices_within_a_second(kubelet, daemon):
    before = kubelet.devices(GPU)
    old_socket = find_plugin_socket(kubelet)

    for number in range(3):
        kubelet.restart()
        at = time.monotonic()
        kubelet.wait_until(lambda: kubelet.devices(GPU) == before, LIMIT_S)
        assert time.monotonic() - at < 1
        daemon.wait_metric(number + 1, "nvdp_kubelet_restarts_total")

    assert (
        len({found.endpoint for found in kubelet.registrations}) == 4
    )  # a socket that was swept away is never re-used
    assert not old_socket.exists()
    told = daemon.log.wait_for("KubeletRestarted")
    assert "1 resource registered again" in told["msg"]
    assert told["seconds"] < 1
    daemon.wait_ready()


@pytest.mark.requirement(19)
def test_a_kubelet_that_is_away_for_a_while_finds_us_waiting(kubelet, daemon):
    kubelet.stop()
    daemon.wait_probe("/readyz", lambda probe: probe.status == 503)
    assert daemon.probe("/healthz").status == 200

    kubelet.start()
    at = time.monotonic()
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 16, LIMIT_S)

    assert time.monotonic() - at < 1
    daemon.wait_ready()


@both_kubelets
@pytest.mark.requirement(20)
def test_a_directory_that_is_removed_and_made_anew_is_found_again(kubelet, daemon):
    kubelet.recreate_directory()

    kubelet.wait_until(lambda: len(healthy(kubelet)) == 16, 5)

    assert find_plugin_socket(kubelet).is_socket()


@pytest.mark.requirement(20)
def test_restarts_without_a_pause_end_registered(kubelet, daemon):
    for _ in range(10):
        kubelet.restart()

    kubelet.wait_until(lambda: len(healthy(kubelet)) == 16, 5)

    daemon.wait_ready()
    assert kubelet.open_streams(GPU) == 1


@both_kubelets
@pytest.mark.parametrize("leaver", LEAVERS)
@pytest.mark.requirement(16)
@pytest.mark.invariant(7)
def test_a_second_plugin_that_goes_away_does_not_take_the_nodes_gpus_along(kubelet, daemon, start, version, leaver):
    second = start()
    kubelet.wait_until(lambda: kubelet.open_streams(GPU) == 2, LIMIT_S)
    second.wait_ready()

    goer, stayer = (daemon, second) if leaver == "older" else (second, daemon)
    assert goer.stop().code == 0

    _wait_settled(kubelet, registrations=2 if version == "1.37" else 3)
    assert kubelet.admit("team/a", {"main": {GPU: 1}}).phase == "Running"
    stayer.wait_ready()


@pytest.mark.campaign
@pytest.mark.parametrize(("version", "leaver"), [*itertools.product(KUBELETS, LEAVERS)][:: 1 if FULL else 3])
@pytest.mark.requirement(16)
def test_a_second_plugin_that_is_killed_does_not_take_the_nodes_gpus_along(kubelet, daemon, start, version, leaver):
    second = start()
    kubelet.wait_until(lambda: kubelet.open_streams(GPU) == 2, LIMIT_S)
    second.wait_ready()

    (daemon if leaver == "older" else second).kill()

    _wait_settled(kubelet, registrations=2 if version == "1.37" else 3)
    assert kubelet.admit("team/a", {"main": {GPU: 1}}).phase == "Running"


def _wait_settled(kubelet, *, registrations):
    """Wait until one plugin is left and serves the node; kubelets up to 1.36 forget it first."""
    kubelet.wait_until(
        lambda: (
            any(line.endswith(f"disconnected {GPU}") for line in kubelet.journal)
            and len(kubelet.registrations) == registrations
            and kubelet.open_streams(GPU) == 1
            and kubelet.messages(GPU)[-1].stream == registrations
            and len(healthy(kubelet)) == 16
        ),
        15,
        what="the survivor's devices",
    )


@both_kubelets
def test_a_daemon_that_restarts_costs_the_node_less_than_a_second(kubelet, daemon, start):
    before = kubelet.devices(GPU)

    assert daemon.stop().code == 0
    at = time.monotonic()
    start()
    kubelet.wait_until(lambda: kubelet.devices(GPU) == before, LIMIT_S)

    assert time.monotonic() - at < 3  # the start of an interpreter on a busy machine is part of it
    # Closed without a word: an empty list would have taken the capacity away, and every pod on its way with it.
    assert all(message.devices for message in kubelet.messages(GPU))


@on_node(kubelet={"topology_policy": "single-numa-node"})
@pytest.mark.requirement(49)
@pytest.mark.invariant(3)
def test_pods_keep_what_they_hold_over_restarts_of_kubelet_and_daemon(kubelet, daemon, start, config_map):
    pods = [kubelet.admit(f"team/{n}", {"main": {GPU: 1}}) for n in range(8)]
    ids = [pod.ids(GPU) for pod in pods]
    config_map.publish(build_config(share=1))  # all that they hold is on its way out
    kubelet.wait_until(lambda: not healthy(kubelet) & set().union(*ids), LIMIT_S)

    _restart_and_admit_again(kubelet)
    assert daemon.stop().code == 0
    start()
    kubelet.wait_until(lambda: kubelet.messages(GPU)[-1].stream == 3, LIMIT_S)
    _restart_and_admit_again(kubelet)

    assert [pod.phase for pod in pods] == ["Running"] * 8
    assert [pod.ids(GPU) for pod in pods] == ids


def _restart_and_admit_again(kubelet):
    kubelet.restart()
    kubelet.wait_until(lambda: not kubelet.readmissions_pending and kubelet.devices(GPU), LIMIT_S)

"""The daemon and its registration: what the kubelet is told, when, and how often."""

from __future__ import annotations

import itertools
import socket
import time

import pytest

from nvdp.services.retrying import Retry
from nvdp.simulate.kubelet import KUBELET_FILES
from nvdp.simulate.kubelet.names import is_extended_resource_name
from tests.daemon.node import (
    GPU,
    SHARED,
    both_kubelets,
    build_config,
    connect,
    find_plugin_socket,
    healthy,
    replicas,
    wait_healthy,
)
from tests.daemon.process import LIMIT_S
from tests.kubelet.plugin_client import PluginClient


@both_kubelets
@pytest.mark.requirement(1)
@pytest.mark.requirement(2)
@pytest.mark.requirement(3)
def test_the_daemon_serves_before_it_registers_and_says_the_same_in_both(kubelet, daemon):
    (registration,) = kubelet.registrations
    told = daemon.log.wait_for("ResourceRegistered")

    assert (told["resource"], told["devices"], told["healthy"]) == (GPU, 16, 16)
    assert registration.error is None  # the twin dials back before it answers
    assert registration.version == "v1beta1"
    assert is_extended_resource_name(registration.resource)
    assert "/" not in registration.endpoint
    assert (kubelet.directory / registration.endpoint).is_socket()
    assert registration.options == registration.request_options
    assert registration.options.get_preferred_allocation_available
    assert not registration.options.pre_start_required


@pytest.mark.requirement(4)
def test_a_slow_kubelet_is_waited_for_while_other_calls_are_answered(kubelet, start):
    kubelet.faults.register_delay_s = 10.0
    daemon = start(build_config(share=4), wait=True)

    with connect(kubelet) as client:
        while kubelet.registrations[0].answered_at is None:
            client.options()
            assert client.allocate([next(iter(replicas(0, 1)))]).container_responses
            time.sleep(0.2)
    daemon.wait_ready()

    assert len(kubelet.registrations) == 1
    assert kubelet.registrations[0].error is None


@pytest.mark.requirement(5)
def test_refusals_are_met_with_a_new_socket_each_time_and_growing_patience(kubelet, start):
    kubelet.faults.refuse_registrations(5)

    daemon = start(build_config(share=4), wait=True)

    tries = kubelet.registrations
    gaps = [later.at - earlier.at for earlier, later in itertools.pairwise(tries)]
    assert [found.error is None for found in tries] == [False] * 5 + [True]
    assert all(gap >= 0.8 * Retry.REFUSED.first_s * 2**number for number, gap in enumerate(gaps))  # any may be late
    assert len({found.endpoint for found in tries}) == 6
    assert [path.name for path in kubelet.directory.glob("nvdp-*")] == [tries[-1].endpoint]
    assert "not now" in daemon.log.wait_for("RegistrationFailed")["msg"]


@pytest.mark.requirement(6)
def test_a_missing_kubelet_is_waited_for(unstarted_kubelet, start):
    unstarted_kubelet.directory.mkdir(parents=True)
    daemon = start(build_config(share=4))
    daemon.log.wait_for("RegistrationFailed", text="waiting for the kubelet")
    daemon.wait_probe("/readyz", lambda probe: probe.body["reason"] == "NotRegistered")

    unstarted_kubelet.start()
    at = time.monotonic()
    unstarted_kubelet.wait_until(lambda: unstarted_kubelet.devices(GPU), LIMIT_S)

    assert time.monotonic() - at < 2
    daemon.wait_ready()


@pytest.mark.requirement(6)
def test_a_directory_that_is_not_there_yet_is_waited_for_too(unstarted_kubelet, start):
    start(build_config(share=4)).log.wait_for("DriverReady")
    assert not unstarted_kubelet.directory.exists()

    unstarted_kubelet.start()

    wait_healthy(unstarted_kubelet, set().union(*(replicas(n, 4) for n in range(4))))


def test_a_socket_file_on_which_nobody_listens_is_not_the_end(unstarted_kubelet, start):
    unstarted_kubelet.directory.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(unstarted_kubelet.socket))
    daemon = start(build_config(share=4))
    daemon.log.wait_for("RegistrationFailed")

    unstarted_kubelet.start()

    unstarted_kubelet.wait_until(lambda: unstarted_kubelet.devices(GPU), 2)


@pytest.mark.requirement(8)
def test_two_daemons_in_one_directory_leave_each_other_alone(kubelet, daemon, start):
    first = find_plugin_socket(kubelet)
    second_daemon = start()
    kubelet.wait_until(lambda: kubelet.open_streams(GPU) == 2, LIMIT_S)
    second = find_plugin_socket(kubelet)

    assert first != second
    assert second_daemon.stop().code == 0
    assert not second.exists()
    with PluginClient(first) as client:
        assert client.options()


@pytest.mark.requirement(8)
def test_the_socket_of_a_killed_daemon_is_cleared_away_and_a_strangers_is_not(kubelet, daemon, start):
    left = find_plugin_socket(kubelet)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(str(kubelet.directory / "other-plugin.sock"))
        stranger.listen()
        daemon.kill()
        assert left.is_socket()

        start().wait_ready()

        assert not left.exists()
        assert (kubelet.directory / "other-plugin.sock").is_socket()


@both_kubelets
@pytest.mark.requirement(15)
@pytest.mark.invariant(7)
def test_a_stream_that_the_kubelet_ends_is_answered_by_a_new_registration(kubelet, daemon):
    kubelet.close_stream(GPU)
    kubelet.wait_until(lambda: len(kubelet.messages(GPU)) == 2, 5)  # until then, for a moment, none is Healthy
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 16, LIMIT_S)

    assert daemon.log.wait_for("StreamLost")["resource"] == GPU
    daemon.wait_metric(1, "nvdp_kubelet_stream_ends_total", resource=GPU)
    daemon.wait_ready()


@pytest.mark.invariant(7)
def test_streams_of_others_that_end_right_after_a_registration_are_no_reason_for_another(kubelet, daemon):
    for _ in range(20):
        with connect(kubelet) as client:
            assert next(iter(client.watch())).devices

    assert "unless the kubelet still offers our devices" in daemon.log.wait_for("StreamLost")["msg"]
    daemon.wait_scans(4)  # more seconds than the doubt may last
    assert len(kubelet.registrations) == 1
    assert kubelet.open_streams(GPU) == 1
    daemon.wait_ready()


@pytest.mark.invariant(7)
def test_where_the_kubelet_cannot_be_asked_such_an_end_is_followed_by_a_registration(kubelet, daemon):
    kubelet.drop_pod_resources()
    with connect(kubelet) as client:
        assert next(iter(client.watch())).devices

    kubelet.wait_until(lambda: len(kubelet.registrations) == 2, 5)
    daemon.wait_ready()


@pytest.mark.requirement(21)
def test_nothing_but_sockets_is_written_to_the_kubelets_directory(kubelet, daemon, config_map):
    config_map.publish(build_config(share=2))
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 8, LIMIT_S)

    strange = [path for path in kubelet.directory.iterdir() if path.name not in KUBELET_FILES]

    assert strange == [find_plugin_socket(kubelet)]
    assert strange[0].is_socket()
    assert strange[0].stat().st_mode & 0o777 == 0o600


@both_kubelets
@pytest.mark.requirement(23)
def test_edits_and_sighup_touch_neither_stream_nor_registration(kubelet, daemon, config_map):
    pid = daemon.pid
    for share in (8, 2, 4):
        config_map.publish(build_config(share=share))
        kubelet.wait_until(lambda share=share: len(healthy(kubelet)) == 4 * share, LIMIT_S)

    assert daemon.pid == pid
    assert daemon.running
    assert len(kubelet.registrations) == 1
    assert {message.stream for message in kubelet.messages(GPU)} == {1}


@both_kubelets
@pytest.mark.requirement(23)
@pytest.mark.invariant(6)
@pytest.mark.invariant(7)
def test_an_own_socket_that_was_deleted_is_replaced_and_the_old_stream_ends_first(kubelet, daemon):
    find_plugin_socket(kubelet).unlink()

    kubelet.wait_until(lambda: len(kubelet.registrations) == 2, LIMIT_S)
    journal = kubelet.journal
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 16, LIMIT_S)

    ended = next(place for place, line in enumerate(journal) if "stream 1 " in line and "ended" in line)
    again = [place for place, line in enumerate(journal) if "Register " in line and " on " in line][1]
    assert ended < again
    assert find_plugin_socket(kubelet).is_socket()
    assert kubelet.open_streams(GPU) == 1
    daemon.wait_ready()


@pytest.mark.requirement(42)
def test_any_authority_is_accepted(kubelet, daemon):
    for authority in ("localhost", "/var/lib/kubelet/device-plugins/x.sock", "%2Fvar%2Flib"):
        with connect(kubelet, **{"grpc.default_authority": authority}) as client:
            assert client.options().get_preferred_allocation_available
            assert len(next(iter(client.watch())).devices) == 16


@both_kubelets
@pytest.mark.requirement(43)
@pytest.mark.invariant(1)
def test_a_resource_that_is_refused_does_not_hold_up_another(kubelet, daemon, config_map):
    pod = kubelet.admit("team/a", {"main": {GPU: 1}})
    kubelet.faults.refuse_registrations(4)

    config_map.publish(build_config(share=4, timeSlicing={"renameByDefault": True}))

    # The old name goes on while the new one is refused: its list says at once that nothing of it is free.
    kubelet.wait_until(lambda: not healthy(kubelet), LIMIT_S)
    assert kubelet.devices(GPU).keys() >= pod.ids(GPU)
    kubelet.wait_until(lambda: healthy(kubelet, SHARED), LIMIT_S)
    sockets = {found.resource: found.endpoint for found in kubelet.registrations}
    assert len(set(sockets.values())) == 2
    assert sum(found.resource == SHARED for found in kubelet.registrations) == 5
    assert daemon.log.of("StreamLost") == []


@pytest.mark.requirement(51)
@pytest.mark.invariant(6)
def test_a_socket_deleted_between_two_tries_is_served_anew_before_the_next(kubelet, daemon):
    kubelet.faults.refuse_registrations(3)
    kubelet.close_stream(GPU)
    kubelet.wait_until(lambda: len(kubelet.registrations) >= 3, LIMIT_S)
    for path in kubelet.directory.glob("nvdp-*"):
        path.unlink()

    kubelet.wait_until(lambda: healthy(kubelet), LIMIT_S)

    assert [found.error for found in kubelet.registrations if found.error] == ["not now"] * 3


@pytest.mark.requirement(51)
@pytest.mark.invariant(7)
def test_a_kubelet_that_comes_during_a_try_is_registered_with_at_once(kubelet, daemon):
    kubelet.faults.register_delay_s = 30
    kubelet.close_stream(GPU)
    kubelet.wait_until(lambda: len(kubelet.registrations) == 2, LIMIT_S)
    kubelet.faults.register_delay_s = 0

    kubelet.restart()
    at = time.monotonic()
    kubelet.wait_until(lambda: healthy(kubelet), LIMIT_S)

    assert time.monotonic() - at < 2

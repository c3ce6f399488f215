"""How the process ends: when asked, quickly and cleanly; by itself, only where waiting cannot help."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.daemon.kernel import mount, pod_dev
from tests.daemon.node import GPU, build_config, connect, find_plugin_socket, healthy
from tests.daemon.process import LIMIT_S, wait_until
from tests.kubelet.plugin_client import stalled_reader


@pytest.mark.requirement(22)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_it_ends_streams_removes_its_sockets_and_exits_with_zero(kubelet, daemon, number):
    own = find_plugin_socket(kubelet)
    child = daemon.child
    with connect(kubelet) as client:
        stream = iter(client.watch())
        assert next(stream).devices

        ended = daemon.stop(number)

        assert list(stream) == []  # a regular end, and no empty list before it
    assert ended.code == 0
    assert ended.seconds < 5
    assert not own.exists()
    wait_until(lambda: not child.is_running(), what="the end of the child, which dies with its parent")
    kubelet.wait_until(lambda: not kubelet.open_streams(GPU), LIMIT_S)
    assert kubelet.capacity(GPU) == 16  # an upgrade is not the end of the node's GPUs
    assert [line["reason"] for line in daemon.log][-1] == "Stopped"


@pytest.mark.requirement(22)
def test_a_stop_before_anything_has_begun_is_a_clean_one(unstarted_kubelet, start):
    daemon = start(build_config())
    daemon.log.wait_for("Starting")
    ended = daemon.stop()

    assert (ended.code, ended.seconds < 5) == (0, True)


@pytest.mark.requirement(22)
@pytest.mark.parametrize("hang", ["a stalled register", "no kubelet", "a child stopped"])
def test_nothing_that_hangs_holds_up_the_stop(kubelet, daemon, hang):
    if hang == "a stalled register":
        kubelet.faults.register_delay_s = 60
        kubelet.close_stream(GPU)
        kubelet.wait_until(lambda: len(kubelet.registrations) == 2, LIMIT_S)
    elif hang == "no kubelet":
        kubelet.stop()
    else:
        os.kill(daemon.child.pid, signal.SIGSTOP)

    ended = daemon.stop()

    assert (ended.code, ended.seconds < 5) == (0, True)
    kubelet.faults.register_delay_s = 0


@pytest.mark.requirement(22)
@pytest.mark.requirement(29)
def test_a_log_that_nobody_reads_holds_up_neither_pods_nor_the_stop(kubelet, start):
    daemon = start(build_config(share=4), wait=True, read_log=False)
    one = [next(iter(healthy(kubelet)))]
    with connect(kubelet) as client:
        for call in [client.allocate_later(one) for _ in range(600)]:  # a pipe holds 64 KiB
            assert call.result().container_responses
        at = time.monotonic()
        assert client.allocate(one)
        assert time.monotonic() - at < 1

    ended = daemon.stop()
    assert (ended.code, ended.seconds < 5) == (0, True)
    assert 50_000 < len(daemon.unread) < 2**16 + 1


def test_a_reader_that_stalls_does_not_hold_up_the_stop(kubelet, daemon):
    with stalled_reader(find_plugin_socket(kubelet)):
        wait_until(lambda: (daemon.metric("nvdp_kubelet_streams", resource=GPU) or 0) == 2, what="the stalled stream")
        ended = daemon.stop()

    assert (ended.code, ended.seconds < 5) == (0, True)


@pytest.mark.requirement(7)
def test_a_path_that_no_socket_can_have_ends_it_with_one_and_a_remedy(root, machine):
    deep = root / ("d" * 100)
    code, lines = _run("--kubelet-root", deep, "--simulated-node", machine.path, "--state-dir", root / "s")

    assert code == 1
    assert "107 bytes" in lines[-1]
    assert "use a shorter --kubelet-root" in lines[-1]


def test_no_permission_in_the_socket_directory_ends_it_with_one(root, machine):
    (root / "k").mkdir()
    (root / "k" / "device-plugins").mkdir()
    device_plugins = root / "k" / "device-plugins"
    read_only = mount(
        ["mount", "--bind", device_plugins, device_plugins], ["mount", "-o", "remount,bind,ro", device_plugins]
    )
    code, lines = _run(
        "--kubelet-root", root / "k", "--simulated-node", machine.path, "--state-dir", root / "s", launcher=read_only
    )

    assert code == 1
    assert str(device_plugins) in lines[-1]
    assert "permission" in lines[-1] or "read-only" in lines[-1].lower()


@pytest.mark.parametrize(
    ("flags", "code", "text"),
    [
        (("--kubelet-root", f"/tmp/{'d' * 100}"), 1, "107 bytes"),
        (("--metrics-port", "many"), 2, "--metrics-port"),
        (("--no-such-flag",), 2, "no-such-flag"),
    ],
)
def test_the_last_line_is_left_for_kubectl_describe(root, machine, flags, code, text):
    message = root / "termination-log"
    message.touch()
    pod = pod_dev(root / "dev", message)
    ended, lines = _run("--simulated-node", machine.path, "--state-dir", root / "s", *flags, launcher=pod)

    assert ended == code
    assert text in message.read_text()
    assert message.read_text() in lines[-1]


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--metrics-port", "many"), "--metrics-port"),
        (("--device-id-strategy", "serial"), "device-id-strategy"),
        (("--no-such-flag",), "no-such-flag"),
    ],
)
def test_a_flag_that_does_not_parse_ends_it_with_two(flags, text):
    code, lines = _run(*flags)

    assert code == 2
    assert len(lines) == 1
    assert text in lines[0]


def test_an_environment_variable_that_does_not_parse_ends_it_with_two():
    code, lines = _run(environment={"NVDP_METRICS_PORT": "9402x"})

    assert (code, len(lines)) == (2, 1)
    assert "NVDP_METRICS_PORT" in lines[0]


def test_a_second_signal_does_no_harm(kubelet, daemon):
    daemon.send(signal.SIGTERM)
    daemon.send(signal.SIGTERM)
    daemon.send(signal.SIGHUP)

    assert daemon.wait().code == 0


def _run(*flags, launcher=(), environment=None):
    """Run it to its end: exit code and lines of its standard error."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        [*launcher, sys.executable, "-m", "nvdp", "run", "--log-format", "text", *map(str, flags)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S * 2,
        env={**kept, **(environment or {})},
        check=False,
    )
    return done.returncode, done.stderr.splitlines()

"""Standard streams that are stuck, closed or not there: the log is never why something else fails."""

from __future__ import annotations

import array
import fcntl
import termios
import time

import msgspec

from tests.daemon.node import build_config, connect, find_plugin_socket, gpu_uuid, healthy, replicas, wait_healthy
from tests.daemon.process import LIMIT_S, Daemon, wait_until

_F_SETPIPE_SZ = 1031
_PIPE_BYTES = 16384
_LINES = 80  # of some 400 bytes each


def test_with_a_log_that_nobody_reads_pods_start_edits_are_followed_and_the_end_is_clean(kubelet, start, config_map):
    daemon = start(build_config(share=4), wait=True, read_log=False)
    fcntl.fcntl(daemon.process.stderr, _F_SETPIPE_SZ, _PIPE_BYTES)
    began = time.monotonic()
    with connect(kubelet) as client:
        for _ in range(_LINES):
            client.allocate([min(healthy(kubelet))])
    assert time.monotonic() - began < 4

    config_map.publish(build_config(share=6))
    wait_healthy(kubelet, {device for number in range(4) for device in replicas(number, 6)})
    own = find_plugin_socket(kubelet)
    ended = daemon.stop()

    assert (ended.code, ended.seconds < 2) == (0, True)
    assert not own.exists()


def test_a_log_that_is_read_again_tells_how_many_lines_are_missing(kubelet, start):
    daemon = start(build_config(share=4), wait=True, read_log=False)
    daemon.wait_ready()  # what a start has to say is said
    fcntl.fcntl(daemon.process.stderr, _F_SETPIPE_SZ, _PIPE_BYTES)
    with connect(kubelet) as client:
        for _ in range(_LINES):
            client.allocate([f"{gpu_uuid(0)}::0"])
        lines = _read_lines(daemon)
        client.allocate([f"{gpu_uuid(0)}::1"])
        lines += _read_lines(daemon)

    assert lines[-1]["devices"] == [f"{gpu_uuid(0)}::1"]
    served = [line for line in lines if line["reason"] == "AllocationServed"]
    assert lines[-1]["linesLost"] == _LINES + 1 - len(served) > 0


def test_without_standard_streams_it_serves_and_stops_as_ever(kubelet, start):
    daemon = start(build_config(share=4), launcher=["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"], wait=True)
    wait_healthy(kubelet, {device for number in range(4) for device in replicas(number, 4)})

    daemon.wait_ready()
    assert daemon.stop().code == 0


def _count_unread(daemon: Daemon) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(daemon.process.stderr, termios.FIONREAD, count)
    return count[0]


def _read_lines(daemon: Daemon) -> list[dict]:
    """All lines that wait to be read; the last one may be torn, and is then left out."""
    wait_until(lambda: _count_unread(daemon), LIMIT_S, what="something to read")
    texts = daemon.process.stderr.read1(_count_unread(daemon)).splitlines()
    return [msgspec.json.decode(text) for text in texts if text.endswith(b"}")]

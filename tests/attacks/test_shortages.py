"""A node that is out of something: file descriptors, threads, room on the disk. Nothing is lost that there was."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nvdp.errors import KubeletError
from nvdp.kubelet.registration import Registration
from nvdp.kubelet.sockets import is_listening
from tests.daemon.node import GPU, build_config, connect, gpu_uuid, healthy
from tests.daemon.process import LIMIT_S, Daemon


@contextmanager
def _without_descriptors(daemon: Daemon | None = None) -> Iterator[None]:
    """Meanwhile the daemon, or this process, can open nothing: its standard streams are all that is allowed."""
    pid = daemon.pid if daemon is not None else os.getpid()
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def test_out_of_descriptors_what_is_registered_stays_and_a_new_kubelet_is_met_afterwards(kubelet, daemon):
    daemon.wait_ready()  # its port may just be starting
    with _without_descriptors(daemon), socket.socket(socket.AF_UNIX) as other:
        # The kubelet's socket is another one, and ours has not been removed: nothing to serve anew, only to register.
        fresh = kubelet.directory / "fresh"
        other.bind(str(fresh))
        other.listen()
        fresh.rename(kubelet.socket)
        daemon.log.wait_for("RegistrationFailed", text="Too many open files")
        assert len(healthy(kubelet)) == 16

    kubelet.restart()
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 16, LIMIT_S)


def test_without_descriptors_nobody_is_known_to_listen(kubelet):
    with _without_descriptors():
        answers = is_listening(kubelet.socket)

    assert answers is False
    assert is_listening(kubelet.socket) is True


def test_without_descriptors_registering_fails_in_words(kubelet):
    with _without_descriptors(), pytest.raises(KubeletError, match="Too many open files"):
        Registration(kubelet.socket, endpoint="x.sock", resource=GPU, done=lambda *_: None)


_NO_THREADS = """
import os, threading

start = threading._start_new_thread

def start_if_there_are_any(*arguments):
    if os.path.exists("{flag}"):
        raise RuntimeError("can't start new thread")
    return start(*arguments)

threading._start_new_thread = start_if_there_are_any
"""


def test_where_no_thread_can_be_started_pods_start_and_what_needs_threads_comes_later(kubelet, start, machine, root):
    flag = root / "no-threads"
    (root / "sitecustomize.py").write_text(_NO_THREADS.format(flag=flag))
    paths = filter(None, (str(root), os.environ.get("PYTHONPATH")))
    config = build_config(share=4, health={"recovery": {"holdOff": "200ms"}})
    daemon = start(config, environment={"PYTHONPATH": os.pathsep.join(paths)}, wait=True)
    daemon.has_defects = True
    daemon.log.wait_for("ResourceRegistered")

    flag.touch()
    pods = [kubelet.admit(f"pod-{number}", {"main": {GPU: 1}}) for number in range(3)]
    with connect(kubelet) as client:
        calls = [client.allocate_later([f"{gpu_uuid(0)}::0"]) for _ in range(60)]  # more than there are threads
        assert all(call.result().container_responses for call in calls)
    machine.fault("nvmlDeviceGetUUID", gpu=1, error="GpuIsLost")
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 12, LIMIT_S, what="one GPU less")
    kubelet.close_stream(GPU)
    daemon.log.wait_for("RegistrationFailed", text="not asked, for no thread can be started")
    kubelet.restart()
    daemon.log.wait_for("RegistrationFailed", text="no thread can be started (can't start new thread); see")
    machine.heal()
    flag.unlink()

    kubelet.wait_until(lambda: len(healthy(kubelet)) == 16, LIMIT_S, what="all GPUs again")
    assert all(pod.phase == "Running" for pod in pods)
    assert daemon.wait_ready().status == 200

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
from tests.daemon.node import GPU, healthy
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

"""One Register call, against a real gRPC kubelet that answers as a test wants."""

from __future__ import annotations

import queue
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import psutil
import pytest

from nvdp.errors import KubeletError
from nvdp.kubelet.proto import deviceplugin_v1beta1_pb2 as deviceplugin
from nvdp.kubelet.protocol import REGISTER, REGISTRATION, build_service
from nvdp.kubelet.registration import Registration
from nvdp.kubelet.server import build_address
from tests.kubelet.lists import build_list
from tests.kubelet.plugin_client import PluginClient

LIMIT_S = 10


@pytest.fixture
def kubelet(short_dir):
    """``kubelet(answer)`` serves Register with ``answer(request, context)`` and returns the socket."""
    servers = []

    def serve(answer):
        path = short_dir / "kubelet.sock"
        server = grpc.server(ThreadPoolExecutor(4))
        server.add_generic_rpc_handlers([build_service(REGISTRATION, {REGISTER: REGISTER.unary_handler(answer)})])
        server.add_insecure_port(build_address(path))
        server.start()
        servers.append(server)
        return path

    yield serve
    for server in servers:
        server.stop(0).wait(LIMIT_S)


class Attempts:
    """Registrations made by a test, all ended with it; ``outcome`` waits for the next one's."""

    def __init__(self) -> None:
        self._outcomes: queue.SimpleQueue[KubeletError | None] = queue.SimpleQueue()
        self._made: list[Registration] = []

    def make(self, path, **options) -> Registration:
        self._made.append(
            Registration(
                path,
                endpoint="nvdp-x.sock",
                resource="nvidia.com/gpu",
                done=lambda _, error: self._outcomes.put(error),
                **options,
            )
        )
        return self._made[-1]

    def outcome(self) -> KubeletError | None:
        return self._outcomes.get(timeout=LIMIT_S)

    def end(self) -> None:
        for attempt in self._made:
            attempt.end()


@pytest.fixture
def attempts():
    made = Attempts()
    yield made
    made.end()


@pytest.mark.requirement(2)
@pytest.mark.requirement(3)
def test_the_request_says_version_endpoint_resource_and_the_options_that_are_also_served(kubelet, attempts, served):
    requests = []
    path = kubelet(lambda request, _: requests.append(request) or deviceplugin.Empty())
    attempts.make(path)
    assert attempts.outcome() is None
    [request] = requests
    assert (request.version, request.endpoint, request.resource_name) == ("v1beta1", "nvdp-x.sock", "nvidia.com/gpu")
    assert request.options == served(build_list()).client.options()


@pytest.mark.requirement(1)
def test_the_kubelet_may_call_back_before_it_answers(kubelet, attempts, served):
    plugin = served(build_list())

    def call_back(_request, _context):
        with PluginClient(plugin.server.path) as client:
            client.options()
        return deviceplugin.Empty()

    attempts.make(kubelet(call_back))
    assert attempts.outcome() is None


def test_a_refusal_is_the_kubelets_own_text_in_one_line(kubelet, attempts):
    attempts.make(kubelet(lambda _, context: context.abort(grpc.StatusCode.UNKNOWN, "the ResourceName\n is invalid")))
    error = attempts.outcome()
    assert error.refused
    assert str(error) == "the kubelet refuses: the ResourceName is invalid"


@pytest.mark.requirement(6)
@pytest.mark.parametrize("state", ["missing", "stale", "not yet listening"])
def test_nobody_listening_is_told_at_once_and_is_no_refusal(short_dir, state):
    path = short_dir / "kubelet.sock"
    with socket.socket(socket.AF_UNIX) as kubelet:
        if state != "missing":
            kubelet.bind(str(path))
        if state == "stale":
            kubelet.listen()
            kubelet.close()
        with pytest.raises(KubeletError, match="nobody listens") as caught:
            Registration(path, endpoint="e", resource="r", done=lambda *_: None)
    assert not caught.value.refused


@pytest.mark.parametrize("path", ["/" + "d" * 120, "/etc/hostname/x"])
def test_a_path_that_is_no_socket_is_an_error_in_words(path):
    with pytest.raises(KubeletError, match="--kubelet-socket"):
        Registration(Path(path), endpoint="e", resource="r", done=lambda *_: None)


def test_a_kubelet_that_does_not_answer_in_time_has_not_refused(kubelet, attempts):
    over = threading.Event()
    attempts.make(kubelet(lambda _request, _context: over.wait(LIMIT_S) and deviceplugin.Empty()), deadline_s=0.1)
    error = attempts.outcome()
    over.set()
    assert not error.refused
    assert "did not answer in time" in str(error)


@pytest.mark.requirement(51)
@pytest.mark.invariant(7)
def test_ending_an_attempt_cancels_the_call_in_the_kubelet(kubelet, attempts):
    arrived, cancelled = threading.Event(), threading.Event()

    def hold(_request, context):
        context.add_callback(cancelled.set)
        arrived.set()
        cancelled.wait(LIMIT_S)
        return deviceplugin.Empty()

    attempt = attempts.make(kubelet(hold))
    assert arrived.wait(LIMIT_S)
    attempt.end()
    assert cancelled.wait(LIMIT_S)
    error = attempts.outcome()
    assert not error.refused
    attempt.end()  # again and again


def test_attempts_leave_no_thread_and_no_file_behind(kubelet, attempts):
    path = kubelet(lambda _request, _context: deviceplugin.Empty())
    process = psutil.Process()

    def cycle():
        attempt = attempts.make(path)
        attempts.outcome()
        attempt.end()

    for _ in range(4):
        cycle()
    threads, files = process.num_threads(), process.num_fds()
    for _ in range(50):
        cycle()
    # A few more are grpc's own pool, which grows to the number of cores.
    deadline = time.monotonic() + LIMIT_S
    while process.num_threads() > threads + 6 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert process.num_threads() <= threads + 6
    assert process.num_fds() <= files + 6

"""A node for tests of actors: a directory, the kubelet's twin, actors, and all that they report."""

from __future__ import annotations

import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from nvdp.kubelet.proto import deviceplugin_v1beta1_pb2 as deviceplugin
from nvdp.kubelet.protocol import REGISTER, REGISTRATION, build_service
from nvdp.model.reasons import Reason
from nvdp.services.events import ResourceReport
from nvdp.services.resource import ResourceActor
from nvdp.services.retrying import Timings
from nvdp.simulate.kubelet import KUBELET_FILES, Kubelet
from tests.kubelet.lists import build_list
from tests.kubelet.plugin_client import Notes

GPU = "nvidia.com/gpu"
LIMIT_S = 10
QUICK = Timings(settle_s=0.3, no_stream_s=0.4, grace_s=0.1)

both_kubelets = pytest.mark.parametrize("version", ["1.36", "1.37"])


class Observed:
    """What an actor counted and posted, as Notes: registration, stream_lost, rpc, allocation_refused, report, log."""

    def __init__(self) -> None:
        self.notes = Notes()

    def registration(self, resource, result):
        self.notes.add("registration", resource, result)

    def stream_lost(self, resource):
        self.notes.add("stream_lost", resource)

    def rpc(self, resource, method, code, seconds):
        self.notes.add("rpc", resource, method, code, seconds)

    def allocation_refused(self, resource, reason):
        self.notes.add("allocation_refused", resource, reason)

    def post(self, event):
        self.notes.add("report" if isinstance(event, ResourceReport) else type(event).__name__, event)

    def log(self, reason, msg, /, **fields):
        self.notes.add("log", reason, msg, fields)

    @property
    def results(self) -> list[str]:
        return [result for _, result in self.notes.of("registration")]

    def logged(self, reason: Reason) -> list[str]:
        return [msg for logged, msg, _ in self.notes.of("log") if logged is reason]

    @property
    def last(self) -> ResourceReport:
        reports = self.notes.of("report")
        return reports[-1][0] if reports else ResourceReport(resource="", registered=False, streams=0, taken_version=0)


class Node:
    """A directory with a twin and actors. ``wait`` waits for anything, with a deadline."""

    def __init__(self, stack: ExitStack) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="nv", dir="/tmp"))
        stack.callback(shutil.rmtree, self.root, ignore_errors=True)
        self.directory = self.root / "device-plugins"
        self.directory.mkdir()
        self._stack = stack

    def kubelet(self, version: str = "1.36", **options) -> Kubelet:
        return self._stack.enter_context(Kubelet(self.root, version=version, **options))

    def actor(self, first=None, **options):
        """A started actor and what it observes."""
        observed = Observed()
        actor = ResourceActor(
            first if first is not None else build_list(),
            **{
                "directory": self.directory,
                "kubelet_socket": self.directory / "kubelet.sock",
                "post": observed.post,
                "log": observed.log,
                "observer": observed,
                "timings": QUICK,
                **options,
            },
        )
        actor.start()
        self._stack.callback(self.stop, actor)
        return actor, observed

    def stop(self, actor) -> None:
        actor.stop("the test is over")
        assert actor.join(LIMIT_S)

    def sockets(self) -> set[str]:
        return {path.name for path in self.directory.iterdir() if path.is_socket()} - KUBELET_FILES

    def own_socket(self) -> Path:
        [name] = self.sockets()
        return self.directory / name

    @staticmethod
    def wait(condition, *, limit_s: float = LIMIT_S):
        deadline = time.monotonic() + limit_s
        while not (found := condition()):
            assert time.monotonic() < deadline, "the condition did not come true in time"
            time.sleep(0.005)
        return found


def streaming(observed: Observed, registrations: int = 1):
    """Whether the resource is registered, with its list taken, after so many registrations."""
    return lambda: observed.results.count("success") >= registrations and observed.last.registered


def wait_for_foreign_streams_only(node, kubelet):
    """Until no new stream can be the kubelet's: it opens one at Register and never else."""
    answered_at = kubelet.registrations[-1].answered_at
    node.wait(lambda: time.monotonic() - answered_at > 1.1)


class register_only_kubelet:  # noqa: N801 - used as a function
    """Accepts every Register, notes its time, and never opens a stream."""

    def __init__(self, path: Path, arrivals: list[float]) -> None:
        def register(_request, _context):
            arrivals.append(time.monotonic())
            return deviceplugin.Empty()

        self._server = grpc.server(ThreadPoolExecutor(2))
        self._server.add_generic_rpc_handlers(
            [build_service(REGISTRATION, {REGISTER: REGISTER.unary_handler(register)})]
        )
        self._server.add_insecure_port(f"unix:{path}")

    def __enter__(self) -> None:
        self._server.start()

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait(LIMIT_S)

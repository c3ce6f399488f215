"""One resource before the kubelet, as an actor: a thread that alone changes its state, woken by commands in its inbox.

What it does about the kubelet is in ``services.registrar``; here are the thread, the reports, and what is counted.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from nvdp.kubelet.feed import Feed
from nvdp.kubelet.plugin import Plugin
from nvdp.kubelet.servicer import DevicePluginServicer
from nvdp.kubelet.starts import StartCheck
from nvdp.kubelet.streams import Stream
from nvdp.log import Log, describe_exception
from nvdp.model.listing import ResourceList
from nvdp.model.reasons import Level, Reason
from nvdp.planning.aligned import prepare_choice
from nvdp.services.events import AllocateAnswered, Post, ResourceReport, ServiceCrashed
from nvdp.services.registrar import Registrar
from nvdp.services.retrying import Timings


class ResourceObserver(Protocol):
    """Counts what happens between us and the kubelet (metrics/). Any thread; must neither block nor raise."""

    def registration(self, resource: str, result: str) -> None:
        """``result`` is success or failure; a try that was given up for a newer one is neither."""
        ...

    def stream_lost(self, resource: str) -> None:
        """A ListAndWatch stream ended that we did not end."""
        ...

    def rpc(self, resource: str, method: str, code: str, seconds: float) -> None:
        """``code`` is gRPC's name. Of ListAndWatch it comes at the stream's end, ``seconds`` until its first list."""
        ...

    def allocation_refused(self, resource: str, reason: str) -> None: ...


class ResourceActor:
    """Serves and registers the resource of ``first`` from ``start`` to ``stop``. Public methods are for any thread.

    Lists are published to ``feed``, at any time. ``start_check`` is asked before each start of a container. Nothing
    here blocks but ``join`` and ``probe``. An exception that nobody expected takes the server down and then leaves the
    thread: make a new actor.
    """

    def __init__(
        self,
        first: ResourceList,
        *,
        directory: Path,
        kubelet_socket: Path | None,
        post: Post,
        log: Log,
        observer: ResourceObserver,
        log_allocations: bool = True,
        start_check: StartCheck | None = None,
        timings: Timings | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.resource = first.resource
        self.feed = Feed(first)
        self._post = post
        self._log = log
        self._observer = observer
        observe = partial(observer.rpc, self.resource)
        servicer = DevicePluginServicer(
            self.feed,
            log=log,
            log_allocations=log_allocations,
            observe=observe,
            answered=partial(post, AllocateAnswered(resource=self.resource)),
            refused=partial(observer.allocation_refused, self.resource),
        )
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._registrar = Registrar(
            Plugin(self.feed, servicer, directory=directory, listener=self, observe=observe, start_check=start_check),
            resource=self.resource,
            kubelet_socket=kubelet_socket,
            call_later=self._inbox.put,
            count=partial(observer.registration, self.resource),
            log=self._log_about,
            timings=timings or Timings(),
            rng=rng or random.Random(),  # noqa: S311 - jitter, no secret
        )
        self._stop_reason: str | None = None
        self._reported: ResourceReport | None = None
        self._thread = threading.Thread(target=self._run, name=f"resource {self.resource}", daemon=True)

    def start(self) -> None:
        """Start the thread; where none can be started, that counts as its death."""
        try:
            self._thread.start()
        except RuntimeError as error:
            self._post(ServiceCrashed(thread=self._thread.name, **describe_exception(error)))

    def look(self) -> None:
        """Look at the kubelet's socket and at our own now, and do what they ask for."""
        self._inbox.put(self._registrar.look)

    def confirm(self, requested_at: float) -> None:
        """The kubelet, asked at that time (monotonic seconds), offers what it took from us."""
        self._inbox.put(partial(self._registrar.confirm, requested_at))

    def reclaim(self) -> None:
        """The kubelet does not offer what it took from us: register anew."""
        self._inbox.put(self._registrar.reclaim)

    def probe(self, timeout_s: float) -> bool:
        """Whether our socket answers; true while there is none to ask, which a new container would not change."""
        server = self._registrar.server
        if server is None or server.probe(timeout_s):
            return True
        # If it was replaced meanwhile, the one that did not answer is not ours any more.
        return server is not self._registrar.server and self.probe(timeout_s)

    def stop(self, reason: str) -> None:
        """Begin to stop; ``reason`` is for the log. The last report then says ``stopped``."""
        self._stop_reason = reason
        self._inbox.put(_wake)

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the thread; whether it came in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def stream_opened(self, stream: Stream) -> None:
        self._inbox.put(partial(self._registrar.stream_opened, stream))

    def list_taken(self, stream: Stream) -> None:  # noqa: ARG002 - the feed knows which list
        self._inbox.put(_wake)

    def stream_ended(self, stream: Stream) -> None:
        # Once the feed is closed every end is our own doing.
        if not stream.asked and not self.feed.closed:
            self._observer.stream_lost(self.resource)
        self._inbox.put(partial(self._registrar.stream_ended, stream))

    def _run(self) -> None:
        try:
            self._registrar.look()
            while self._stop_reason is None:
                self._report()
                self._prepare()
                self._turn()
        finally:
            self.feed.close()  # first, so that no end of a stream is taken for a loss
            self._registrar.close()
        self._log_about(Reason.RESOURCE_WITHDRAWN, f"withdrawn: {self._stop_reason}")
        self._report(stopped=True)

    def _turn(self) -> None:
        """Wait for a command or for the time of the next step; then do all there is to do."""
        due_at = self._registrar.due_at
        try:
            command = self._inbox.get(timeout=None if due_at is None else max(0.0, due_at - time.monotonic()))
            for _ in range(self._inbox.qsize()):
                command()
                command = self._inbox.get_nowait()
            command()
        except queue.Empty:
            pass
        if self._stop_reason is None:
            self._registrar.step()

    def _prepare(self) -> None:
        """Once the kubelet has a list: make ahead what its first request for a choice would wait for."""
        if self._reported is not None and self._reported.taken_version:
            prepare_choice(self.feed.current.listed.facts.weights)

    def _report(self, *, stopped: bool = False) -> None:
        """Tell the supervisor if anything is different from the last report."""
        report = ResourceReport(
            resource=self.resource,
            registered=self._registrar.registered,
            streams=self.feed.streams,
            taken_version=self.feed.taken_version,
            kubelet=self._registrar.known_to,
            missing=self._registrar.missing,
            doubtful=self._registrar.doubtful,
            stopped=stopped,
        )
        if report == self._reported:
            return
        if report.registered and not (self._reported is not None and self._reported.registered):
            self._log_registered()
        self._reported = report
        self._post(report)

    def _log_registered(self) -> None:
        listed = self.feed.current.listed
        devices, healthy = len(listed.devices), listed.healthy_count
        parents = {gpu.uuid: gpu.parent_uuid for gpu in listed.facts.gpus if gpu.parent_uuid}
        gpus = len({parents.get(device.gpu_uuid, device.gpu_uuid) for device in listed.devices})
        self._log_about(
            Reason.RESOURCE_REGISTERED,
            f"{devices} devices on {gpus} GPUs, {healthy} healthy",
            devices=devices,
            healthy=healthy,
        )

    def _log_about(self, reason: Reason, msg: str, /, *, level: Level | None = None, **fields: object) -> None:
        self._log(reason, msg, level=level, **{"resource": self.resource, **fields})


def _wake() -> None:
    """A command that only makes the actor look at what has changed."""

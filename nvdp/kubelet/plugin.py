"""The device plugin of one resource, apart from any socket: it is served again and again, each time on a new one."""

from __future__ import annotations

from pathlib import Path

from nvdp.errors import HostError
from nvdp.kubelet.feed import Feed
from nvdp.kubelet.messages import ListEncoder
from nvdp.kubelet.server import PluginServer, choose_socket_path
from nvdp.kubelet.servicer import DevicePluginServicer
from nvdp.kubelet.starts import ContainerStarts, StartCheck
from nvdp.kubelet.streams import ListStreams, Observe, StreamListener


class Plugin:
    """What the servers of one resource have in common: feed, servicer, each list's encoding, and the check of starts.

    ``start_check`` is asked before each start of a container; without one PreStartContainer is not asked for.
    """

    def __init__(
        self,
        feed: Feed,
        servicer: DevicePluginServicer,
        *,
        directory: Path,
        listener: StreamListener,
        observe: Observe,
        start_check: StartCheck | None = None,
    ) -> None:
        self._feed = feed
        self._servicer = servicer
        self._directory = directory
        self._listener = listener
        self._observe = observe
        self._encoder = ListEncoder()
        self._start_check = start_check

    @property
    def pre_start_required(self) -> bool:
        """Whether the kubelet is to call PreStartContainer."""
        return self._start_check is not None

    def serve(self, *, probe_s: float) -> PluginServer:
        """A server on a new socket that has answered one call of our own, in ``probe_s`` at most. Blocks until then.

        Raises HostError if there is no socket to be had, or if it does not answer.
        """
        path = choose_socket_path(self._directory, self._feed.current.listed.resource)
        streams = ListStreams(self._feed, self._encoder, listener=self._listener, observe=self._observe)
        starts = ContainerStarts(self._start_check) if self._start_check is not None else None
        service = self._servicer.build_service(streams, starts)
        server = PluginServer(path, service=service, streams=streams, starts=starts)
        server.start()
        if not server.probe(probe_s):
            server.stop(grace_s=0)
            raise HostError(f"{self._directory}: our own socket did not answer within {probe_s:g}s")
        return server

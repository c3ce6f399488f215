"""The device plugin of one resource, apart from any socket: it is served again and again, each time on a new one."""

from __future__ import annotations

from pathlib import Path

from nvdp.errors import HostError
from nvdp.kubelet.feed import Feed
from nvdp.kubelet.messages import ListEncoder
from nvdp.kubelet.server import PluginServer, choose_socket_path
from nvdp.kubelet.servicer import DevicePluginServicer
from nvdp.kubelet.streams import ListStreams, Observe, StreamListener


class Plugin:
    """What the servers of one resource have in common: feed, servicer, and each list's encoding."""

    def __init__(
        self,
        feed: Feed,
        servicer: DevicePluginServicer,
        *,
        directory: Path,
        listener: StreamListener,
        observe: Observe,
    ) -> None:
        self._feed = feed
        self._servicer = servicer
        self._directory = directory
        self._listener = listener
        self._observe = observe
        self._encoder = ListEncoder()

    def serve(self, *, probe_s: float) -> PluginServer:
        """A server on a new socket that has answered one call of our own, in ``probe_s`` at most. Blocks until then.

        Raises HostError if there is no socket to be had, or if it does not answer.
        """
        path = choose_socket_path(self._directory, self._feed.current.listed.resource)
        streams = ListStreams(self._feed, self._encoder, listener=self._listener, observe=self._observe)
        server = PluginServer(path, service=self._servicer.build_service(streams), streams=streams)
        server.start()
        if not server.probe(probe_s):
            server.stop(grace_s=0)
            raise HostError(f"{self._directory}: our own socket did not answer within {probe_s:g}s")
        return server

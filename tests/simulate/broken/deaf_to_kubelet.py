"""Registers once, and takes the kubelet for the same one ever after."""

from nvdp.app.daemon import Daemon
from nvdp.services.resource import ResourceActor
from tests.simulate.broken import play


class DeafActor(ResourceActor):
    def stream_opened(self, stream):
        self._registrar._kubelet_socket = None
        super().stream_opened(stream)


class Broken(Daemon):
    def _make_actor(self, listed, start_check):
        actor = super()._make_actor(listed, start_check)
        actor.__class__ = DeafActor
        return actor


if __name__ == "__main__":
    play(Broken)

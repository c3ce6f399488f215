"""Registers once, and never notices that the kubelet is another one."""

from nvdp.app.daemon import Daemon
from nvdp.services.resource import ResourceActor
from tests.simulate.broken import play


class DeafActor(ResourceActor):
    def kubelet_changed(self, identity):
        pass

    def look(self):
        pass

    def stream_ended(self, stream):
        pass


class Broken(Daemon):
    def _make_actor(self, listed):
        actor = super()._make_actor(listed)
        actor.__class__ = DeafActor
        return actor


if __name__ == "__main__":
    play(Broken)

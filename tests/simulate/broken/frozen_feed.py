"""Takes an edit in, and sends the kubelet the first list for ever."""

from nvdp.app.daemon import Daemon
from nvdp.kubelet.feed import Feed
from tests.simulate.broken import play


class FrozenFeed(Feed):
    def publish(self, listed):
        return self.current.version


class Broken(Daemon):
    def _make_actor(self, listed, start_check):
        actor = super()._make_actor(listed, start_check)
        actor.feed.__class__ = FrozenFeed
        return actor


if __name__ == "__main__":
    play(Broken)

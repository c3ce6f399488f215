"""Ends its stream with each edit and registers again, instead of sending the new list."""

from nvdp.app.daemon import Daemon
from nvdp.kubelet.feed import Feed
from tests.simulate.broken import play


class RestartingFeed(Feed):
    def publish(self, listed):
        for watcher in list(self._watchers):
            watcher.end()
        return super().publish(listed)


class Broken(Daemon):
    def _make_actor(self, listed, start_check):
        actor = super()._make_actor(listed, start_check)
        actor.feed.__class__ = RestartingFeed
        return actor


if __name__ == "__main__":
    play(Broken)

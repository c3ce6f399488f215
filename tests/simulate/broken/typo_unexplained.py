"""Refuses a broken edit without a word about where and why."""

from nvdp.app.daemon import Daemon
from nvdp.services.events import ConfigRead
from tests.simulate.broken import play


class Broken(Daemon):
    def __init__(self, options, overrides, log):
        super().__init__(options, overrides, log)
        post = self._post
        self._post = lambda event: post(hide(event))


def hide(event):
    if not isinstance(event, ConfigRead) or not event.problems:
        return event
    return ConfigRead(source=event.source, problems=(f"{event.source}:1:1: not valid",), at=event.at)


if __name__ == "__main__":
    play(Broken)

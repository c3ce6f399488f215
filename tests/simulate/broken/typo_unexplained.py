"""Refuses a broken edit without a word about where and why."""

from nvdp.app.daemon import Daemon
from nvdp.services.configuration import ConfigurationFile
from nvdp.services.events import ConfigRead
from tests.simulate.broken import play


class TaciturnFile(ConfigurationFile):
    def __init__(self, path, overrides, post):
        super().__init__(path, overrides, lambda event: post(self._hide(event)))

    def _hide(self, event):
        if not event.problems:
            return event
        return ConfigRead(source=event.source, problems=(f"{event.source}:1:1: not valid",), at=event.at)


class Broken(Daemon):
    def _build_configuration(self):
        return TaciturnFile(self._options.config_file, self._overrides, self._post)


if __name__ == "__main__":
    play(Broken)

"""Takes a misspelt key for the right one."""

from nvdp.app.daemon import Daemon
from nvdp.config.load import parse_config
from nvdp.services.events import ConfigRead
from tests.simulate.broken import play


class Broken(Daemon):
    def __init__(self, options, overrides, log):
        super().__init__(options, overrides, log)
        post = self._post
        self._post = lambda event: post(forgive(event, options.config_file, overrides))


def forgive(event, path, overrides):
    if not isinstance(event, ConfigRead) or not event.problems:
        return event
    text = path.read_text().replace("replica:", "replicas:").encode()
    config = parse_config(text, name=event.source, overrides=overrides)
    return ConfigRead(source=event.source, config=config, text=text, at=event.at)


if __name__ == "__main__":
    play(Broken)

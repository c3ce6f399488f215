"""Takes a misspelt key for the right one."""

from nvdp.app.daemon import Daemon
from nvdp.config.load import parse_config
from nvdp.services.configuration import ConfigurationFile
from nvdp.services.events import ConfigRead
from tests.simulate.broken import play


class LenientFile(ConfigurationFile):
    def read(self):
        text = self._path.read_text().replace("replica:", "replicas:").encode()
        config = parse_config(text, name=str(self._path), overrides=self._overrides)
        self._post(ConfigRead(source=str(self._path), config=config, text=text, at=self._clock()))


class Broken(Daemon):
    def _build_configuration(self):
        return LenientFile(self._options.config_file, self._overrides, self._post)


if __name__ == "__main__":
    play(Broken)

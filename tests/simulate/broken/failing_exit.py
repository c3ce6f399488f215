"""Stops when asked, and says that it failed."""

from nvdp.app.daemon import Daemon
from tests.simulate.broken import play


class Broken(Daemon):
    def run(self):
        super().run()
        return 1


if __name__ == "__main__":
    play(Broken)

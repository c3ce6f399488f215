"""Serves, and never tells the kubelet."""

import msgspec

from nvdp.app.daemon import Daemon
from tests.simulate.broken import play


class Broken(Daemon):
    def _make_actor(self, listed, start_check):
        self._options = msgspec.structs.replace(self._options, kubelet_socket=None)
        return super()._make_actor(listed, start_check)


if __name__ == "__main__":
    play(Broken)

"""Leaves a socket in the kubelet's directory when it stops."""

import socket

from nvdp.app.daemon import Daemon
from tests.simulate.broken import play


class Broken(Daemon):
    def run(self):
        code = super().run()
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(self._options.kubelet_socket.parent / "nvdp-left.sock"))
        return code


if __name__ == "__main__":
    play(Broken)

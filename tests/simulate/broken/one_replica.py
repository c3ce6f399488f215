"""Lists one replica of each GPU, whatever the configuration says."""

import msgspec

from nvdp.app.daemon import Daemon
from tests.simulate.broken import play


class Broken(Daemon):
    def _make_actor(self, listed, start_check):
        firsts = tuple(device for device in listed.devices if device.id.endswith("::0"))
        return super()._make_actor(msgspec.structs.replace(listed, devices=firsts), start_check)


if __name__ == "__main__":
    play(Broken)

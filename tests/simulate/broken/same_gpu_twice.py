"""Fills one GPU before the next, although the configuration says to spread: two devices are of one GPU."""

from nvdp.app.daemon import Daemon
from nvdp.config.overrides import Overrides
from nvdp.config.schema import DEFAULT
from nvdp.model.listing import SharedPolicy
from tests.simulate.broken import play

KEY = "flags.plugin.sharedDevicesAllocationPolicy"


class Broken(Daemon):
    def __init__(self, options, overrides, log):
        packed = Overrides({**overrides.values, KEY: SharedPolicy.PACKED}, {**overrides.origins, KEY: DEFAULT})
        super().__init__(options, packed, log)


if __name__ == "__main__":
    play(Broken)

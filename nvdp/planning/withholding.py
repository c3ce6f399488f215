"""Which GPUs are not on offer because the file says something about them that this version cannot do.

Ignoring such a key would offer a device that the file does not offer. So the devices concerned are withheld, with the
reason.
"""

from __future__ import annotations

from collections.abc import Sequence

from nvdp.config.schema import Config
from nvdp.config.unbuilt import Outcome, find_unbuilt
from nvdp.planning.assignment import Withheld
from nvdp.planning.devices import Device
from nvdp.planning.sharing import Claims


def withhold_unbuilt(config: Config, devices: Sequence[Device], claims: Claims) -> dict[str, Withheld]:
    """The devices to withhold, by UUID, each with the first reason in the order of ``find_unbuilt``."""
    withheld: dict[str, Withheld] = {}
    for unbuilt in find_unbuilt(config):
        if unbuilt.outcome is not Outcome.WITHHOLD:
            continue
        taken = {uuid for uuid, entry in claims.takers.items() if entry.path == unbuilt.path}
        for device in devices:
            if device.uuid in taken:
                text = f"not built yet ({unbuilt.text})"
                withheld[device.uuid] = Withheld(reason="NotBuilt", path=unbuilt.path, text=text)
    return withheld

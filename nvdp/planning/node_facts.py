"""What the labels of a node are made of, apart from what makes them: a node without labels does not load that. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from nvdp.config.schema import Config
from nvdp.model.inventory import Inventory
from nvdp.model.traits import Traits


class LabelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All that labels depend on. ``inventory`` and ``pins`` are those that the plan is made of.

    ``config`` is None as long as none is in force: what depends on it is not labelled then. ``timestamp`` is when the
    labels last changed, in seconds since the epoch, and None to leave it out.
    """

    config: Config | None
    inventory: Inventory
    pins: Mapping[str, str] = {}
    traits: Traits = Traits()
    timestamp: int | None = None

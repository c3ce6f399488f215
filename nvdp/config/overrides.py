"""What flags and environment variables say about keys of the file. They cannot change while the process runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from nvdp.config.schema import Origin


class Overrides(msgspec.Struct, frozen=True):
    """Values by the path of their key (``flags.migStrategy``), each with its origin. They win over any file."""

    values: Mapping[str, Any] = {}
    origins: Mapping[str, Origin] = {}


NO_OVERRIDES: Final = Overrides()

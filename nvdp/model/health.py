"""Why a GPU is not fit for new pods."""

from __future__ import annotations

import msgspec

from nvdp.model.reasons import Cause


class Ailment(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU without an ailment is Healthy. ``since`` is wall-clock seconds; ``text`` is a sentence for people."""

    cause: Cause
    text: str
    since: float

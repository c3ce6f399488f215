"""What a path answers, at the port and at the control socket: between the servers and those who know the content."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import msgspec

STATUS_PATH = "/status"
"""Of the control socket: the whole ``model.status.Status``, for the nvdp of the same version (``http.control``)."""

PAUSE_PATH = "/pause"
RESUME_PATH = "/resume"
CLEAR_PATH = "/health/clear"
"""Orders, of the control socket alone: the answer is a ``model.orders.Carried``."""

NOTE = "note"
DEVICE = "device"
"""What an order's query may say."""

JSON = "application/json; charset=utf-8"
TEXT = "text/plain; charset=utf-8"

Query: TypeAlias = Mapping[str, str]


class Response(msgspec.Struct, frozen=True, kw_only=True):
    status: int = 200
    body: bytes
    content_type: str = JSON


Route: TypeAlias = Callable[[Query], Response]
Routes: TypeAlias = Mapping[str, Route]
"""By path."""

NO_ROUTES: Final[Routes] = MappingProxyType({})

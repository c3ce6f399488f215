"""What a path of the port answers: the contract between the server and those who know the content."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec

JSON = "application/json; charset=utf-8"
TEXT = "text/plain; charset=utf-8"

Query: TypeAlias = Mapping[str, str]


class Response(msgspec.Struct, frozen=True, kw_only=True):
    status: int = 200
    body: bytes
    content_type: str = JSON


Route: TypeAlias = Callable[[Query], Response]

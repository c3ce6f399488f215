"""What ``nvdp mps`` answers at its port: whether its event loop turns, and whether all daemons are as wanted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import msgspec

from nvdp.http.routes import TEXT, Query, Response, Routes
from nvdp.services.events import Ping
from nvdp.services.mps_events import MpsPost
from nvdp.services.mps_readiness import Readiness

_LOOP_LIMIT_S: Final = 10.0
_NOT_WELL: Final = 503


class Probes:
    """``routes`` may be called from any thread; ``/healthz`` blocks for 10 s at most."""

    def __init__(self, get_readiness: Callable[[], Readiness], *, post: MpsPost) -> None:
        self._get_readiness = get_readiness
        self._post = post

    @property
    def routes(self) -> Routes:
        return {"/healthz": self._answer_health, "/readyz": self._answer_ready}

    def _answer_health(self, query: Query) -> Response:
        ping = Ping(answered=threading.Event())
        self._post(ping)
        turns = ping.answered.wait(_LOOP_LIMIT_S)
        problems = [] if turns else [f"the event loop has not answered within {_LOOP_LIMIT_S:.0f} s"]
        return _build(query, problems, {"healthy": turns, "problems": problems})

    def _answer_ready(self, query: Query) -> Response:
        readiness = self._get_readiness()
        daemons = {
            name: {"phase": one.phase.value, "text": one.text, "clients": one.clients, "restarts": one.restarts}
            for name, one in readiness.daemons.items()
        }
        problems = list(readiness.problems)
        return _build(query, problems, {"ready": not problems, "problems": problems, "daemons": daemons})


def _build(query: Query, problems: list[str], body: dict[str, object]) -> Response:
    status = _NOT_WELL if problems else 200
    if query.get("format") == "text":
        text = "".join(f"{line}\n" for line in problems or ["ok"])
        return Response(status=status, body=text.encode(), content_type=TEXT)
    return Response(status=status, body=msgspec.json.encode(body) + b"\n")

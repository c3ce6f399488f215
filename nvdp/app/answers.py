"""What the metrics port (``/metrics``, ``/healthz``, ``/readyz``) and the control socket answer, and whom each asks.

Orders are the control socket's alone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

import msgspec

from nvdp import __version__
from nvdp.errors import FormatError
from nvdp.http.probes import build_health, build_ready, find_problems
from nvdp.http.routes import (
    CLEAR_PATH,
    DEVICE,
    NOTE,
    PAUSE_PATH,
    RESUME_PATH,
    STATUS_PATH,
    TEXT,
    Query,
    Response,
    Routes,
)
from nvdp.metrics.recording import Metrics
from nvdp.model.orders import Carried, Orders, parse_gpu, parse_note
from nvdp.model.reasons import Reason
from nvdp.model.status import Status, Trouble
from nvdp.services.events import Ping, Post

if TYPE_CHECKING:
    from nvdp.metrics.exposition import Exposition

_SOCKET_LIMIT_S = 2.0
_STATUS_LOOP_LIMIT_S = 2.0  # a person waits, not a probe
_HOLDERS_LIMIT_S = 0.5  # it takes the kubelet some milliseconds; one that is down is not waited for
_NEW_CONTAINER = "only a new container helps: /healthz fails, and the kubelet makes one; sooner if you delete the pod"
_REVISION = "NVDP_REVISION"  # set by the image: the commit it was built from


class Probed(Protocol):
    """A resource's actor, as far as a probe needs it."""

    def probe(self, timeout_s: float) -> bool: ...


class Answers:
    """The routes of port and socket. ``status`` is replaced by the main thread; all else runs on request threads.

    ``refresh_holders`` waits, at most that long, for a new answer about who holds what. ``find_troubles`` asks the
    services, which are not the supervisor's, what does not work of them.
    """

    def __init__(
        self,
        *,
        metrics: Metrics,
        post: Post,
        count_events: Callable[[], int],
        get_actors: Callable[[], Mapping[str, Probed]],
        container_problem: Callable[[], str | None],
        refresh_holders: Callable[[float], object],
        find_troubles: Callable[[], Iterable[Trouble]],
        orders: Orders,
    ) -> None:
        self.status = Status()
        self._metrics = metrics
        self._post = post
        self._count_events = count_events
        self._get_actors = get_actors
        self._container_problem = container_problem
        self._refresh_holders = refresh_holders
        self._find_troubles = find_troubles
        self._orders = orders
        self._exposition: Exposition | None = None
        self._lock = threading.Lock()

    @property
    def routes(self) -> Routes:
        return {"/metrics": self._answer_metrics, "/healthz": self._answer_health, "/readyz": self._answer_ready}

    @property
    def control_routes(self) -> Routes:
        return {STATUS_PATH: self._answer_status}

    @property
    def control_orders(self) -> Routes:
        return _build_orders(self._orders)

    def publish(self, status: Status) -> None:
        """Show ``status`` from now on."""
        self.status = status

    def _answer_ready(self, query: Query) -> Response:
        return build_ready(self.status, query)

    def _answer_health(self, query: Query) -> Response:
        problems = find_problems(
            loop_answers=self._loop_answers,
            sockets_answer=self._find_silent,
            container_problem=self._find_container_problem,
        )
        return build_health(self.status, query, problems=problems)

    def _answer_metrics(self, _query: Query) -> Response:
        from nvdp.metrics import exposition  # noqa: PLC0415 - takes half as long to import as grpc: only if one scrapes

        with self._lock:
            if self._exposition is None:
                revision = os.environ.get(_REVISION, "")
                self._exposition = exposition.Exposition(
                    exposition.DaemonCollector(
                        self._metrics, self._build_status, version=__version__, revision=revision
                    )
                )
        return Response(body=self._exposition.render(), content_type=exposition.CONTENT_TYPE)

    def _answer_status(self, _query: Query) -> Response:
        """The status of this moment: the loop has turned once more, or that it has not is the first of its troubles."""
        self._refresh_holders(_HOLDERS_LIMIT_S)
        turned, worn = self._loop_answers(_STATUS_LOOP_LIMIT_S), self._find_container_problem()
        status = self._build_status()
        troubles = [*status.troubles, *self._find_troubles()]
        if worn is not None:
            reason = status.reason or Reason.REGISTRATION_FAILED.word
            troubles.insert(0, Trouble(reason=reason, text=worn, remedy=_NEW_CONTAINER))
        if not turned:
            text = f"the event loop has not answered within {_STATUS_LOOP_LIMIT_S:g}s: what is told here may be old"
            troubles.insert(0, Trouble(reason=Reason.SERVICE_RESTARTED.word, text=text, remedy=_NEW_CONTAINER))
        return Response(body=msgspec.json.encode(msgspec.structs.replace(status, troubles=tuple(troubles))))

    def _build_status(self) -> Status:
        """The queue is counted now: a loop that is stuck publishes nothing, and that is when its length matters."""
        return msgspec.structs.replace(self.status, queue_length=self._count_events())

    def _loop_answers(self, limit_s: float) -> bool:
        ping = Ping(answered=threading.Event())
        self._post(ping)
        return ping.answered.wait(limit_s)

    def _find_container_problem(self) -> str | None:
        with self._lock:  # it keeps time, for one thread at once
            return self._container_problem()

    def _find_silent(self) -> tuple[str, ...]:
        actors = self._get_actors()
        return tuple(resource for resource, actor in actors.items() if not actor.probe(_SOCKET_LIMIT_S))


def _build_orders(orders: Orders) -> Routes:
    return {
        PAUSE_PATH: lambda query: _carry_out(lambda: orders.pause(parse_note(query.get(NOTE, "")))),
        RESUME_PATH: lambda _query: _carry_out(orders.resume),
        CLEAR_PATH: lambda query: _carry_out(lambda: orders.clear(str(parse_gpu(query.get(DEVICE, ""))))),
    }


def _carry_out(order: Callable[[], Carried]) -> Response:
    """What became of it; 400 for words that the commands would not have sent."""
    try:
        return Response(body=msgspec.json.encode(order()))
    except FormatError as error:
        return Response(status=HTTPStatus.BAD_REQUEST, body=f"{error}\n".encode(), content_type=TEXT)

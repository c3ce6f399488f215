"""``/healthz`` and ``/readyz``: the verdict as a status code, and the daemon's state as its reason.

``/healthz`` fails when a new container is the cure, and never for what the daemon waits out.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import msgspec

from nvdp.http.routes import TEXT, Query, Response
from nvdp.model.status import ConfigStatus, DriverStatus, ResourceStatus, Status

LOOP_LIMIT_S = 10.0


def build_ready(status: Status, query: Query) -> Response:
    """200 while the node is as its configuration says, else 503; ``format=text`` for people."""
    return _build_response(status, query, ok=status.ready, verdict={})


def build_health(status: Status, query: Query, *, problems: tuple[str, ...]) -> Response:
    """200 without ``problems``, else 503. The state comes along, though it decides nothing here."""
    return _build_response(
        status, query, ok=not problems, verdict={"healthy": not problems, "problems": list(problems)}
    )


def find_problems(
    *,
    loop_answers: Callable[[float], bool],
    sockets_answer: Callable[[], tuple[str, ...]],
    container_problem: Callable[[], str | None],
) -> tuple[str, ...]:
    """What only a new container, or a new process, can cure. Blocks up to 10 s for the event loop.

    ``loop_answers`` waits that many seconds for the event loop; ``sockets_answer`` gives the resources whose own socket
    does not answer; ``container_problem`` is one sentence, or None.
    """
    if not loop_answers(LOOP_LIMIT_S):
        return (f"the event loop has not answered within {LOOP_LIMIT_S:.0f} s",)
    silent = tuple(f"{resource}: its own socket does not answer" for resource in sockets_answer())
    problem = container_problem()
    return silent if problem is None else (*silent, problem)


def _build_response(status: Status, query: Query, *, ok: bool, verdict: dict[str, object]) -> Response:
    code = 200 if ok else 503
    if query.get("format") == "text":
        return Response(status=code, body=_build_text(status, verdict).encode(), content_type=TEXT)
    body = {
        **verdict,
        "ready": status.ready,
        "reason": status.reason,
        "config": _config(status.config),
        "driver": _driver(status.driver),
        "resources": [_resource(resource) for resource in status.resources],
    }
    return Response(status=code, body=msgspec.json.encode(body) + b"\n")


def _config(config: ConfigStatus) -> dict[str, object]:
    shown: dict[str, object] = {
        "valid": config.valid,
        "hash": config.hash,
        "source": config.source,
        "appliedAt": _moment(config.applied_at),
        "refused": config.refused,
    }
    if config.chosen_by:
        shown |= {"entry": config.entry, "chosenBy": config.chosen_by}
    return {**shown, "waiting": config.waiting} if config.waiting else shown


def _driver(driver: DriverStatus) -> dict[str, object]:
    shown: dict[str, object] = {"state": driver.state.value, "version": driver.version}
    return {**shown, "text": driver.text} if driver.text else shown


def _resource(resource: ResourceStatus) -> dict[str, object]:
    shown: dict[str, object] = {
        "name": resource.name,
        "planned": resource.planned,
        "healthy": resource.healthy,
        "registered": resource.registered,
    }
    return {**shown, "missing": resource.missing} if resource.missing else shown


def _moment(wall: float | None) -> str | None:
    if wall is None:
        return None
    return dt.datetime.fromtimestamp(wall, dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _build_text(status: Status, verdict: dict[str, object]) -> str:
    config, driver = status.config, status.driver
    problems = verdict.get("problems")
    lines = [f"PROBLEM   {problem}" for problem in problems] if isinstance(problems, list) else []
    lines.append("ready" if status.ready else f"not ready: {status.reason}")
    since = _moment(config.applied_at)
    in_force = f"in force since {since}" if since else "not applied yet"
    source = f"{config.source} ({config.chosen_by})" if config.chosen_by else config.source
    lines.append(f"config    {config.hash} from {source}, {in_force}" if config.hash else "config    none in force")
    if config.refused:
        lines.append(f"refused   {config.refused}")
    if config.waiting:
        lines.append(f"awaited   {config.waiting}")
    lines.append(f"driver    {driver.state.value} {driver.version} {driver.text}".rstrip())
    lines += [
        f"resource  {resource.name}: {resource.planned} planned, {resource.healthy} healthy, "
        + ("registered" if resource.registered else f"not registered: {resource.missing or 'under way'}")
        for resource in status.resources
    ]
    return "\n".join(lines) + "\n"

"""``nvdp status`` for people: what is wrong first, then what there is, in at most 100 columns."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from nvdp.model.listing import Strategy
from nvdp.model.status import DeviceStatus, MpsDaemonStatus, ResourceStatus, Status, Wait
from nvdp.planning.findings import Finding, Gravity, describe_moment

WIDTH: Final = 100
_GAP: Final = "  "
_MAX_FINDINGS: Final = 10
_MAX_LINES: Final = 64  # of one section
_MAX_PRODUCT: Final = 32  # characters
_SHORT: Final = 12  # characters of a UUID: GPU-9a1b77c0
_LEAST_ROOM: Final = 30  # for the names of pods
_COLOURS: Final = {Gravity.NOT_READY: "red", Gravity.DEGRADED: "yellow", Gravity.NOTE: "cyan"}

Style = Callable[..., str]
"""``click.style``, or what leaves a text as it is."""


def build_text(status: Status, findings: Sequence[Finding], *, style: Style) -> str:
    """All of it, without the last newline. Colour says nothing that is not in the words too."""
    sections = [
        [_build_verdict(status, findings, style)],
        _build_findings(findings, style),
        _build_section("RESOURCES", _build_resources(status), style),
        _build_section("MPS", _build_mps(status), style),
        _build_section("DEVICES", _build_devices(status), style),
        _build_section("HELD BY", _build_holders(status), style),
        _build_section("WAITS", _build_waits(status), style),
        _build_section("CONFIGURATION", _build_config(status), style),
        _build_section("DRIVER", _build_driver(status), style),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def no_style(text: str, **_attributes: object) -> str:
    """For output that is no terminal, or that is to have no colour."""
    return text


def _build_verdict(status: Status, findings: Sequence[Finding], style: Style) -> str:
    worst = min((finding.gravity for finding in findings), default=None)
    if not status.ready:
        return style(f"not ready: {status.reason}", fg="red", bold=True)
    if worst is Gravity.DEGRADED:
        return style("ready, but degraded", fg="yellow", bold=True)
    return style("ready", fg="green", bold=True)


def _build_findings(findings: Sequence[Finding], style: Style) -> list[str]:
    """A few lines for each: the reason and the cause, then what to do."""
    lines: list[str] = []
    for finding in findings[:_MAX_FINDINGS]:
        cause = _wrap(f"{finding.reason}: {finding.cause}", indent="    ")
        reason = style(finding.reason, fg=_COLOURS[finding.gravity], bold=True)
        lines += [reason + cause[0].removeprefix(finding.reason), *cause[1:]]
        lines += _wrap(f"→ {finding.remedy}", first="  ", indent="    ")
    rest = len(findings) - _MAX_FINDINGS
    return lines + ([f"and {rest} more, which nvdp status --json has"] if rest > 0 else [])


def _build_section(title: str, lines: Sequence[str], style: Style) -> list[str]:
    rest = len(lines) - _MAX_LINES
    more = [f"and {rest} more lines, which nvdp status --json has"] if rest > 0 else []
    return [style(title, bold=True), *lines[:_MAX_LINES], *more] if lines else []


def _build_resources(status: Status) -> list[str]:
    if not status.resources:
        return ["none"]
    head = ("RESOURCE", "DEVICES", "HEALTHY", "SHARING", "KUBELET")
    rows = [
        (
            one.name,
            str(one.healthy + one.unhealthy),
            str(one.healthy),
            _describe_sharing(one.strategy, one.replicas),
            _describe_registration(one),
        )
        for one in status.resources
    ]
    return list(_align([head, *rows], right={1, 2}))


def _describe_registration(resource: ResourceStatus) -> str:
    if resource.registered:
        return "registered"
    return "not registered" if resource.planned else "leaving"


def _describe_sharing(strategy: Strategy, replicas: Sequence[int]) -> str:
    return "" if strategy is Strategy.NONE else f"{strategy.value} × {', '.join(map(str, replicas))}"


def _build_mps(status: Status) -> list[str]:
    """A line for each control daemon. Of those that nobody tells of there is no more than the name."""
    if not status.mps.daemons:
        return []
    head = ("CONTROL DAEMON", "STATE", "PID", "GPUS", "LIMITS", "CLIENTS", "SERVERS", "RESTARTS")
    rows = [
        (
            one.resource,
            one.phase.value if one.phase is not None else "unknown",
            str(one.pid or "-"),
            str(len(one.gpus)),
            _describe_limits(one),
            str(one.clients),
            _describe_servers(one),
            str(one.restarts),
        )
        for one in status.mps.daemons
    ]
    return list(_align([head, *rows], right={2, 3, 5, 7}))


def _describe_limits(daemon: MpsDaemonStatus) -> str:
    """What each client of the daemon that runs gets at most: ``25 %, 9216 MiB``, or both bounds of the memory."""
    sizes = sorted({one.mib for one in daemon.memory})
    memory = [f"{'-'.join(map(str, dict.fromkeys((sizes[0], sizes[-1]))))} MiB"] if sizes else []
    threads = [f"{daemon.thread_percent} %"] if daemon.thread_percent is not None else []
    return ", ".join([*threads, *memory]) or "-"


def _describe_servers(daemon: MpsDaemonStatus) -> str:
    """``active``, or ``active, 2 fault``: how many there are in each state, but for one."""
    states = Counter(server.state for server in daemon.servers)
    return ", ".join(state if count == 1 else f"{count} {state}" for state, count in sorted(states.items())) or "-"


def _build_devices(status: Status) -> list[str]:
    if not status.devices and not status.unreadable:
        return ["none"]
    head = ("INDEX", "GPU", "PRODUCT", "STATE", "OFFERED AS")
    cut = {one.parent_uuid for one in status.devices if one.resource}
    rows = [
        (
            one.place,
            one.uuid[:_SHORT],
            (f"  {one.profile or '?'}" if one.parent_uuid else _cut(one.product)) or "-",
            _describe_state(one),
            "in MIG devices" if one.uuid in cut and not one.mig_pending else _describe_offer(one),
        )
        for one in status.devices
    ]
    rows += [(str(one.index), "-", "-", "unreadable", "-") for one in status.unreadable]
    return list(_align([head, *rows], right={0}))


def _cut(product: str) -> str:
    return product if len(product) <= _MAX_PRODUCT else f"{product[: _MAX_PRODUCT - 1]}…"


def _describe_state(device: DeviceStatus) -> str:
    if device.cause is not None:
        return device.cause.value
    return device.withheld or "healthy"


def _describe_offer(device: DeviceStatus) -> str:
    if not device.resource:
        return f"MIG {device.mig}: {device.mig_pending} after a reset" if device.mig_pending else "-"
    return f"{device.resource} × {device.replicas}" if device.strategy is not Strategy.NONE else device.resource


def _build_holders(status: Status) -> list[str]:
    """A line for each GPU of each resource, with as many pods as have room in it."""
    held: dict[tuple[str, str], dict[str, int]] = {}
    for holding in status.holders:
        pods = held.setdefault((holding.device_id.partition("::")[0], holding.resource), {})
        pods[holding.holder] = pods.get(holding.holder, 0) + 1
    order = {device.uuid: number for number, device in enumerate(status.devices)}
    found = sorted(held.items(), key=lambda item: (order.get(item[0][0], len(order)), item[0]))
    name = _build_name(status)
    starts = _align([(name(uuid), resource, str(sum(pods.values()))) for (uuid, resource), pods in found], right={2})
    lines: list[str] = []
    for start, (_, pods) in zip(starts, found, strict=True):
        names = [pod if count == 1 else f"{pod} × {count}" for pod, count in sorted(pods.items())]
        room = WIDTH - len(start) - len(_GAP)
        if room >= _LEAST_ROOM:
            lines += _wrap(f"{start}{_GAP}{_join_fitting(names, room)}", indent="    ")
        else:
            lines += [start, *_wrap(_join_fitting(names, WIDTH - 4), first="    ", indent="    ")]
    return lines


def _build_waits(status: Status) -> list[str]:
    """What waits for pods, or for the kubelet; last what control daemons of MPS wait with, which pods use."""
    name = _build_name(status)
    told = [_describe_wait(wait, name(wait.gpu_uuid)) for wait in status.waits]
    told += [
        f"{one.resource}{_GAP}{one.pending}{_GAP}for {_join_fitting(one.holders, _LEAST_ROOM)}"
        for one in status.mps.daemons
        if one.pending and one.holders
    ]
    return [line for text in told for line in _wrap(text, indent="    ")]


def _describe_wait(wait: Wait, gpu: str) -> str:
    if wait.text:
        return f"{gpu}  no new pods: {wait.text}  since {describe_moment(wait.since)}"
    what = f"{wait.before} → {wait.after}" if wait.after else f"{wait.devices} of {wait.before} leave"
    pods = f"for {_join_fitting(wait.holders, _LEAST_ROOM)}" if wait.holders else "for the kubelet to take note"
    return f"{gpu}  {what}  {pods} since {describe_moment(wait.since)}"


def _build_config(status: Status) -> list[str]:
    config = status.config
    rows = []
    if config.hash:
        since = f"since {describe_moment(config.applied_at)}" if config.applied_at is not None else "not applied yet"
        by = f" ({config.chosen_by})" if config.chosen_by else ""
        rows.append(("in force", f"{config.hash}  {config.source}{by}  {since}"))
    else:
        rows.append(("in force", "none"))
    if config.refused is not None:
        kind = "missing" if config.missing else "unknown" if config.unknown else "refused"
        rows.append((kind, config.refused))
    if config.waiting:
        rows.append(("awaited", config.waiting))
    if config.pending and config.pending_until is not None:
        rows.append(("waits", f"{config.pending}  until {describe_moment(config.pending_until)}"))
    width = max(len(name) for name, _ in rows) + len(_GAP)
    return [line for name, text in rows for line in _wrap(text, first=name.ljust(width), indent=" " * width)]


def _build_driver(status: Status) -> list[str]:
    driver = status.driver
    versions = f"{driver.version or 'unknown'}, CUDA {driver.cuda_version or 'unknown'}"
    return [f"{driver.state.value}{_GAP}{versions}" if driver.version else driver.state.value]


def _wrap(text: str, *, first: str = "", indent: str) -> list[str]:
    """A word longer than a line is broken; nothing else may make a line longer."""
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False)


def _join_fitting(names: Sequence[str], width: int) -> str:
    """As many of the names as have room, at least one, and how many more there are."""
    for shown in range(len(names), 1, -1):
        rest = len(names) - shown
        text = ", ".join(names[:shown]) + (f" and {rest} more" if rest else "")
        if len(text) <= width:
            return text
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _align(rows: Sequence[Sequence[str]], *, right: set[int]) -> Iterator[str]:
    """Lines of columns as wide as their widest cell; those of ``right`` hold numbers.

    Names are copied into other commands and never cut: what makes a line too long has one of its own.
    """
    if not rows:
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    broad = widths.index(max(widths))
    widths[broad] = min(widths[broad], WIDTH - sum(widths) + widths[broad] - len(_GAP) * (len(widths) - 1))
    for row in rows:
        is_long = len(row[broad]) > widths[broad]
        cells = ("" if is_long and column == broad else cell for column, cell in enumerate(row))
        if is_long and broad == 0:
            yield row[broad]
        yield _GAP.join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()
        if is_long and broad:
            yield row[broad].rjust(WIDTH)


def _build_name(status: Status) -> Callable[[str], str]:
    """A device's name by its UUID: the index that nvidia-smi has too."""
    indices = {one.uuid: f"{'MIG' if one.parent_uuid else 'GPU'} {one.place}" for one in status.devices}
    return lambda uuid: indices.get(uuid, uuid[:_SHORT])

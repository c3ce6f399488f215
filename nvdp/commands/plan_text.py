"""The text of ``nvdp plan``: tables of aligned columns, for people. Programs read the JSON (``plan_json``)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from nvdp.app.preview import Outlook, Teller
from nvdp.commands.mig_text import list_tree
from nvdp.model.platforms import Platform
from nvdp.planning.assignment import Form
from nvdp.planning.changes import Changes, DaemonChange, DeviceChange, How
from nvdp.planning.comparison import Comparison
from nvdp.planning.left_out import LeftOut
from nvdp.planning.preview import Preview, Row

Shorten = Callable[[str], str]

_GAP: Final = "  "
_UUID: Final = re.compile(r"((?:GPU|MIG)-[0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_MAX_NAMED: Final = 5  # pods in one line
_COLUMNS: Final = ("RESOURCE", "DEVICES", "REPLICAS", "ADVERTISED", "HEALTHY", "RULE")
_COMPARED: Final = ("RESOURCE", "NOW", "AFTER", "SAME IDS", "UNHEALTHY", "NEW", "GONE")
_GOAL: Final = "DEVICES and ADVERTISED are the goal, HEALTHY is what is offered now"
_PLATFORMS: Final = {Platform.WSL: "WSL2   ", Platform.TEGRA: "Tegra   "}
_MODE_CHANGE: Final = "allocation.modeChange"
_TELLERS: Final = {
    None: "",
    Teller.NVDP: "",
    Teller.POD_RESOURCES: "  (by the kubelet's word, without what is Unhealthy)",
    Teller.CHECKPOINT: "  (by the kubelet's checkpoint, without what is Unhealthy)",
}


def build_text(outlook: Outlook) -> str:
    """All of it, without the last newline."""
    preview = outlook.preview
    shorten = _build_shorten(preview)
    sections = [
        _build_head(outlook),
        _build_rows(preview),
        _build_section("MIG", list(_align(list(list_tree(preview, shorten))))),
        _build_section("LEFT OUT", _build_left_out(preview, shorten)),
        "" if outlook.changes is None else _build_changes(outlook.changes, outlook.told_by, shorten),
        "" if outlook.comparison is None else _build_comparison(outlook.comparison),
        "\n".join(
            [
                *(f"warning: {text}" for text in (*preview.warnings, *preview.cautions)),
                *(f"note: {text}" for text in (*preview.notes, *outlook.notes)),
            ]
        ),
    ]
    return "\n\n".join(section for section in sections if section)


def _build_head(outlook: Outlook) -> str:
    preview = outlook.preview
    found = f"{preview.found} GPU{'' if preview.found == 1 else 's'} found, {preview.ours} ours"
    source = Path(preview.config.name).name
    platform = _PLATFORMS.get(preview.node.inventory.platform, "")
    return f"node {outlook.node_name}   {platform}{found}   configuration {preview.config.hash}  ({source})"


def _build_rows(preview: Preview) -> str:
    rows = [
        (
            row.resource,
            str(len(row.devices)),
            str(row.assignment.replicas),
            str(row.advertised),
            str(row.healthy_count),
            _describe_rule(row),
        )
        for row in preview.rows
    ]
    lines = list(_align([_COLUMNS, *rows], right={1, 2, 3, 4})) if rows else []
    return "\n".join([*lines, *([] if preview.advertised else ["nothing to advertise"])])


def _describe_rule(row: Row) -> str:
    rule = row.assignment.rule or "default"
    limits = " or ".join(dict.fromkeys(map(str, row.limits.values())))
    pattern = f' "{row.pattern}"' if row.pattern else ""
    return f"{rule}{pattern}{f'  ({limits})' if limits else ''}{'  withheld' if row.withheld is not None else ''}"


def _build_left_out(preview: Preview, shorten: Shorten) -> list[str]:
    gpus = {device.uuid: device.gpu.uuid for device in preview.plan.devices}
    groups: dict[tuple[str, str, str, str], list[LeftOut]] = {}
    for one in preview.left_out:
        key = gpus.get(one.uuid, one.pci) if one.profile else one.uuid or one.pci
        groups.setdefault((key, one.why.value, one.path, _describe_left_out(one)), []).append(one)
    rows = [(*_name_left_out(key, some, shorten), why, path, text) for (key, why, path, text), some in groups.items()]
    return list(_align(rows))


def _name_left_out(gpu_uuid: str, devices: Sequence[LeftOut], shorten: Shorten) -> tuple[str, str]:
    """MIG devices of one GPU that are left out for the same are told together, as their GPU's."""
    one = devices[0]
    if len(devices) > 1:
        counts = Counter(each.profile for each in devices)
        return shorten(gpu_uuid), ", ".join(f"{count} × {profile}" for profile, count in counts.items())
    return one.pci if one.by_slot and one.pci else shorten(one.uuid) or "?", one.profile or one.product or "?"


def _describe_left_out(one: LeftOut) -> str:
    listed = f"listed Unhealthy under {one.listed_as}" if one.listed_as else ""
    return f"{listed}: {one.brief}" if listed and one.brief else listed or one.brief


def _build_changes(changes: Changes, told_by: Teller | None, shorten: Shorten) -> str:
    rows = [(shorten(one.gpu_uuid), _describe_change(one), _describe_how(one)) for one in changes.devices]
    rows += [(one.resource, f"MPS control daemon: {one.text}", _describe_how(one)) for one in changes.daemons]
    lines = list(_align(rows))
    if any(one.how is How.WAITS for one in changes.devices):
        lines.append(_GOAL)
    if changes.counts is None:
        lines.append("what is advertised now is unknown; the notes say why")
    else:
        counts = [
            (
                one.resource,
                f"{one.before} → {one.after}",
                "" if one.after else "pods that ask for it stay Pending",
            )
            for one in changes.counts
        ]
        lines += _align(counts)
    return _build_section(f"CHANGES AGAINST WHAT RUNS NOW{_TELLERS[told_by]}", lines or ["nothing changes"])


def _describe_change(change: DeviceChange) -> str:
    before, after = change.before, change.after
    if before == after and before is not None:
        return f"{before.resource}, {'in another MIG layout' if change.how is How.WAITS else 'fewer replicas'}"
    is_same_name = before is not None and after is not None and before.resource == after.resource
    return f"{_name_form(before, whole=is_same_name)} → {_name_form(after, whole=is_same_name)}"


def _name_form(form: Form | None, *, whole: bool) -> str:
    if form is None:
        return "not on offer"
    return str(form) if whole else form.resource


def _describe_how(change: DeviceChange | DaemonChange) -> str:
    pods = _some(change.holders, _MAX_NAMED)
    match change.how:
        case How.WAITS if isinstance(change, DeviceChange) and change.daemon:
            what = f"{change.daemon}, of the same MPS control daemon,"
            return f"waits: {what} is held by {pods} ({_MODE_CHANGE}: when-free)"
        case How.ENDS_CLIENTS:
            return f"at once, which ends what computes in {pods} ({_MODE_CHANGE}: immediate)"
        case How.WAITS:
            return f"waits: held by {pods} ({_MODE_CHANGE}: when-free)"
        case How.SHARED_AT_ONCE:
            return f"at once, though held by {pods} ({_MODE_CHANGE}: immediate)"
        case How.LINGERS:
            return f"what is held stays listed, Unhealthy, until the end of {pods}"
        case How.AT_ONCE:
            return "at once"


def _build_comparison(comparison: Comparison) -> str:
    rows = [
        tuple(map(str, (one.resource, one.now, one.after, one.same, one.unhealthy, one.fresh, one.gone)))
        for one in comparison.resources
    ]
    lines = list(_align([_COMPARED, *rows], right=set(range(1, len(_COMPARED)))))
    lines += [f"{one} vanishes: pods that ask for it stay Pending" for one in comparison.vanishing]
    held: dict[tuple[str, str, str], list[str]] = {}
    for one in comparison.held:
        held.setdefault((one.holder, one.resource, one.text), []).append(one.device_id)
    lines += _align([(pod, name, _some(ids, 1), f"keeps running; {text}") for (pod, name, text), ids in held.items()])
    lines += _conclude(comparison)
    return _build_section("COMPARED WITH WHAT IS ADVERTISED NOW", lines)


def _conclude(comparison: Comparison) -> Iterator[str]:
    if comparison.is_same:
        total = sum(one.now for one in comparison.resources)
        yield f"the same {total} IDs under the same names: nothing changes for pods that run or wait"
    elif not comparison.held:
        yield "no ID that a pod holds changes: they all run on, also over a restart of the kubelet"
    else:
        pods = len({one.holder for one in comparison.held})
        yield (
            f"{pods} pod{'' if pods == 1 else 's'} with an ID that does not stay Healthy: running on, but should the "
            "kubelet restart, a container that has to start anew may be refused (UnexpectedAdmissionError)"
        )


def _some(names: Sequence[str], most: int) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def _build_section(title: str, lines: Sequence[str]) -> str:
    return "\n".join([title, *lines]) if lines else ""


def _align(rows: Sequence[Sequence[str]], *, right: set[int] | None = None) -> Iterator[str]:
    """Lines of columns as wide as their widest cell; those of ``right`` hold numbers."""
    if not rows:
        return
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (
            cell.rjust(width) if column in (right or ()) else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield _GAP.join(cells).rstrip()


def _build_shorten(preview: Preview) -> Shorten:
    """UUIDs by their first digits, as long as these tell the node's GPUs apart."""
    uuids = {device.uuid for device in preview.plan.devices} | {gpu.uuid for gpu in preview.gpus}
    short = [_shorten(uuid) for uuid in uuids]
    return _shorten if len(set(short)) == len(short) else str


def _shorten(uuid: str) -> str:
    match = _UUID.fullmatch(uuid)
    return match[1] if match is not None else uuid

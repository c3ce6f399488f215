"""Rules of the ``sharing`` block: each device is shared in one way, and one name means one promise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from nvdp.config.findings import Findings
from nvdp.config.schema import Document
from nvdp.config.sharing import Mps, MpsResource, SharedResource, TimeSlicing
from nvdp.errors import FormatError
from nvdp.model.deviceref import DeviceRef
from nvdp.model.mps import REPORT_NAME
from nvdp.model.names import GPU_RESOURCE, ResourceName, check_name_length

_FRACTIONS: Final = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth", 6: "a sixth", 8: "an eighth", 10: "a tenth"}
_MPS_FILES: Final = (REPORT_NAME, "shm")  # what nvdp has in the MPS root beside directories of resources


class _Entry(msgspec.Struct, frozen=True):
    """One entry with what follows from its block."""

    entry: SharedResource
    block: str
    final_name: ResourceName


def check_sharing(document: Document, findings: Findings) -> None:
    """Report every rule of sharing that the document breaks, at most one about the name of each entry."""
    entries = [*_iterate_entries("sharing.timeSlicing", document.sharing.time_slicing)]
    entries += _iterate_entries("sharing.mps", document.sharing.mps)
    _check_time_slicing(document.sharing.time_slicing, findings)
    _check_memory_limits(entries, findings)
    _check_users(entries, findings)
    _check_devices(entries, findings)
    plain = {GPU_RESOURCE, *(rule.name for rule in (*document.resources.gpus, *document.resources.mig))}
    for at, entry in enumerate(entries):
        _check_length(entry, findings)
        _check_directory(entry, findings)
        if not _shares_all_again(entry, entries[:at], findings) and not _mixes_ways(entry, entries[:at], findings):
            _check_promise(entry, entries, plain, findings)


def _iterate_entries(block: str, sharing: TimeSlicing | Mps | None) -> Iterator[_Entry]:
    for entry in sharing.resources if sharing is not None else ():
        assert sharing is not None
        yield _Entry(entry, block, entry.build_final_name(rename_by_default=sharing.rename_by_default))


def _check_time_slicing(sharing: TimeSlicing | None, findings: Findings) -> None:
    if sharing is not None and sharing.require_distinct_gpus and sharing.fail_requests_greater_than_one:
        findings.warn(
            "sharing.timeSlicing.requireDistinctGPUs",
            "no effect, failRequestsGreaterThanOne already refuses more than one",
        )


def _check_memory_limits(entries: list[_Entry], findings: Findings) -> None:
    """Overcommitment multiplies a share; it means nothing beside a limit in bytes."""
    for entry in (entry.entry for entry in entries if isinstance(entry.entry, MpsResource)):
        if entry.memory_overcommit_percentage is None:
            continue
        if entry.default_pinned_device_memory_limit is not None:
            limit = "defaultPinnedDeviceMemoryLimit"
        elif entry.default_per_device_pinned_memory_limit:
            limit = "defaultPerDevicePinnedMemoryLimit"
        else:
            continue
        line = findings.find_line(f"{entry.path}.{limit}")
        findings.report(
            f"{entry.path}.memoryOvercommitPercentage", f"not together with {limit} (line {line}); remove one"
        )


def _check_users(entries: list[_Entry], findings: Findings) -> None:
    """Entries of one final name have one control daemon."""
    first: dict[ResourceName, MpsResource] = {}
    for each in entries:
        if not isinstance(each.entry, MpsResource):
            continue
        other = first.setdefault(each.final_name, each.entry)
        if other.multi_user is not each.entry.multi_user:
            findings.report(
                f"{each.entry.path}.multiUser",
                f"{each.final_name} has one control daemon, and {other.path} (line {other.line}) says "
                f"{str(other.multi_user).lower()}; say the same in both, or rename one",
            )


def _check_devices(entries: list[_Entry], findings: Findings) -> None:
    taken: dict[DeviceRef, SharedResource] = {}
    for entry in entries:
        for path, ref in findings.trace(f"{entry.entry.path}.devices", entry.entry.devices.refs):
            other = taken.setdefault(ref, entry.entry)
            if other is not entry.entry:
                findings.report(
                    path,
                    f"{ref} is already shared by {other.path} (line {other.line}); "
                    "one card can be shared in one way only",
                )


def _check_length(entry: _Entry, findings: Findings) -> None:
    """Names as written were checked when they were read; here it is about the suffix."""
    try:
        check_name_length(entry.final_name)
    except FormatError as error:
        findings.report(f"{entry.entry.path}.rename", str(error))


def _check_directory(entry: _Entry, findings: Findings) -> None:
    """A resource under MPS has a directory of its name in the MPS root."""
    domain = entry.final_name.partition("/")[0]
    if isinstance(entry.entry, MpsResource) and domain in _MPS_FILES:
        rename = f"{entry.entry.path}.rename"
        findings.report(
            rename if findings.is_given(rename) else f"{entry.entry.path}.name",
            f"{entry.final_name} would be in the way of {domain}, which nvdp keeps in the MPS root; "
            "use another name before the slash",
        )


def _shares_all_again(entry: _Entry, before: list[_Entry], findings: Findings) -> bool:
    if not entry.entry.devices.is_all:
        return False
    for other in before:
        if other.entry.devices.is_all and other.entry.name == entry.entry.name:
            findings.report(
                f"{entry.entry.path}.devices",
                f"all of {entry.entry.name} are already shared by {other.entry.path} (line {other.entry.line}); "
                "list the devices in one of them",
            )
            return True
    return False


def _mixes_ways(entry: _Entry, before: list[_Entry], findings: Findings) -> bool:
    """Blocks come in order, so that what is found is MPS under a name that is time-sliced."""
    for other in before:
        if other.block != entry.block and other.final_name == entry.final_name and other.entry.is_shared:
            findings.report(
                f"{entry.entry.path}.rename",
                f"{entry.final_name} is time-sliced at line {other.entry.line}; choose another name",
            )
            return True
    return False


def _check_promise(entry: _Entry, entries: list[_Entry], plain: set[ResourceName], findings: Findings) -> None:
    """Under one name, a device is either whole or shared; and one that MPS has is not whole, though it be alone."""
    by_mps = isinstance(entry.entry, MpsResource)
    if not (entry.entry.is_shared or by_mps) or not _is_whole_elsewhere(entry, entries, plain, findings):
        return
    part, rename = "under MPS", f"{entry.entry.name}.mps"
    if entry.entry.is_shared:
        part, rename = (
            _FRACTIONS.get(entry.entry.replicas, f"1/{entry.entry.replicas}"),
            entry.entry.name.build_shared(),
        )
    findings.report(
        entry.entry.path,
        f"{entry.final_name} would be a whole GPU on some devices and {part} on {_count_others(entry)}; "
        f"add rename: {rename}, or devices: all",
    )


def _is_whole_elsewhere(entry: _Entry, entries: list[_Entry], plain: set[ResourceName], findings: Findings) -> bool:
    """Whether the name is one that devices in no entry have, or those of an entry that does not share."""
    name = entry.final_name
    namesakes = [other for other in entries if other.final_name == name]
    strangers = namesakes if entry.entry.is_shared else [other for other in namesakes if other.block != entry.block]
    if any(not other.entry.is_shared for other in strangers):
        return True
    if name != entry.entry.name and name not in plain:
        return False
    takes_rest = any(
        other.entry.devices.is_all and other.entry.name == name for other in namesakes if other.block == entry.block
    )
    return not takes_rest and findings.is_whole(f"{entry.block}.resources")


def _count_others(entry: _Entry) -> str:
    devices = entry.entry.devices
    count = len(set(devices.refs)) or devices.count
    return "others" if count is None else f"{count} other" if count == 1 else f"{count} others"

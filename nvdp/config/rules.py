"""Rules between keys that need no hardware. Each is checked wherever all that it needs was read without a mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from nvdp.config.findings import Findings
from nvdp.config.overrides import Overrides
from nvdp.config.schema import Document
from nvdp.config.sharing_rules import check_sharing
from nvdp.model.listing import DeviceListStrategy

# Two keys for one thing: NVIDIA's, and the one that wins.
OLD_POLICY: Final = "flags.plugin.sharedDevicesAllocationPolicy"
NEW_POLICY: Final = "allocation.sharedPolicy"


def check_rules(document: Document, findings: Findings, overrides: Overrides) -> None:
    """Report every rule that the document breaks."""
    for rule in _RULES:
        rule(document, findings)
    check_sharing(document, findings)
    _check_policies(document, findings, overrides)


def _check_excluded_and_cordoned(document: Document, findings: Findings) -> None:
    lines = {ref: findings.find_line(path) for path, ref in findings.trace("devices.exclude", document.devices.exclude)}
    for path, ref in findings.trace("devices.cordon", document.devices.cordon):
        if ref in lines:
            findings.report(path, f"{ref} is also excluded (line {lines[ref]}); an excluded device cannot be cordoned")


def _check_patterns(document: Document, findings: Findings) -> None:
    for block, rules in (("resources.gpus", document.resources.gpus), ("resources.mig", document.resources.mig)):
        traced = findings.trace(block, rules)
        for at, (path, rule) in enumerate(traced):
            earlier = next((before for before in traced[:at] if before[1].pattern.covers(rule.pattern)), None)
            if earlier is None:
                continue
            place, pattern = earlier[0], earlier[1].pattern
            what = "everything" if set(pattern.text) == {"*"} else "all that it matches"
            where = f'{place} "{pattern}" (line {findings.find_line(place)})'
            findings.report(f"{path}.pattern", f"never reached, {where} matches {what}")


def _check_xids(document: Document, findings: Findings) -> None:
    ignored, fatal = document.health.ignored_xids, document.health.fatal_xids
    lines = {xid: findings.find_line(path) for path, xid in findings.trace("health.ignoredXIDs", ignored.numbers)}
    for path, xid in findings.trace("health.fatalXIDs", fatal.numbers):
        if xid in lines:
            findings.warn(path, f"{xid} is also in ignoredXIDs (line {lines[xid]}); fatal wins")
    if ignored.every and fatal.every:
        line = findings.find_line("health.ignoredXIDs")
        findings.warn("health.fatalXIDs", f"all is also in ignoredXIDs (line {line}); fatal wins")


def _check_cdi_strategies(document: Document, findings: Findings) -> None:
    strategies = set(document.flags.plugin.device_list_strategy)
    if strategies >= {DeviceListStrategy.CDI_ANNOTATIONS, DeviceListStrategy.CDI_CRI}:
        findings.warn(
            "flags.plugin.deviceListStrategy", "cdi-annotations and cdi-cri name the same devices; only cdi-cri is sent"
        )


def _check_imex(document: Document, findings: Findings) -> None:
    if document.imex.required and not document.imex.channel_ids:
        findings.warn("imex.required", "no effect without imex.channelIDs: [0], as no channel is asked for")


def _check_policies(document: Document, findings: Findings, overrides: Overrides) -> None:
    """Only the file contradicts itself; a flag or variable gives way to the file's own key."""
    old, new = document.flags.plugin.shared_devices_allocation_policy, document.allocation.shared_policy
    if old is None or not findings.is_given(NEW_POLICY) or old is new:
        return
    if OLD_POLICY in overrides.values:
        origin = overrides.origins[OLD_POLICY]
        findings.warn(NEW_POLICY, f"{new.value} wins over {old.value} of {origin}")
    else:
        line = findings.find_line(OLD_POLICY)
        findings.report(NEW_POLICY, f"{new.value}, but {OLD_POLICY} is {old.value} (line {line}); remove one")


_RULES: Final[tuple[Callable[[Document, Findings], None], ...]] = (
    _check_excluded_and_cordoned,
    _check_patterns,
    _check_xids,
    _check_cdi_strategies,
    _check_imex,
)

"""What a person should know of a configuration on a certain node, beside what it makes of it: sentences, pure.

A warning is what is probably not meant, or not possible here; a note is what is fine and may surprise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from nvdp.config.schema import Config, MigStrategy, PreStartCheck
from nvdp.model.health import Ailment
from nvdp.model.inventory import Inventory
from nvdp.model.listing import DeviceListStrategy, Strategy
from nvdp.model.names import Pattern
from nvdp.model.reasons import Cause
from nvdp.model.status import EXCLUDED
from nvdp.planning.aligned import find_shortfalls
from nvdp.planning.allotment import allot
from nvdp.planning.devices import Device, list_known
from nvdp.planning.entries import list_entries
from nvdp.planning.means import OBSTACLES
from nvdp.planning.mps_specs import allows_several
from nvdp.planning.pins import list_references
from nvdp.planning.plan import Plan
from nvdp.planning.wording import join_some


def find_warnings(config: Config, inventory: Inventory, pins: Mapping[str, str], plan: Plan) -> Iterator[str]:
    """Those of the file itself first, then what it names in vain here, then what this version cannot do."""
    ours = _find_ours(plan)
    yield from map(str, config.warnings)
    yield from allot(config, inventory, pins).unmatched
    yield from plan.unmet
    yield from _find_near_misses(config, ours)
    if config.resources.mig and config.flags.mig_strategy is MigStrategy.NONE:
        yield "resources.mig: no effect while flags.migStrategy is none, under which no MIG device is offered"
    if inventory.gpus and not ours:
        yield "devices.exclude: every GPU of this node is excluded"


def find_obstacle_warnings(plan: Plan, ailments: Mapping[str, Ailment]) -> Iterator[str]:
    """What keeps this node from handing over devices that work, once for all of them: no fault of theirs."""
    common = find_common_obstacles(plan, ailments)
    groups: dict[tuple[Cause, str], list[tuple[str, str]]] = {}
    for device, cause, text in _list_obstacles(plan, ailments):
        groups.setdefault((cause, text if (cause, text) in common else ""), []).append((device.index, text))
    for (cause, _), members in groups.items():
        others = len({text for _, text in members}) - 1
        more = f" (and {others} more like this)" if others else ""
        what = "device takes" if len(members) == 1 else "devices take"
        places = join_some([place for place, _ in members])
        yield f"{cause.value}: {members[0][1]}{more}; {len(members)} {what} no new pods (index {places})"


def find_common_obstacles(plan: Plan, ailments: Mapping[str, Ailment]) -> frozenset[tuple[Cause, str]]:
    """The causes and texts that several devices have alike."""
    counts = Counter((cause, text) for _, cause, text in _list_obstacles(plan, ailments))
    return frozenset(obstacle for obstacle, count in counts.items() if count > 1)


def _list_obstacles(plan: Plan, ailments: Mapping[str, Ailment]) -> Iterator[tuple[Device, Cause, str]]:
    for device in plan.devices:
        ailment = ailments.get(device.uuid)
        if ailment is not None and ailment.cause in OBSTACLES and device.uuid in plan.assignments:
            yield device, ailment.cause, ailment.text


def find_notes(
    config: Config,
    pins: Mapping[str, str],
    plan: Plan,
    *,
    unpinned: Mapping[str, str],
    ailing: Collection[str],
) -> Iterator[str]:
    """``unpinned`` is what references by index would mean if they were applied here for the first time.

    ``ailing`` are the GPUs, by UUID, that are out of order now.
    """
    if config.devices.paused:
        yield "devices.paused: nvdp lets go of the driver; pods that ask for a GPU stay Pending until it is false"
    yield from _find_empty(plan, ailing)
    yield from _find_different_replicas(plan)
    yield from _find_idle_entries(config, plan)
    yield from _find_idle_patterns(config, _find_ours(plan))
    yield from _find_moved_indices(config, plan, pins, unpinned)
    yield from _find_mixtures(plan)
    yield from _find_shortfalls(plan)
    yield from _find_advisory_limits(config, plan)
    if DeviceListStrategy.VOLUME_MOUNTS in config.flags.plugin.device_list_strategy:
        key = "accept-nvidia-visible-devices-as-volume-mounts = true"
        where = "the NVIDIA container toolkit's config.toml"
        yield f"flags.plugin.deviceListStrategy: volume-mounts needs {key} in {where}"
    if config.allocation.pre_start_check is not PreStartCheck.NONE:
        yield "allocation.preStartCheck: an nvdp that starts with it uses it; one that runs keeps what it started with"


def _find_ours(plan: Plan) -> list[Device]:
    excluded = {uuid for uuid, withheld in plan.withheld.items() if withheld.reason == EXCLUDED}
    return [device for device in plan.devices if device.uuid not in excluded]


def find_cautions(config: Config, plan: Plan) -> Iterator[str]:
    """Warnings about what pods may ask for, not about the file, which may well be as it is meant.

    Of several resources a container sees one only: each sets the same variable, and the kubelet keeps one of them.
    """
    clients = {one.form.resource for one in plan.assignments.values() if one.form.mps}
    others = sorted(plan.planned.keys() - clients)
    by_variable = set(config.flags.plugin.device_list_strategy) == {DeviceListStrategy.ENVVAR}
    if by_variable and len(others) > 1:
        yield (
            f"{join_some(others)}: a container that asks for two of them sees the devices of one only, "
            "at random; flags.plugin.deviceListStrategy: volume-mounts or cdi-cri gives it both"
        )
    if clients and len(plan.planned) > 1:
        yield (
            f"{join_some(sorted(clients))}: a container that asks for one of them and for GPUs of any other resource "
            "reaches one MPS control daemon, and its GPUs alone; an admission policy can refuse it"
        )


def _find_near_misses(config: Config, devices: Sequence[Device]) -> Iterator[str]:
    """Patterns that match no product, or no profile, and would if they did not have to match all of it, or were written
    otherwise.
    """
    for text, remedy in _judge_patterns(config, devices):
        if remedy:
            yield f"{text}; {remedy}"


def _find_idle_patterns(config: Config, devices: Sequence[Device]) -> Iterator[str]:
    """Patterns that match nothing here, in whichever way they were written."""
    for text, remedy in _judge_patterns(config, devices):
        if not remedy:
            yield f"{text} (fine if other nodes share this file)"


def _judge_patterns(config: Config, devices: Sequence[Device]) -> Iterator[tuple[str, str]]:
    """Of each pattern that matches none of the names there are, the sentence and what would make it match, if so."""
    products = [device.product for device in devices if device.product and device.instance is None]
    profiles = [str(device.profile) for device in devices if device.profile is not None]
    for block, rules, found in (("gpus", config.resources.gpus, products), ("mig", config.resources.mig, profiles)):
        names = list(dict.fromkeys(found))
        for at, rule in enumerate(rules):
            if names and not any(rule.pattern.matches(name) for name in names):
                text = f'resources.{block}[{at}] "{rule.pattern}" matches none of: {", ".join(names)}'
                yield text, _find_remedy(rule.pattern, names)


def _find_remedy(pattern: Pattern, names: Sequence[str]) -> str:
    wider = Pattern(f"*{pattern.text.strip('*')}*")
    if any(wider.matches(name) for name in names):
        return f'patterns match the whole name, try "{wider}"'
    return "case counts" if any(Pattern(wider.text.lower()).matches(name.lower()) for name in names) else ""


def _find_empty(plan: Plan, ailing: Collection[str]) -> Iterator[str]:
    """Resources whose devices could none of them be Healthy, whatever pods end."""
    unusable = {*ailing, *plan.cordoned}
    usable = {one.form.resource for uuid, one in plan.assignments.items() if uuid not in unusable}
    for resource in plan.planned:
        if resource not in usable:
            yield f"{resource}: all of its GPUs are cordoned or ailing; pods that ask for it stay Pending"


def _find_different_replicas(plan: Plan) -> Iterator[str]:
    by_resource: dict[str, set[int]] = {}
    for assignment in plan.assignments.values():
        by_resource.setdefault(assignment.form.resource, set()).add(assignment.replicas)
    for resource, numbers in by_resource.items():
        if len(numbers) > 1:
            shares = " or ".join(f"1/{number}" for number in sorted(numbers))
            yield f"{resource}: a pod gets {shares} of a GPU, as it happens; rename would keep them apart"


def _find_idle_entries(config: Config, plan: Plan) -> Iterator[str]:
    """Entries for all GPUs of a name of which none is left. Those with a list or a count are warned of."""
    meant = [*plan.assignments.values(), *(one.intended for one in plan.withheld.values() if one.intended is not None)]
    busy = {assignment.rule for assignment in meant}
    for entry in list_entries(config):
        if entry.setting.devices.is_all and entry.path not in busy:
            yield f"{entry.path}: shares nothing here: no GPU is {entry.setting.name}, or other entries take them all"


def _find_moved_indices(
    config: Config, plan: Plan, pins: Mapping[str, str], unpinned: Mapping[str, str]
) -> Iterator[str]:
    """References that mean the GPU that had the index when they were applied, while another has it now."""
    here = list_known(plan.devices)
    for reference in list_references(config):
        meant, now = pins.get(reference.key), unpinned.get(reference.key)
        if meant in here and now not in {None, meant}:
            yield f"{reference.path}: {reference.ref} is {meant} since it was applied, though {now} has that index now"


def _find_mixtures(plan: Plan) -> Iterator[str]:
    """Names under which whole GPUs and MIG devices are offered, which ``mixed`` leaves to the file."""
    kinds: dict[str, set[bool]] = {}
    for device in plan.devices:
        assignment = plan.assignments.get(device.uuid)
        if assignment is not None:
            kinds.setdefault(assignment.form.resource, set()).add(device.instance is None)
    for resource, found in kinds.items():
        if len(found) > 1:
            text = "a pod gets a whole GPU or a MIG device, as it happens; resources.mig would keep them apart"
            yield f"{resource}: {text}"


def _find_advisory_limits(config: Config, plan: Plan) -> Iterator[str]:
    """Where a container has less than its control daemon would give it, only its own environment says so."""
    is_shared = any(one.form.mps and one.form.shared for one in plan.assignments.values())
    if is_shared and allows_several(config):
        yield (
            "sharing.mps.failRequestsGreaterThanOne: false: the control daemon limits a process to all shares of a "
            "GPU, and a container to its own by variables that it can change: a fair share, no protection"
        )


def _find_shortfalls(plan: Plan) -> Iterator[str]:
    """Where GPUs are too many, and connected too oddly, for a choice that is the best for certain."""
    for resource, listed in plan.lists.items():
        facts = listed.facts
        found = find_shortfalls(facts.weights) if facts.strategy is Strategy.NONE else {}
        if found:
            told = ", ".join(f"{percent} % for {size}" for size, percent in found.items())
            yield (
                f"{resource}: {len(facts.weights)} GPUs are chosen one by one, for their links make no tree; of the "
                f"points of the best set at least {told} are certain"
            )

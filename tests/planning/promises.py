"""What must hold on a node after every step of its history, whatever it is: the promises of invariants 3 and 4.

``allocation.modeChange: immediate`` gives up one of them, by choice: a card may be offered in a new form while pods
have it in the old one. All others hold then too, and the new form is on offer at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from nvdp.config.schema import ModeChange
from nvdp.model.listing import AllocateTrace
from nvdp.model.reasons import Cause
from tests.planning.kubelet_model import Grant, Key
from tests.planning.list_checks import QUIET_S, READ_S, find_used, form_of
from tests.planning.oracle import Said

Form = tuple[str, bool, bool]
"""Resource, whether in pieces, whether by MPS."""

if TYPE_CHECKING:
    from tests.planning.plugin_model import Plugin


def check(node: Plugin) -> None:
    """Held IDs are listed; what is on offer is what the file says, in one form, and nobody has it in another."""
    for grant in _known_grants(node):
        listed = node.given[grant.resource].listed.by_id if grant.resource in node.given else {}
        for device_id in grant.device_ids:
            assert device_id in listed or grant.pod in node.kubelet.given_up, (
                f"{device_id} is missing from the list while {grant.pod} holds it"
            )
    check_assignments(node)
    offered = _find_offered(node)
    _check_offered(node, offered)
    if node.config.allocation.mode_change is ModeChange.WHEN_FREE:
        _check_promised_once(node, offered)
    _check_free_is_offered(node, offered)
    _check_unread_leave(node)


def _known_grants(node: Plugin) -> Iterator[Grant]:
    kubelet = node.kubelet
    yield from (grant for grant in kubelet.pods.values() if grant.pod not in kubelet.unknowable)
    yield from kubelet.in_flight


def _find_offered(node: Plugin) -> dict[str, Counter[Form]]:
    """The Healthy IDs of each GPU by form."""
    offered: dict[str, Counter[Form]] = {}
    for resource, given in node.given.items():
        healthy = [device for device in given.listed.devices if device.healthy]
        assert len(given.listed.by_id) == len(given.listed.devices), f"{resource} has an ID twice"
        assert len({device.numa_node is None for device in healthy}) <= 1, f"{resource} is topology-aware in part"
        for device in healthy:
            gpu, form = form_of(resource, device.id)
            offered.setdefault(gpu, Counter())[*form, node.is_by_mps(resource)] += 1
    return offered


def _check_offered(node: Plugin, offered: Mapping[str, Counter[Form]]) -> None:
    said = node.oracle.said
    for gpu, forms in offered.items():
        assert gpu not in node.oracle.excluded, f"{gpu} is excluded and on offer as {forms}"
        assert gpu in said, f"{gpu} is withheld and on offer as {forms}"
        assert gpu not in node.oracle.cordoned, f"{gpu} is cordoned and on offer as {forms}"
        assert gpu not in node.ailments, f"{gpu} ails and is on offer as {forms}"
        assert forms == {said[gpu].form: said[gpu].replicas}, f"{gpu} is on offer as {forms}, the file says {said[gpu]}"
        _check_free(node, gpu, said[gpu])
        if said[gpu].mps:
            assert not _is_mps_in_the_way(node, gpu, said[gpu]), f"{gpu} is on offer, and no daemon of MPS has it"
        else:
            card = node.find_gpu(gpu)
            assert card not in node.keeper.claims, f"{gpu} is on offer as {forms}, and MPS has it"
            assert card not in node.keeper.list_takeable(node.told), (
                f"{gpu} is on offer as {forms}, and MPS may take it"
            )


def _check_free(node: Plugin, gpu: str, said: Said) -> None:
    """No more is free than the file's number less what pods have, however many more it was before."""
    form = (gpu, said.form[:2])
    used = {device_id for device_id in find_used(node, said.resource) if form_of(said.resource, device_id) == form}
    free = set(node.given[said.resource].listed.healthy_by_gpu[gpu]) - used
    assert len(free) == max(0, said.replicas - len(used)), f"{gpu}: {len(free)} free of {said}, {len(used)} in use"


def _check_promised_once(node: Plugin, offered: Mapping[str, Counter[Form]]) -> None:
    promised = {key: (grant.pod, grant.mps) for grant in _known_grants(node) for key in grant.keys}
    fresh = {
        key: ("an Allocate", node.kubelet.answered_by_mps[key])
        for key, at in node.kubelet.answered.items()
        if node.now - at < QUIET_S
    }
    for (resource, device_id), (who, by_mps) in (fresh | promised).items():
        gpu, known = form_of(resource, device_id)
        form = (*known, by_mps)
        others = [other for other in offered.get(gpu, ()) if other != form]
        assert not others, f"{device_id} of {resource} is promised to {who}, and {gpu} is on offer as {others}"
        for other in _find_rivals(node, gpu):
            assert not offered.get(other), f"{device_id} of {resource} is promised to {who}, and {other} is on offer"


def _find_rivals(node: Plugin, uuid: str) -> set[str]:
    """What cannot be promised beside this one: the GPU of a MIG device, or the MIG devices of a GPU."""
    gpu = node.find_gpu(uuid)
    if gpu != uuid:
        return {gpu}
    return {part for part, parent in node.machine.parents.items() if parent == uuid and node.find_gpu(part) == uuid}


def _check_free_is_offered(node: Plugin, offered: Mapping[str, Counter[Form]]) -> None:
    """What nothing stands in the way of is on offer, all of it; and what waits for an answer asks for one."""
    assert node.plan is not None
    known = _find_known(node)
    for uuid, said in node.oracle.said.items():
        if uuid in node.oracle.cordoned or uuid in node.ailments or _is_mps_in_the_way(node, uuid, said):
            continue
        others = [key for form, keys in known.get(uuid, {}).items() if form != said.form for key in keys]
        rivals = (known.get(rival, {}) for rival in _find_rivals(node, uuid))
        others += [key for forms in rivals for keys in forms.values() for key in keys]
        if node.config.allocation.mode_change is ModeChange.IMMEDIATE:
            others = []
        held = {(holding.resource, holding.device_id) for holding in node.inputs.held.holdings}
        if not any(_is_in_the_way(node, key) for key in others):
            assert uuid in offered, f"{uuid} is free, and not on offer as {said}"
        elif held.isdisjoint(others):
            looks = node.plan.check_at is not None or node.plan.ask_since is not None
            assert looks, f"{uuid} waits, and nobody looks or asks for what"
            assert (node.plan.check_at or node.now) < node.now + 60.0, f"nobody looks at {uuid} for long"
            assert node.plan.waiting


def _check_unread_leave(node: Plugin) -> None:
    """What reminds of no other form leaves in the end though nobody can be asked, unless its holder was known."""
    unread_at = node.held.unreadable_since
    if unread_at is None:
        return
    for resource, given in node.given.items():
        used = find_used(node, resource)
        for device in given.listed.devices:
            since = given.refusals[device.id].known_at if device.cause is Cause.WITHDRAWING else None
            if since is None or device.id in used:
                continue
            said = node.oracle.said.get(device.gpu_uuid)
            is_alike = said is not None and said.form == _remember_form(node, resource, device.id)[1]
            if is_alike or node.find_gpu(device.gpu_uuid) not in node.gpus:
                waits_s = node.now - max(unread_at, since)
                assert waits_s < node.config.devices.remove_after.seconds + READ_S, f"{device.id} does not leave"


def _find_known(node: Plugin) -> dict[str, dict[Form, list[Key]]]:
    """All IDs of each GPU that were given out or are held, by form."""
    known: dict[str, dict[Form, list[Key]]] = {}
    keys = {(resource, device.id) for resource, given in node.given.items() for device in given.listed.devices}
    keys |= {(held.resource, held.device_id) for held in node.held.holdings if held.resource in node.given}
    for resource, device_id in keys:
        gpu, form = _remember_form(node, resource, device_id)
        known.setdefault(gpu, {}).setdefault(form, []).append((resource, device_id))
    return known


def _remember_form(node: Plugin, resource: str, device_id: str) -> tuple[str, Form]:
    """In which form the ID was on offer last, as the plan has it."""
    assert node.plan is not None
    gpu, form = form_of(resource, device_id)
    return gpu, (*form, gpu in node.plan.by_mps.get(resource, ()))


def _is_mps_in_the_way(node: Plugin, uuid: str, said: Said) -> bool:
    """Whether its daemon does not have it yet; or another one still has it, or may take it."""
    view, gpu = node.inputs.means.mps, node.find_gpu(uuid)
    if not said.mps:
        return gpu in view.claims or bool(node.inputs.granted.find_wait(gpu))
    daemon = view.daemons.get(said.resource)
    return bool(view.problem) or daemon is None or uuid not in daemon.running.gpus


def _is_in_the_way(node: Plugin, key: Key) -> bool:
    """Whether the card of this ID, in another form, must wait: for a pod, or for news of one, as the plan knew it.

    Nobody tells of a refused Allocate that it is over: the plan looks every second.
    """
    planned = node.inputs
    if any(key == (holding.resource, holding.device_id) for holding in planned.held.holdings):
        return True
    given = planned.given.get(key[0])
    trace = given.allocations.get(key[1], AllocateTrace()) if given is not None else AllocateTrace()
    if trace.in_flight:
        return True
    answered_at = float("-inf") if trace.answered_at is None else trace.answered_at
    quiet_at = max(node.refused_at.get(key, float("-inf")), answered_at + QUIET_S)
    return planned.now < quiet_at or planned.held.source is None or planned.held.requested_at < quiet_at


def check_assignments(node: Plugin) -> None:
    """The plan's word on each GPU is the oracle's."""
    assert node.plan is not None
    oracle = node.oracle
    planned = {uuid: (each.form.resource, each.replicas) for uuid, each in node.plan.assignments.items()}
    said = {uuid: (each.resource, each.replicas) for uuid, each in oracle.said.items()}
    assert planned == said, f"planned {_differ(planned, said)}, the file says {_differ(said, planned)}"
    assert node.plan.cordoned.keys() == oracle.cordoned & oracle.said.keys()


def _differ(these: Mapping[str, object], those: Mapping[str, object]) -> dict[str, object]:
    return {uuid: each for uuid, each in these.items() if those.get(uuid) != each}


def check_settled(node: Plugin) -> None:
    """Once all is quiet and no pod runs, exactly what the file says is on offer, and nothing else is listed."""
    assert node.plan is not None
    expected: dict[str, Counter[tuple[str, bool, Cause | None]]] = {}
    for uuid, said in node.oracle.said.items():
        cause = Cause.CORDONED if uuid in node.oracle.cordoned else None
        expected.setdefault(said.resource, Counter())[uuid, said.replicas > 1, cause] = said.replicas
    found = {
        resource: Counter((*_place(resource, device.id), device.cause) for device in given.listed.devices)
        for resource, given in node.given.items()
    }
    assert found == expected, f"at rest {found} is listed, the file says {expected}"
    assert not node.plan.waiting, "at rest something waits"


def _place(resource: str, device_id: str) -> tuple[str, bool]:
    gpu, (_, is_shared) = form_of(resource, device_id)
    return gpu, is_shared

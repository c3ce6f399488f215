"""What a preview shows: rows by rule, who is left out, and that all of it is the daemon's own plan."""

from __future__ import annotations

import json
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvdp.model.cdi import CdiClass, CdiState, qualify
from nvdp.model.inventory import Fault, Inventory, UnreadableGpu
from nvdp.model.listing import Strategy
from nvdp.model.mps import DaemonReport, DaemonSpec, MpsView, Phase
from nvdp.model.reasons import Cause
from nvdp.planning.allotment import resolve_pins
from nvdp.planning.assignment import Form
from nvdp.planning.left_out import Why
from nvdp.planning.means import Means
from nvdp.planning.plan import build_plan
from nvdp.planning.preview import Node, build_preview, find_refusal
from tests.planning.values import GPU, SHARED, ailment, answer, gpu, holding, inputs, inventory, parse, sliced, uuid

MPS = "nvidia.com/gpu.mps"
MIXED = """\
devices: {exclude: [0], cordon: ["0000:11:00.0"]}
resources: {gpus: [{pattern: "*", name: nvidia.com/gpu}]}
sharing:
  timeSlicing:
    resources:
    - {name: nvidia.com/gpu, rename: nvidia.com/gpu.shared, devices: [2, 3], replicas: 10}
  mps:
    resources:
    - {name: nvidia.com/gpu, rename: nvidia.com/gpu.mps, devices: [4], replicas: 4, defaultActiveThreadPercentage: 50}
"""


def node(count, *, capability="8.0", **known):
    facts = {"memory_bytes": 80 * 2**30, "compute_capability": capability}
    return Node(inventory=inventory(*(gpu(number, **facts) for number in range(count))), **known)


def row_of(preview, resource):
    (row,) = [row for row in preview.rows if row.resource == resource]
    return row


def table(preview):
    return [
        (row.resource, len(row.devices), row.assignment.replicas, row.advertised, row.healthy_count)
        for row in preview.rows
    ]


def left_out(preview):
    return {one.uuid: (one.why, one.path, one.listed_as) for one in preview.left_out}


def test_a_node_without_a_file_is_one_row_by_default():
    preview = build_preview(parse(), node(2))
    assert table(preview) == [(GPU, 2, 1, 2, 2)]
    assert row_of(preview, GPU).assignment.rule == ""
    assert (preview.left_out, preview.warnings, preview.notes) == ((), (), ())
    assert not preview.is_doubtful


def test_rows_come_in_the_order_of_the_file_and_say_which_rule_made_them():
    preview = build_preview(parse(MIXED), node(7))
    assert [(row.resource, row.assignment.rule, row.pattern) for row in preview.rows] == [
        (GPU, "resources.gpus[0]", "*"),
        (SHARED, "sharing.timeSlicing.resources[0]", ""),
        (MPS, "sharing.mps.resources[0]", ""),
    ]
    assert table(preview)[:2] == [(GPU, 3, 1, 3, 2), (SHARED, 2, 10, 20, 20)]
    assert (preview.found, preview.ours) == (7, 6)


def test_the_default_comes_after_the_rules_and_before_what_is_shared():
    config = parse(
        """
        resources: {gpus: [{pattern: "NVIDIA L4", name: nvidia.com/l4}]}
        sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, rename: nvidia.com/a, devices: [1], replicas: 2}]}}
        """
    )
    gpus = [gpu(0), gpu(1), gpu(2, product="NVIDIA L4")]
    preview = build_preview(config, Node(inventory=inventory(*gpus)))
    assert [row.resource for row in preview.rows] == ["nvidia.com/l4", GPU, "nvidia.com/a"]


def test_what_an_entry_asks_for_in_vain_is_a_row_with_nothing_advertised():
    row = row_of(build_preview(parse(MIXED), node(7, capability="6.0")), MPS)
    assert (len(row.devices), row.assignment.replicas, row.advertised, row.healthy_count) == (1, 4, 0, 0)
    assert row.assignment.strategy is Strategy.MPS
    assert (row.withheld.path, row.withheld.reason) == ("sharing.mps.resources[0]", "MPSUnsupported")


@pytest.mark.parametrize(
    ("mps", "healthy"),
    [
        (None, 4),
        (MpsView(problem="nvdp mps does not answer"), 0),
        (MpsView(daemons={MPS: DaemonReport(phase=Phase.READY, running=DaemonSpec(resource=MPS, gpus=(uuid(4),)))}), 4),
    ],
    ids=["nobody can tell", "without nvdp mps", "while its daemon answers"],
)
def test_what_mps_shares_is_shown_with_its_limits_and_is_healthy_while_its_daemon_answers(mps, healthy):
    row = row_of(build_preview(parse(MIXED), node(7, means=Means(mps=mps))), MPS)
    assert (row.advertised, row.healthy_count) == (4, healthy)
    assert str(row.limits[uuid(4)]) == "50 % threads, 20 GiB per client"


def test_who_is_left_out_is_named_with_the_place_in_the_file():
    preview = build_preview(parse(MIXED), node(7, capability="6.0"))
    assert left_out(preview) == {
        uuid(0): (Why.EXCLUDED, "devices.exclude[0]", ""),
        uuid(1): (Why.CORDONED, "devices.cordon[0]", GPU),
        uuid(4): (Why.WITHHELD, "sharing.mps.resources[0]", ""),
    }
    assert [one.by_slot for one in preview.left_out] == [False, True, False]
    assert preview.is_doubtful


def test_cordoned_cards_alone_are_no_reason_to_doubt():
    assert not build_preview(parse("devices: {cordon: [0]}"), node(2)).is_doubtful


def test_an_ailing_card_is_shown_with_its_cause_and_counts_as_advertised():
    preview = build_preview(sliced(4), node(2, ailments={uuid(1): ailment(Cause.LOST, "fell off the bus")}))
    assert table(preview) == [(GPU, 2, 4, 8, 4)]
    assert row_of(preview, GPU).healthy == {uuid(0): 4, uuid(1): 0}
    assert left_out(preview) == {uuid(1): (Why.UNHEALTHY, "", GPU)}
    assert preview.left_out[0].text == "Lost: fell off the bus"
    assert not preview.is_doubtful


def test_while_the_file_pauses_no_device_is_healthy():
    preview = build_preview(parse("devices: {paused: true}"), node(2))
    assert table(preview) == [(GPU, 2, 1, 2, 0)]


def test_the_file_comes_before_health_in_why_a_card_takes_no_pods():
    config = parse("devices: {exclude: [0], cordon: [1]}")
    ailing = {uuid(number): ailment() for number in range(3)}
    whys = {one.uuid: one.why for one in build_preview(config, node(3, ailments=ailing)).left_out}
    assert whys == {uuid(0): Why.EXCLUDED, uuid(1): Why.CORDONED, uuid(2): Why.UNHEALTHY}


def test_a_card_whose_product_decides_and_cannot_be_read_is_left_out_without_a_row():
    config = parse('resources: {gpus: [{pattern: "NVIDIA L4", name: nvidia.com/l4}]}')
    nameless = gpu(0, product=None, fault=Fault(call="nvmlDeviceGetName", kind="Unknown", text="?"))
    preview = build_preview(config, Node(inventory=inventory(nameless)))
    assert preview.rows == ()
    assert left_out(preview) == {uuid(0): (Why.UNNAMED, "resources.gpus", "")}
    assert preview.is_doubtful


def test_a_card_that_hides_its_name_is_found_and_left_out():
    fault = Fault(call="nvmlDeviceGetUUID", kind="GpuIsLost", text="it fell off the bus")
    unreadable = UnreadableGpu(index=1, pci="0000:11:00.0", fault=fault)
    seen = msgspec.structs.replace(inventory(gpu(0)), unreadable=(unreadable,))
    preview = build_preview(parse(), Node(inventory=seen))
    assert (preview.found, preview.ours) == (2, 2)
    (one,) = preview.left_out
    assert (one.why, one.pci, one.text) == (Why.UNREADABLE, "0000:11:00.0", "index 1: it fell off the bus")


def test_healthy_is_what_pods_could_get_while_others_hold_the_old_form():
    held = answer(holding(uuid(0), "train-7"), at=50.0)
    preview = build_preview(sliced(10, rename=True), node(2, held=held))
    row = row_of(preview, SHARED)
    assert (row.advertised, row.healthy) == (20, {uuid(0): 0, uuid(1): 10})
    (change,) = preview.plan.changes
    assert (change.before, change.holder) == (Form(GPU, shared=False), "team/train-7")


def test_what_pods_hold_in_the_same_form_is_healthy():
    held = answer(holding(f"{uuid(0)}::3"), at=50.0)
    preview = build_preview(sliced(2), node(1, held=held))
    assert row_of(preview, GPU).healthy_count == 2
    healthy = [device.id for device in preview.plan.lists[GPU].devices if device.healthy]
    assert healthy == [f"{uuid(0)}::0", f"{uuid(0)}::3"]


def test_a_list_that_is_too_large_is_refused_as_the_daemon_would():
    refusal = find_refusal(sliced(70_000), node(2))
    assert "devices make a list of" in refusal.message
    assert refusal.path == "sharing.timeSlicing.resources[0].replicas"
    assert find_refusal(sliced(10), node(2)) is None


def test_what_is_in_force_is_not_refused_for_a_card_that_came_later():
    config = sliced(30_000)
    known = node(2, in_force=config.hash)
    assert find_refusal(config, node(2)) is not None
    assert find_refusal(config, known) is None
    preview = build_preview(config, known)
    assert table(preview) == [(GPU, 1, 30_000, 30_000, 30_000), (GPU, 1, 30_000, 0, 0)]
    assert left_out(preview) == {uuid(1): (Why.WITHHELD, "sharing.timeSlicing.resources[0]", "")}


def test_what_an_index_meant_before_it_means_still():
    config = parse("devices: {exclude: [0]}")
    pins = resolve_pins(config, [gpu(0), gpu(1)], {}, {})
    renumbered = inventory(gpu(0, index=1), gpu(1, index=0))
    assert left_out(build_preview(config, Node(inventory=renumbered, pins=pins))) == {
        uuid(0): (Why.EXCLUDED, "devices.exclude[0]", "")
    }
    assert [*left_out(build_preview(config, Node(inventory=renumbered)))] == [uuid(1)]


# properties, over random files, machines, ailments and pods

CARDS = 6


@st.composite
def files(draw):
    """A configuration over all of sharing. Entries have names of their own, so that any of them fit together."""
    cards = list(draw(st.permutations(range(CARDS))))
    spell = st.sampled_from([lambda number: number, uuid, lambda number: f"0000:{number + 16:02x}:00.0"])

    def take(most):
        return [draw(spell)(cards.pop()) for _ in range(draw(st.integers(0, min(most, len(cards)))))]

    devices = {"exclude": take(2), "cordon": take(2)}
    sharing = {}
    for block in draw(st.sets(st.sampled_from(["timeSlicing", "mps"]))):
        kinds = draw(st.lists(st.sampled_from(["list", "count"]), min_size=1, max_size=3))
        wanted = [take(2) if kind == "list" else draw(st.integers(1, 3)) for kind in kinds]
        sharing[block] = [
            {"name": GPU, "rename": f"nvidia.com/{block.lower()}{at}", "devices": one}
            for at, one in enumerate(wanted)
            if one
        ]
    if draw(st.booleans()):
        name = draw(st.sampled_from([{}, {"rename": SHARED}, {"rename": "example.com/slice"}]))
        sharing.setdefault("timeSlicing", []).append({"name": GPU, **name})
    for entry in (entry for entries in sharing.values() for entry in entries):
        entry["replicas"] = draw(st.integers(1, 8))
    rules = draw(
        st.sampled_from([[], [{"pattern": "*A10", "name": GPU}, {"pattern": "*", "name": "nvidia.com/other"}]])
    )
    content = {
        "devices": devices,
        "resources": {"gpus": rules},
        "sharing": {block: {"resources": entries} for block, entries in sharing.items() if entries},
        "allocation": {
            "modeChange": draw(st.sampled_from(["when-free", "immediate"])),
            "numaHints": draw(st.booleans()),
        },
    }
    return parse(json.dumps(content))


@st.composite
def situations(draw):
    """A random file and a random node, on which pods may hold anything."""
    products = st.sampled_from(["NVIDIA A10", "NVIDIA L4", None])
    gpus = [
        gpu(number, product=draw(products), numa_node=draw(st.sampled_from([None, 0, 1])))
        for number in range(draw(st.integers(0, CARDS)))
    ]
    forms = st.tuples(
        st.integers(0, CARDS),
        st.sampled_from([None, 0, 1, 7]),
        st.sampled_from([GPU, SHARED, "nvidia.com/timeslicing0", "example.com/slice"]),
    )
    held = answer(
        *(
            holding(uuid(number) if replica is None else f"{uuid(number)}::{replica}", f"pod-{at}", resource)
            for at, (number, replica, resource) in enumerate(draw(st.lists(forms, max_size=5)))
        ),
        at=draw(st.floats(0, 1e6)),
    )
    ailing = {one.uuid: ailment() for one in gpus if draw(st.integers(0, 4)) == 0}
    names = draw(st.sampled_from([frozenset(), frozenset({"example.com/slice"})]))
    return draw(files()), Node(inventory=inventory(*gpus), ailments=ailing, held=held, names=names)


@given(situations())
def test_each_card_is_in_one_row_or_left_out_without_one(situation):
    config, known = situation
    preview = build_preview(config, known)
    in_rows = Counter(one.uuid for row in preview.rows for one in row.devices)
    rowless = Counter(one.uuid for one in preview.left_out if one.why in {Why.EXCLUDED, Why.UNNAMED})
    assert in_rows + rowless == Counter(one.uuid for one in known.inventory.gpus)
    assert max(Counter(one.uuid for one in preview.left_out).values(), default=0) <= 1
    withheld = {one.uuid for row in preview.rows if row.withheld is not None for one in row.devices}
    assert withheld == {one.uuid for one in preview.left_out if one.why is Why.WITHHELD}


@given(situations())
def test_sums_agree_with_the_plan(situation):
    config, known = situation
    preview = build_preview(config, known)
    for resource in {row.resource for row in preview.rows} | preview.plan.planned.keys():
        rows = [row for row in preview.rows if row.resource == resource]
        assert sum(row.advertised for row in rows) == preview.plan.planned.get(resource, 0)
        listed = preview.plan.lists.get(resource)
        assert sum(row.healthy_count for row in rows) == (listed.healthy_count if listed is not None else 0)
    assert preview.advertised == sum(preview.plan.planned.values())


@given(situations())
def test_a_node_file_says_the_same_as_the_node_but_for_what_pods_hold(situation):
    config, known = situation
    live = build_preview(config, known)
    offline = build_preview(config, Node(inventory=known.inventory, ailments=known.ailments))
    assert [(row.assignment, row.devices, row.withheld) for row in live.rows] == [
        (row.assignment, row.devices, row.withheld) for row in offline.rows
    ]
    assert live.left_out == offline.left_out
    assert (live.warnings, live.notes) == (offline.warnings, offline.notes)
    for mine, theirs in zip(live.rows, offline.rows, strict=True):
        waiting = {change.gpu_uuid for change in live.plan.changes}
        assert {one: count for one, count in mine.healthy.items() if one not in waiting} == {
            one: count for one, count in theirs.healthy.items() if one not in waiting
        }


@given(situations())
@settings(max_examples=50)
def test_offline_is_the_plan_of_a_daemon_that_has_just_started_on_an_idle_node(situation):
    config, known = situation
    offline = build_preview(config, Node(inventory=known.inventory, ailments=known.ailments))
    pins = resolve_pins(config, known.inventory.gpus, known.ailments, {})
    first = build_plan(inputs(config, *known.inventory.gpus, ailments=known.ailments, pins=pins))
    assert offline.plan == first


def test_the_order_in_which_cards_were_found_does_not_matter():
    config = parse(MIXED)
    gpus = node(7).inventory.gpus
    one = build_preview(config, Node(inventory=Inventory(driver=inventory().driver, gpus=gpus)))
    other = build_preview(config, Node(inventory=Inventory(driver=inventory().driver, gpus=gpus[::-1])))
    assert (one.rows, one.left_out, one.warnings) == (other.rows, other.left_out, other.warnings)


@pytest.mark.parametrize("mode", ["when-free", "immediate"])
def test_only_by_choice_is_a_card_offered_anew_while_a_pod_holds_it(mode):
    config = sliced(2, rename=True, more=f"allocation: {{modeChange: {mode}}}")
    preview = build_preview(config, node(1, held=answer(holding(uuid(0)), at=50.0)))
    assert row_of(preview, SHARED).healthy_count == (0 if mode == "when-free" else 2)


def test_a_card_that_waits_for_pods_that_know_another_by_its_index_is_left_out_as_the_daemon_leaves_it():
    config = parse("flags: {plugin: {deviceIDStrategy: index}}")
    renumbered = inventory(gpu(1, index=0), gpu(0, index=1))
    known = {"held": answer(holding(uuid(0)), at=5000.0), "indices": {GPU: {uuid(0): "0"}}}
    preview = build_preview(config, Node(inventory=renumbered, **known))
    assert left_out(preview) == {uuid(0): (Why.UNHEALTHY, "", GPU), uuid(1): (Why.UNHEALTHY, "", GPU)}
    assert [one.text for one in preview.left_out] == [
        "Held: held by team/pod as index 0, and it is 1 now",
        f"Held: {uuid(0)} is held by team/pod as index 0, which is this GPU now",
    ]
    assert build_preview(config, Node(inventory=renumbered, **(known | {"indices": {}}))).left_out == ()


def test_what_a_node_cannot_hand_over_under_the_configuration_is_shown_as_ailing():
    means = Means(missing_nodes=("/dev/nvidia1",))
    plain = build_preview(parse(), node(2, means=means))
    assert row_of(plain, GPU).healthy == {uuid(0): 1, uuid(1): 1}
    passing = build_preview(parse("flags: {plugin: {passDeviceSpecs: true}}"), node(2, means=means))
    assert passing.node.ailments[uuid(1)].cause is Cause.NODES_MISSING


def test_what_was_in_the_way_under_another_configuration_is_not_shown():
    ailments = {uuid(0): ailment(Cause.CDI_MISSING), uuid(1): ailment(Cause.IMEX_MISSING), uuid(2): ailment()}
    assert set(build_preview(parse(), node(3, ailments=ailments)).node.ailments) == {uuid(2)}
    cdi = parse("flags: {plugin: {deviceListStrategy: cdi-cri}}")
    assert set(build_preview(cdi, node(3, ailments=ailments)).node.ailments) == {uuid(0), uuid(2)}


BY_CDI = "flags: {plugin: {deviceListStrategy: cdi-cri}}"


def test_where_it_is_known_what_the_specs_would_hold_what_they_lack_now_is_of_no_account():
    names = frozenset(qualify(CdiClass.GPU, uuid(number)) for number in range(2))
    specs = CdiState(names=names, answered=True)
    known = node(2, ailments={uuid(0): ailment(Cause.CDI_MISSING)}, means=Means(specs=specs))
    preview = build_preview(parse(BY_CDI), known)
    assert (preview.node.ailments, preview.warnings, preview.is_doubtful) == ({}, (), False)


def test_what_keeps_all_devices_back_alike_is_a_warning_told_once_and_by_name_at_each():
    specs = CdiState(answered=True, problem="/var/run/cdi: read-only")
    preview = build_preview(parse(BY_CDI), node(3, means=Means(specs=specs)))
    assert preview.warnings == ("CDIMissing: /var/run/cdi: read-only; 3 devices take no new pods (index 0, 1, 2)",)
    assert {(one.text, one.brief) for one in preview.left_out} == {
        ("CDIMissing: /var/run/cdi: read-only", "CDIMissing")
    }
    assert preview.is_doubtful


def test_devices_held_back_each_for_its_own_nodes_are_one_warning_and_keep_their_texts():
    means = Means(missing_nodes=("/dev/nvidia0", "/dev/nvidia2"))
    preview = build_preview(parse("flags: {plugin: {passDeviceSpecs: true}}"), node(3, means=means))
    (warning,) = preview.warnings
    assert warning == (
        "NodesMissing: /dev/nvidia0 is not on this node (and 1 more like this); 2 devices take no new pods (index 0, 2)"
    )
    assert [one.brief for one in preview.left_out] == [
        f"NodesMissing: /dev/nvidia{number} is not on this node" for number in (0, 2)
    ]


def test_cards_that_ail_themselves_are_no_warning():
    preview = build_preview(parse(), node(2, ailments={uuid(0): ailment(Cause.LOST), uuid(1): ailment(Cause.LOST)}))
    assert (preview.warnings, preview.is_doubtful) == ((), False)


def test_what_the_callers_doubt_is_a_warning():
    assert build_preview(parse(), node(1, doubts=("--flag: no effect",))).warnings == ("--flag: no effect",)

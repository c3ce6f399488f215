"""What is told when one plan or scan follows another: the sentences of the observability contract, each once."""

from __future__ import annotations

import msgspec
import pytest

from nvdp.model.health import Ailment
from nvdp.model.listing import AllocationFacts, GpuFacts, MpsFacts, Strategy
from nvdp.model.mps import DaemonSpec
from nvdp.model.reasons import Cause, Reason
from nvdp.planning.announcing import announce_emptied, announce_plan, describe_changes
from nvdp.planning.assignment import Assignment, Form, Withheld
from nvdp.planning.health_news import Around, announce_health, keep_actions
from nvdp.planning.indices import Renumbered
from nvdp.planning.plan import ModeChange, Plan
from tests.planning.mps_values import card, mps_file, plan_of, ready, seen
from tests.planning.values import GPU, SHARED, ailment, answer, device, gpu, holding, listed, uuid

A, B = uuid(0), uuid(1)
WHOLE, SLICED, RENAMED = Form(GPU, shared=False), Form(GPU, shared=True), Form(SHARED, shared=True)
GIB = 2**30


def plan(*, gpus=(), changes=(), assignments=None, withheld=None, lists=None, cordoned=None, renumbered=None):
    assigned = {one: Assignment(form=form) for one, form in (assignments or {}).items()}
    return Plan(
        devices=tuple(device(one) for one in gpus),
        lists=lists or {},
        planned={},
        assignments=assigned,
        withheld=withheld or {},
        cordoned=cordoned or {},
        renumbered=renumbered or {},
        changes=tuple(changes),
    )


def located(one, *gpus):
    """The plan on a node with these GPUs."""
    return msgspec.structs.replace(one, devices=tuple(device(card) for card in gpus))


def change(number, before=WHOLE, after=RENAMED, holder="team-a/train-7"):
    return ModeChange(gpu_uuid=uuid(number), before=before, after=after, holder=holder)


def told(before, after, *gpus):
    return [(one.reason, one.text) for one in announce_plan(before, located(after, *gpus))]


# mode changes


def test_a_change_that_waits_for_a_pod_is_told_with_both_names_and_the_pod():
    (one,) = announce_plan(None, plan(changes=[change(0)]))
    assert one.reason is Reason.MODE_CHANGE_WAITING
    assert one.text == f"{A}: nvidia.com/gpu → nvidia.com/gpu.shared waits for team-a/train-7"
    assert one.fields == {"devices": [A], "pod": "team-a/train-7"}


def test_under_one_name_the_change_is_told_by_its_form():
    (text,) = told(None, plan(changes=[change(0, after=SLICED)]))
    assert text[1] == f"{A}: nvidia.com/gpu (whole) → nvidia.com/gpu (shared) waits for team-a/train-7"


def test_a_change_that_waits_for_no_pod_known_is_not_told_before_it_is_through():
    waiting = plan(changes=[change(0, holder="")])
    assert told(None, waiting) == []
    through = plan(assignments={A: RENAMED})
    assert told(waiting, through) == [(Reason.MODE_CHANGED, f"{A}: nvidia.com/gpu → nvidia.com/gpu.shared")]
    assert told(through, through) == []


def test_a_change_that_goes_on_waiting_is_not_told_again_unless_for_another_pod():
    before = plan(changes=[change(0)])
    assert told(before, plan(changes=[change(0)])) == []
    ((reason, text),) = told(before, plan(changes=[change(0, holder="team-b/next")]))
    assert reason is Reason.MODE_CHANGE_WAITING
    assert text.endswith("waits for team-b/next")


def test_a_change_that_was_taken_back_is_not_told_as_done():
    before = plan(changes=[change(0), change(1)])
    assert told(before, plan(assignments={A: WHOLE})) == []  # edited back; the other GPU is gone


def test_a_gpu_that_still_waits_for_another_old_form_is_not_through():
    before = plan(changes=[change(0), change(0, before=SLICED)])
    after = plan(changes=[change(0, before=SLICED)], assignments={A: RENAMED})
    assert told(before, after) == []


def test_gpus_that_change_alike_are_told_together_and_at_most_five_by_name():
    ((_, two),) = told(None, plan(changes=[change(0), change(1)]))
    assert two == f"{A}, {B}: nvidia.com/gpu → nvidia.com/gpu.shared waits for team-a/train-7"
    ((_, eight),) = told(None, plan(changes=[change(number) for number in range(8)]))
    assert eight.startswith(f"{', '.join(uuid(number) for number in range(5))} and 3 more: ")
    apart = told(None, plan(changes=[change(0), change(1, holder="team-b/other")]))
    assert [text.rpartition(" ")[2] for _, text in apart] == ["team-a/train-7", "team-b/other"]


# entries withheld, and sharing

CDI = Withheld(reason="EntryInvalid", path="sharing.timeSlicing.resources[1].devices[0]", text="shared already")
EXCLUDED = Withheld(reason="Excluded", path="devices.exclude[0]", text="excluded")
MPS = Withheld(
    reason="MPSUnsupported", path="sharing.mps.resources[0]", text="too old", device=A, minimum="compute capability 7.0"
)


def test_an_entry_that_is_withheld_is_told_once_with_its_devices():
    after = plan(withheld={A: CDI, B: CDI, uuid(2): MPS})
    assert told(None, after) == [
        (Reason.ENTRY_WITHHELD, f"sharing.timeSlicing.resources[1].devices[0]: shared already; not on offer: {A}, {B}"),
        (Reason.MPS_UNSUPPORTED, f"sharing.mps.resources[0]: too old; not on offer: {uuid(2)}"),
    ]
    assert told(after, after) == []


def test_what_a_node_cannot_do_for_mps_is_told_with_the_device_and_what_it_would_take():
    (one,) = announce_plan(None, plan(withheld={A: MPS, B: MPS}))
    fields = {"path": MPS.path, "devices": [A, B], "device": A, "minimum": "compute capability 7.0"}
    assert one.fields == fields


def test_only_what_is_newly_withheld_is_told():
    before = plan(withheld={A: CDI})
    after = plan(withheld={A: MPS, B: CDI})
    assert told(before, after) == [
        (Reason.MPS_UNSUPPORTED, f"sharing.mps.resources[0]: too old; not on offer: {A}"),
        (Reason.ENTRY_WITHHELD, f"sharing.timeSlicing.resources[1].devices[0]: shared already; not on offer: {B}"),
    ]


def test_what_containers_do_without_is_told_once():
    without = msgspec.structs.replace(plan(), unmet=("imex.channelIDs: none here",))
    (one,) = announce_plan(None, without)
    assert (one.reason, one.text) == (Reason.CONFIG_REFERENCE_UNMATCHED, "imex.channelIDs: none here")
    assert announce_plan(without, without) == ()
    assert announce_plan(without, plan()) == ()


def test_a_card_that_the_file_leaves_to_others_is_no_news():
    assert told(None, plan(withheld={A: EXCLUDED})) == []


def test_a_cordon_is_told_when_it_begins_and_when_it_ends():
    free, cordoned = plan(), plan(cordoned={A: "devices.cordon[0]"})
    name = f"{A} (index 0, 0000:10:00.0)"
    assert told(free, cordoned, gpu(0)) == [
        (Reason.DEVICE_CORDONED, f"{name}: devices.cordon[0]; takes no new pods, running ones are left alone")
    ]
    assert told(cordoned, cordoned, gpu(0)) == []
    assert told(cordoned, free, gpu(0)) == [
        (Reason.DEVICE_UNCORDONED, f"{name}: no longer cordoned, as it was by devices.cordon[0]")
    ]


def offering(resource, *gpus, healthy=True, **more):
    """A plan that offers these GPUs, whole, under ``resource``."""
    form = Form(resource, shared=False)
    return plan(
        lists={resource: listed(resource, *gpus, unhealthy=() if healthy else gpus)},
        assignments=dict.fromkeys(gpus, form),
        **more,
    )


def emptied(before, after, ailments=None):
    return [announcement.text for announcement in announce_emptied(before, after, ailments or {})]


def test_an_edit_that_leaves_a_resource_without_a_healthy_device_is_announced():
    before = offering(GPU, A, B)
    told_so = [f"{GPU}: 2 healthy devices → 0; pods that ask for it will stay Pending"]
    assert emptied(before, offering(SHARED, A, B)) == told_so
    assert emptied(before, plan()) == told_so
    assert emptied(before, offering(GPU, A, B, cordoned=dict.fromkeys((A, B), "devices.cordon[0]"))) == told_so
    assert emptied(before, offering(GPU, A, cordoned={}), {A: ailment()}) == told_so


def test_what_still_has_a_device_or_only_waits_for_pods_is_not():
    before = offering(GPU, A, B)
    assert emptied(before, offering(GPU, A, B, cordoned={A: "devices.cordon[0]"})) == []
    assert emptied(before, offering(GPU, A, B, healthy=False)) == []  # its new form waits for pods
    assert emptied(offering(GPU, A, B, healthy=False), plan()) == []
    assert emptied(None, plan()) == []


def test_what_mps_keeps_has_changed_only_when_it_is_given_back():
    forms = {A: WHOLE, B: WHOLE}
    waiting = plan(assignments=forms, changes=[change(0, before=Form(SHARED, shared=True, mps=True), after=WHOLE)])
    free = plan(assignments=forms)
    kept = msgspec.structs.replace(free, kept=dict.fromkeys(forms, "kept for MPS"))
    assert told(waiting, kept) == []
    assert told(kept, free) == [(Reason.MODE_CHANGED, f"{A}, {B}: MPS has given back its GPU; {GPU} from now on")]
    assert told(kept, plan()) == told(free, free) == []


def test_what_joins_a_daemon_that_pods_use_has_not_changed_yet():
    form = Form(SHARED, shared=True, mps=True)
    pods_on_a = mps_file("name: gpu, rename: gpu.shared, devices: [0, 1], replicas: 4")
    running = ready(DaemonSpec(resource=SHARED, gpus=(A,)))
    held = {"held": answer(holding(f"{A}::0", "a", SHARED)), "means": seen(running), "by_mps": {SHARED: (A,)}}
    after = plan_of(pods_on_a, card(0), card(1), **held)
    waiting = plan(assignments=dict.fromkeys((A, B), form), changes=[change(1, after=form)])
    assert told(waiting, after, gpu(0), gpu(1)) == []
    free = plan_of(pods_on_a, card(0), card(1), means=seen(running))
    ((reason, text),) = told(waiting, free, gpu(0), gpu(1))
    assert (reason, text) == (Reason.MODE_CHANGED, f"{B}: nvidia.com/gpu → {SHARED}")


def test_another_mps_root_is_warned_of_once_as_nobody_may_have_mounted_it():
    def below(root):
        mps = MpsFacts(host_pipe=f"{root}/m/pipe", host_shm=f"{root}/shm", client_pipe="/mps/m/pipe")
        lists = {
            name: msgspec.structs.replace(listed(name), facts=AllocationFacts(gpus=(), mps=mps)) for name in ("m", "n")
        }
        return plan(lists=lists)

    ((reason, text),) = told(below("/run/nvidia/mps"), below("/mps"))
    assert reason is Reason.CONFIG_REFERENCE_UNMATCHED
    assert text.startswith("flags.mpsRoot: /run/nvidia/mps → /mps: new containers are given directories below /mps; ")
    assert told(below("/mps"), below("/mps")) == told(None, below("/mps")) == told(plan(), below("/mps")) == []


def shared_plan(*uuids, strategy=Strategy.TIME_SLICING):
    facts = AllocationFacts(
        gpus=tuple(GpuFacts(uuid=one, index="0") for one in uuids), strategy=strategy, replicas=(10,)
    )
    return plan(lists={SHARED: msgspec.structs.replace(listed(SHARED), facts=facts)})


def test_a_resource_that_becomes_time_sliced_is_told_to_be_unisolated_once():
    after = shared_plan(A, B)
    gpus = [gpu(number, memory_bytes=80 * GIB) for number in range(2)]
    assert told(None, after, *gpus) == [
        (
            Reason.SHARING_UNISOLATED,
            "nvidia.com/gpu.shared: 10 containers share the 80 GiB of one GPU; no memory limit is enforced",
        )
    ]
    assert told(after, after, *gpus) == []
    assert len(told(shared_plan(A, strategy=Strategy.NONE), after, *gpus)) == 1
    assert told(None, shared_plan(A, strategy=Strategy.NONE), *gpus) == []


def test_the_memory_is_named_only_where_all_gpus_have_as_much():
    gpus = [gpu(0, memory_bytes=80 * GIB), gpu(1, memory_bytes=24 * GIB)]
    ((_, text),) = told(None, shared_plan(A, B), *gpus)
    assert "share the memory of one GPU;" in text
    ((_, text),) = told(None, shared_plan(B), *gpus)
    assert "share the 24 GiB of one GPU;" in text
    ((_, text),) = told(None, shared_plan(A), gpu(0))
    assert "share the memory of one GPU;" in text


def test_what_an_edit_changed_is_told_in_planned_devices():
    assert describe_changes({}, {GPU: 8}) == "nvidia.com/gpu: 0 → 8"
    assert describe_changes({GPU: 8}, {SHARED: 80}) == "nvidia.com/gpu: 8 → 0, nvidia.com/gpu.shared: 0 → 80"
    assert describe_changes({GPU: 8}, {GPU: 8}) == "the same number of devices"


# health


def told_of_health(before, after, *, gpus=(), lists=(), holders=(), wall=1000.0):
    known = {one.uuid: device(one) for one in gpus}
    current = plan(lists={one.resource: one for one in lists}) if lists else None
    around = Around(devices=known, plan=current, holders=holders, recoveries={}, wall=wall)
    return announce_health(before, after, around)


XID = ailment(Cause.LOST, "fallen off the bus; driver asks for a reboot")


def test_a_device_that_turns_unhealthy_is_told_with_its_place_its_replicas_and_its_pods():
    lists = [listed(SHARED, f"{A}::0", f"{A}::1", f"{A}::2", f"{B}::0", unhealthy=(f"{A}::2",))]
    holders = [holding(f"{A}::1", "nb-2"), holding(f"{A}::0", "nb-1"), holding(f"{B}::0", "other")]
    (one,) = told_of_health({}, {A: XID}, gpus=[gpu(0, index=3)], lists=lists, holders=holders)
    assert one.reason is Reason.DEVICE_UNHEALTHY
    assert one.text == (
        f"{A} (index 3, 0000:10:00.0): fallen off the bus; driver asks for a reboot; "
        "2 devices of nvidia.com/gpu.shared withdrawn; used by team/nb-1, team/nb-2"
    )
    assert one.fields == {
        "device": A,
        "cause": "Lost",
        "pods": ["team/nb-1", "team/nb-2"],
        "index": 3,
        "pci": "0000:10:00.0",
    }


def test_a_device_that_nobody_uses_and_that_was_not_on_offer_is_told_shorter():
    (one,) = told_of_health({}, {A: XID}, gpus=[gpu(0, pci=None)])
    assert one.text == f"{A} (index 0): fallen off the bus; driver asks for a reboot"
    (one,) = told_of_health({}, {A: XID}, gpus=[gpu(0)], lists=[listed(GPU, B)])
    assert "withdrawn" not in one.text


def test_a_device_that_is_not_in_the_inventory_is_told_by_its_uuid():
    (one,) = told_of_health({}, {A: XID})
    assert one.text == f"{A}: fallen off the bus; driver asks for a reboot"
    assert one.fields == {"device": A, "cause": "Lost", "pods": []}


def test_the_same_cause_is_told_once_and_another_cause_again():
    assert told_of_health({A: XID}, {A: ailment(Cause.LOST, "another text", since=9.0)}, gpus=[gpu(0)]) == ()
    (one,) = told_of_health({A: XID}, {A: ailment(Cause.VANISHED, "not counted")}, gpus=[gpu(0)])
    assert (one.reason, one.fields["cause"]) == (Reason.DEVICE_UNHEALTHY, "Vanished")


def xid_79(action="", *, outlook=""):
    text = f"XID 79, fallen off the bus{outlook}"
    return Ailment(cause=Cause.XID, text=text, since=0.0, xid=79, action=action)


def test_what_the_driver_asks_for_is_told_once_it_is_known_with_all_that_was_told_before():
    asked = xid_79("NodeReboot", outlook="; the driver asks for a reboot of the node")
    ids = (f"{A}::0", f"{A}::1")
    lists = [listed(SHARED, *ids, f"{A}::9", unhealthy=ids, cause=Cause.XID), listed(GPU, B, A, unhealthy=(A,))]
    (one,) = told_of_health({A: xid_79()}, {A: asked}, gpus=[gpu(0)], lists=lists, holders=[holding(f"{A}::1", "nb")])
    assert one.reason is Reason.DEVICE_UNHEALTHY
    assert one.text == (
        f"{A} (index 0, 0000:10:00.0): XID 79, fallen off the bus; the driver asks for a reboot of the node; "
        f"3 devices of {SHARED} withdrawn; used by team/nb"
    )
    assert (one.fields["xid"], one.fields["action"]) == (79, "NodeReboot")
    assert told_of_health({A: asked}, {A: asked}, gpus=[gpu(0)]) == ()
    assert told_of_health({A: asked}, {A: xid_79("GPUReset")}, gpus=[gpu(0)]) == ()


@pytest.mark.parametrize("action", ["", "None", "Unsupported"])
def test_a_driver_that_asks_for_nothing_is_no_news_and_may_still_ask_later(action):
    assert told_of_health({A: xid_79()}, {A: xid_79(action)}, gpus=[gpu(0)]) == ()
    (one,) = told_of_health({A: xid_79(action)}, {A: xid_79("GPUReset")}, gpus=[gpu(0)])
    assert one.fields["action"] == "GPUReset"


def test_what_the_driver_was_told_to_ask_for_stays_told_of_that_fault_and_of_no_other():
    told_so, reported = {A: xid_79("GPUReset")}, xid_79()
    assert keep_actions(told_so, {A: reported, B: reported}, {}) == {**told_so, B: reported}
    assert keep_actions(told_so, {A: xid_79("NodeReboot")}, {}) == {A: xid_79("NodeReboot")}
    for other in (msgspec.structs.replace(reported, xid=48), ailment(Cause.LOST)):
        assert keep_actions(told_so, {A: other}, {}) == {A: other}
    assert keep_actions(told_so, {}, {}) == {}


def test_a_device_that_is_healthy_again_is_told_with_how_long_it_was_not():
    (one,) = told_of_health({A: ailment(Cause.LOST, since=577.0)}, {}, gpus=[gpu(0, index=2)])
    assert one.reason is Reason.DEVICE_RECOVERED
    assert one.text == f"{A} (index 2, 0000:10:00.0): was Unhealthy for 423s (Lost)"
    assert one.fields == {"device": A, "cause": "Lost", "index": 2, "pci": "0000:10:00.0"}


def test_a_clock_that_was_set_back_makes_no_negative_time():
    (one,) = told_of_health({A: ailment(since=2000.0)}, {}, gpus=[gpu(0)])
    assert "for 0s" in one.text


def test_a_device_that_left_the_inventory_did_not_recover():
    assert told_of_health({A: XID}, {}, gpus=[gpu(1)]) == ()


NO_SPECS = ailment(Cause.CDI_MISSING, "/var/run/cdi: read-only", since=990.0)


def test_what_is_in_the_way_of_several_devices_alike_is_told_once_and_so_is_its_end():
    gpus, lists = [gpu(0), gpu(1), gpu(2)], [listed(GPU, A, B)]
    other = ailment(Cause.NODES_MISSING, "/dev/nvidia2 is not on this node", since=990.0)
    before, after = {}, {A: NO_SPECS, B: NO_SPECS, uuid(2): other}
    one, alone = told_of_health(before, after, gpus=gpus, lists=lists, holders=[holding(B, "nb")])
    assert one.reason is Reason.DEVICE_UNHEALTHY
    assert one.text == (
        "2 devices (index 0, 1): /var/run/cdi: read-only; 2 devices of nvidia.com/gpu withdrawn; used by team/nb"
    )
    assert one.fields == {"devices": [A, B], "cause": "CDIMissing", "pods": ["team/nb"]}
    assert (alone.fields["device"], alone.fields["cause"]) == (uuid(2), "NodesMissing")
    one, alone = told_of_health(after, before, gpus=gpus)
    assert one.reason is Reason.DEVICE_RECOVERED
    assert one.text == "2 devices (index 0, 1): were Unhealthy for 10s (CDIMissing)"
    assert one.fields == {"devices": [A, B], "cause": "CDIMissing"}
    assert alone.fields["device"] == uuid(2)


def test_a_device_that_joins_others_is_told_alone_and_faults_of_cards_are_never_told_together():
    (one,) = told_of_health({A: NO_SPECS}, {A: NO_SPECS, B: NO_SPECS}, gpus=[gpu(0), gpu(1)])
    assert one.fields["device"] == B
    assert len(told_of_health({}, {A: XID, B: XID}, gpus=[gpu(0), gpu(1)])) == 2
    assert len(told_of_health({A: XID, B: XID}, {}, gpus=[gpu(0), gpu(1)])) == 2


# GPUs that NVML counts anew

MOVED = {A: Renumbered(text="held by team/nb as index 1, and it is 0 now", pods=("team/nb",))}


def test_a_card_that_takes_no_new_pods_for_its_index_is_told_once_and_once_more_when_it_is_on_offer_again():
    offered, waiting = ({GPU: listed(GPU, A)}, {GPU: listed(GPU, A, unhealthy=(A,))})
    before = plan(assignments={A: WHOLE}, lists=offered)
    after = plan(assignments={A: WHOLE}, lists=waiting, renumbered=MOVED)
    (one,) = announce_plan(before, located(after, gpu(0)))
    assert one.reason is Reason.DEVICE_UNHEALTHY
    assert one.text == (
        f"{A} (index 0, 0000:10:00.0): held by team/nb as index 1, and it is 0 now; "
        "takes no new pods until these have ended"
    )
    assert one.fields == {"device": A, "cause": "Held", "pods": ["team/nb"], "index": 0, "pci": "0000:10:00.0"}
    assert told(after, after, gpu(0)) == []
    ((reason, text),) = told(after, before, gpu(0))
    assert reason is Reason.DEVICE_RECOVERED
    assert "have ended, or NVML counts as before" in text


def test_a_pod_that_cannot_be_seen_yet_is_told_by_name_as_soon_as_it_is():
    offered = plan(assignments={A: WHOLE}, lists={GPU: listed(GPU, A)})
    unseen = plan(assignments={A: WHOLE}, renumbered={A: Renumbered(text="held by a pod that nobody knows")})
    seen = plan(assignments={A: WHOLE}, renumbered=MOVED)
    for before, after in ((offered, unseen), (unseen, seen)):
        ((reason, text),) = told(before, after, gpu(0))
        assert reason is Reason.DEVICE_UNHEALTHY
        assert after.renumbered[A].text in text
    assert told(seen, unseen, gpu(0)) == []
    assert [reason for reason, _ in told(unseen, offered, gpu(0))] == [Reason.DEVICE_RECOVERED]


def test_of_a_card_that_is_not_on_offer_anyway_neither_is_told():
    nothing, waiting = plan(), plan(renumbered=MOVED)
    assert told(nothing, waiting, gpu(0)) == []
    assert told(waiting, nothing, gpu(0)) == []

"""What MPS shares in the plan: on offer while its daemon answers, and in no other form before that gave its GPU up."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from nvdp.model.held import Held
from nvdp.model.inventory import ComputeMode
from nvdp.model.listing import AllocateTrace
from nvdp.model.mps import DaemonReport, DaemonSpec, Grant, MpsGrants, MpsView, Phase
from nvdp.model.reasons import Cause, Reason
from nvdp.planning.announcing import announce_plan
from nvdp.planning.assignment import Form
from nvdp.planning.granted import restore_granted
from nvdp.planning.waits import find_waits
from tests.planning.files import File
from tests.planning.hardware import card_uuid
from tests.planning.histories import Node
from tests.planning.mps_values import NONE, SILENT, card, mps_file, plan_of, ready, ready_for, seen
from tests.planning.stories import (
    allocate,
    answer_now,
    begin,
    end_pod,
    ids,
    kept_back,
    on_offer,
    replicas,
    settle,
    share,
    started,
)
from tests.planning.values import GPU, ailment, answer, given_out, holding, listed, uuid

A, B = uuid(0), uuid(1)
M = "nvidia.com/m"
FILE = mps_file("name: gpu, replicas: 2")
PIPE = "MPS control daemon does not answer on /mps/nvidia.com/gpu/pipe"


def plan(text=FILE, *, view=NONE, **others):
    return plan_of(text, card(0), card(1), means=seen(view), **others)


def causes(found, resource=GPU):
    return {device.id: (device.cause, device.text) for device in found.lists[resource].devices}


def given(*device_ids, unhealthy=(), resource=GPU):
    return {resource: given_out(listed(resource, *device_ids, unhealthy=unhealthy), at=50.0)}


ALL = [*replicas(A, 0, 1), *replicas(B, 0, 1)]

# The daemon


@pytest.mark.parametrize(
    ("view", "why"),
    [
        (SILENT, "nvdp mps does not answer"),
        (NONE, "nvdp mps has not started it yet"),
        (
            MpsView(daemons={GPU: DaemonReport(phase=Phase.FAILED, text="it exited with status 1")}),
            "it exited with status 1",
        ),
        (MpsView(daemons={GPU: DaemonReport(phase=Phase.STARTING)}), "it is starting"),
        (MpsView(daemons={M: DaemonReport(phase=Phase.READY)}), "nvdp mps has not started it yet"),
    ],
)
def test_what_nobody_knows_of_is_not_given_out_before_its_daemon_answers(view, why):
    found = plan(view=view)
    assert found.lists == {}
    assert found.missing == {GPU: f"{PIPE}: {why}"}
    assert found.planned == {GPU: 4}
    known = plan(view=view, given=given(*ALL), by_mps={GPU: (A, B)})
    assert known.missing == {}
    assert causes(known) == dict.fromkeys(ALL, (Cause.MPS_DAEMON_FAILED, f"{PIPE}: {why}"))


def test_what_pods_hold_is_listed_whether_the_daemon_answers_or_not():
    found = plan(held=answer(holding(f"{A}::1")), by_mps={GPU: (A,)})
    assert found.missing == {}
    assert ids(found, healthy=False) == ALL


def test_while_the_daemon_answers_all_that_it_has_is_on_offer():
    found = plan(view=ready_for(plan()))
    assert ids(found, healthy=True) == ALL
    assert found.missing == {}
    assert found.by_mps == {GPU: (A, B)}


def test_a_card_that_the_daemon_has_not_is_unhealthy_and_says_what_it_waits_for():
    spec = DaemonSpec(resource=GPU, gpus=(A,))
    waiting = DaemonReport(phase=Phase.READY, running=spec, text="waits for team/pod with the GPUs of the file")
    for report, why in ((waiting, ": waits for team/pod with the GPUs of the file"), (ready(spec).daemons[GPU], "")):
        found = plan(view=MpsView(daemons={GPU: report}))
        text = f"MPS control daemon on /mps/nvidia.com/gpu/pipe runs without this GPU{why}"
        assert causes(found) == dict.fromkeys(replicas(A, 0, 1), (None, "")) | dict.fromkeys(
            replicas(B, 0, 1), (Cause.MPS_DAEMON_FAILED, text)
        )


def test_a_card_that_is_to_join_a_daemon_in_use_is_held_by_the_pods_that_use_it():
    view = MpsView(daemons={GPU: DaemonReport(phase=Phase.READY, running=DaemonSpec(resource=GPU, gpus=(A,)))})
    known = {"held": answer(holding(f"{A}::1", "a"), holding(f"{A}::0", "b")), "by_mps": {GPU: (A, B)}}
    why = "joins the MPS control daemon on /mps/nvidia.com/gpu/pipe once nothing of it is held: team/a, team/b"
    assert {causes(plan(view=view, **known))[one] for one in replicas(B, 0, 1)} == {(Cause.HELD, why)}

    at_once = plan(FILE + "allocation: {modeChange: immediate}", view=view, **known)
    assert {causes(at_once)[one][0] for one in replicas(B, 0, 1)} == {Cause.MPS_DAEMON_FAILED}


def test_where_nobody_can_tell_no_daemon_is_missed():
    assert ids(plan(view=None), healthy=True) == ALL


def test_cordons_and_ailments_come_before_what_mps_has_to_say():
    text = "devices: {cordon: [0]}\n" + FILE
    found = plan(text, given=given(*ALL), by_mps={GPU: (A, B)}, ailments={B: ailment(Cause.LOST)})
    assert {device.cause for device in found.lists[GPU].devices if device.gpu_uuid == A} == {Cause.CORDONED}
    assert {device.cause for device in found.lists[GPU].devices if device.gpu_uuid == B} == {Cause.LOST}


def test_other_resources_are_as_they_are_without_any_daemon():
    found = plan(mps_file("name: gpu, rename: m, devices: [0], replicas: 2"))
    assert ids(found, healthy=True) == [B]
    assert [*found.missing] == [M]


# Claims


def test_what_mps_has_is_held_until_its_compute_mode_is_back():
    spec = DaemonSpec(resource=M, gpus=(A,))
    found = plan("", view=ready(spec))
    assert causes(found) == {A: (Cause.HELD, f"still with the MPS control daemon of {M}"), B: (None, "")}
    late = MpsView(
        daemons={M: DaemonReport(phase=Phase.READY, running=spec, text="in use by team/pod")}, claims={A: "Default"}
    )
    assert causes(plan("", view=late))[A][1] == f"still with the MPS control daemon of {M}: in use by team/pod"
    lost = MpsView(problem="nvdp mps is not there", claims={A: "Default"})
    by_hand = f"(nvdp mps is not there); if it never will: nvidia-smi -i {A} -c DEFAULT"
    text = f"kept for MPS until nvdp mps has put its compute mode back {by_hand}"
    assert causes(plan("", view=lost))[A] == (Cause.HELD, text)
    lost = msgspec.structs.replace(lost, daemons=ready(spec).daemons)
    text = f"still with the MPS control daemon of {M} until nvdp mps has put its compute mode back {by_hand}"
    assert causes(plan("", view=lost))[A] == (Cause.HELD, text)
    assert causes(plan("", view=NONE)) == {A: (None, ""), B: (None, "")}


@pytest.mark.parametrize(
    ("mode", "problem", "is_free"),
    [
        (ComputeMode.DEFAULT, "nvdp mps is not there", True),
        (ComputeMode.DEFAULT, "", False),
        (ComputeMode.EXCLUSIVE_PROCESS, "nvdp mps is not there", False),
        (None, "nvdp mps is not there", False),
    ],
)
def test_a_claim_of_somebody_who_is_gone_ends_when_the_compute_mode_is_seen_to_be_another(mode, problem, is_free):
    view = MpsView(problem=problem, claims={A: "Default"})
    found = plan_of("", card(0, compute_mode=mode), means=seen(view))
    assert causes(found)[A][0] is (None if is_free else Cause.HELD)


def test_a_claim_is_in_the_way_of_a_change_that_is_immediate_too():
    found = plan("allocation: {modeChange: immediate}", view=ready(DaemonSpec(resource=M, gpus=(A,))))
    assert causes(found)[A][0] is Cause.HELD


def test_what_nvdp_mps_may_take_is_offered_in_no_other_form_until_that_is_taken_back_and_heard():
    granted = restore_granted(MpsGrants(resources={M: Grant(free=(A,))}))
    found = plan("", granted=granted)
    text = "kept for MPS until the grants for nvdp mps could be written that take it back"
    assert causes(found) == {A: (Cause.HELD, text), B: (None, "")}
    assert found.kept == {A: text}
    granted = granted.ask(found.grants).note_written(found.grants)
    text = "kept for MPS until nvdp mps has heard that it is wanted otherwise"
    assert causes(plan("", granted=granted))[A] == (Cause.HELD, text)
    assert causes(plan("", granted=granted.hear(MpsView(heard=found.grants.digest)))) == {A: (None, ""), B: (None, "")}
    assert causes(plan("", granted=granted.hear(SILENT)))[A] == (None, "")


# What nvdp mps is told


def test_a_daemon_may_take_what_nobody_has_otherwise():
    found = plan(mps_file("name: gpu, rename: m, replicas: 2"), held=answer(holding(A)), now=100.0)
    grant = found.grants.resources[M]
    assert (grant.wanted.gpus, grant.free, grant.held, grant.at_once) == ((A, B), (B,), (), False)
    assert [(one.gpu_uuid, one.holder) for one in found.changes] == [(A, "team/pod")]


def test_an_immediate_change_waits_for_nobody():
    text = "allocation: {modeChange: immediate}\n" + mps_file("name: gpu, rename: m, replicas: 2")
    grant = plan(text, held=answer(holding(A))).grants.resources[M]
    assert (grant.free, grant.at_once) == ((A, B), True)


def test_as_long_as_nobody_can_tell_who_holds_what_no_card_is_taken_and_no_daemon_ended():
    grant = plan(held=Held()).grants.resources[GPU]
    assert (grant.free, grant.held) == ((), (A, B))


def test_what_pods_have_through_a_daemon_keeps_it_also_when_the_file_has_it_no_more():
    found = plan("", held=answer(holding(f"{A}::1", resource=M)), by_mps={M: (A,)})
    assert found.grants.resources == {M: Grant(held=(A,))}
    assert plan("", by_mps={M: (A,)}).grants.resources == {}


def test_where_the_memory_is_lost_a_daemon_that_runs_with_a_card_that_pods_have_is_not_ended():
    view = ready(DaemonSpec(resource=GPU, gpus=(A,)))
    found = plan(view=view, held=answer(holding(f"{A}::1")))
    assert found.grants.resources[GPU].held == (A,)
    assert causes(found)[f"{A}::0"] == (Cause.HELD, "held by team/pod as nvidia.com/gpu (shared)")


# Stories: the same IDs under the same name


def by_mps(replicas_=3, *, immediate=False):
    block = {"resources": [{"name": GPU, "replicas": replicas_}]}
    return dataclasses.replace(File(), mps=block, immediate=immediate).text


CARD = card_uuid(0)
AS_SLICES, BY_MPS = f"{GPU} (shared)", f"{GPU} (MPS)"


def shared_by_mps(replicas_=3):
    node = Node(cards=1, text=by_mps(replicas_))
    node.pass_time(3.0, "asking")
    node.take_lists()
    assert on_offer(node) == (replicas(CARD, *range(replicas_)) if replicas_ > 1 else [CARD])
    return node


@pytest.mark.invariant(4)
@pytest.mark.requirement(50)
def test_from_time_slices_to_mps_and_back_under_one_name_each_waits_for_who_has_the_other():
    node = started(gpus=1, replicas=3)
    allocate(node, f"{CARD}::1")
    node.edit(by_mps())
    settle(node)
    assert kept_back(node) == dict.fromkeys(replicas(CARD, 0, 1, 2), (Cause.HELD, f"held by team/pod-0 as {AS_SLICES}"))
    assert node.told.resources[GPU].free == ()
    (wait,) = find_waits(node.plan, (), wall=0.0)
    assert (wait.before, wait.after, wait.devices, wait.holders) == (AS_SLICES, BY_MPS, 3, ("team/pod-0",))
    (told,) = (one for one in announce_plan(None, node.plan) if one.reason is Reason.MODE_CHANGE_WAITING)
    assert told.text == f"{CARD}: {AS_SLICES} → {BY_MPS} waits for team/pod-0"

    end_pod(node)
    node.pass_time(8.0, "asking")
    node.take_lists()
    assert on_offer(node) == replicas(CARD, 0, 1, 2)
    assert node.by_mps == {GPU: (CARD,)}
    allocate(node, f"{CARD}::2")
    share(node, 3)
    node.pass_time(8.0, "asking")
    node.take_lists()
    assert kept_back(node) == dict.fromkeys(replicas(CARD, 0, 1, 2), (Cause.HELD, f"held by team/pod-1 as {BY_MPS}"))
    told = node.told.resources[GPU]
    assert (told.wanted, told.free, told.held, told.kept.gpus) == (None, (), (CARD,), (CARD,))
    assert node.keeper.running.keys() == {GPU}

    end_pod(node)
    node.pass_time(10.0, "asking")
    node.take_lists()
    assert on_offer(node) == replicas(CARD, 0, 1, 2)
    assert (node.by_mps, node.keeper.running) == ({}, {})


@pytest.mark.invariant(4)
def test_a_whole_card_becomes_one_under_mps_with_the_same_id_only_when_nobody_has_it():
    node = started(gpus=1)
    allocate(node, CARD)
    node.edit(by_mps(1))
    node.pass_time(8.0, "asking")
    assert kept_back(node) == {CARD: (Cause.HELD, f"held by team/pod-0 as {GPU} (whole)")}
    assert node.plan.changes[0].after == Form(GPU, shared=False, mps=True)
    end_pod(node)
    node.pass_time(8.0, "asking")
    assert on_offer(node) == [CARD]
    assert node.keeper.claims.keys() == {CARD}


@pytest.mark.invariant(4)
def test_an_allocate_on_its_way_at_the_change_counts_as_a_holder():
    node = started(gpus=1, replicas=3)
    begin(node, f"{CARD}::1")
    node.edit(by_mps())
    node.pass_time(4.0, "asking")
    assert on_offer(node) == []
    assert node.told.resources[GPU].free == ()
    node.end_allocate(0)
    node.pass_time(5.0, "asking")
    assert {text for _, text in kept_back(node).values()} == {f"held by team/pod-0 as {AS_SLICES}"}


@pytest.mark.invariant(4)
@pytest.mark.parametrize("forget", [False, True], ids=["restarted", "its memory lost"])
def test_who_has_a_card_through_mps_has_it_so_after_a_restart_too(forget):
    node = shared_by_mps()
    allocate(node, f"{CARD}::1")
    node.restart_plugin(forget=forget)
    share(node, 3)
    node.pass_time(8.0, "asking")
    assert on_offer(node) == []
    assert node.keeper.running.keys() == {GPU}
    node.edit(by_mps())
    node.pass_time(8.0, "asking")
    assert node.keeper.running.keys() == {GPU}
    assert (on_offer(node) == replicas(CARD, 0, 1, 2)) is not forget


@pytest.mark.invariant(4)
def test_who_has_time_slices_has_them_so_after_a_restart_with_mps_in_the_file():
    node = started(gpus=1, replicas=3)
    allocate(node, f"{CARD}::1")
    node.edit(by_mps())
    node.restart_plugin()
    node.pass_time(8.0, "asking")
    assert on_offer(node) == []
    assert node.keeper.running == {}


@pytest.mark.invariant(3)
def test_fewer_shares_keep_those_that_pods_have():
    node = shared_by_mps(4)
    allocate(node, f"{CARD}::3")
    node.edit(by_mps(2))
    node.take_lists()
    node.pass_time(8.0, "asking")
    assert on_offer(node) == replicas(CARD, 0, 3)
    assert node.keeper.running[GPU].thread_percent == 25  # its pod works on
    end_pod(node)
    answer_now(node)
    node.pass_time(3.0, "asking")
    assert node.keeper.running[GPU].thread_percent == 50


def test_an_immediate_change_offers_the_new_form_as_soon_as_its_daemon_answers():
    node = started(gpus=1, replicas=3)
    allocate(node, f"{CARD}::1")
    node.edit(by_mps(immediate=True))
    node.pass_time(3.0, "asking")
    assert on_offer(node) == replicas(CARD, 0, 1, 2)


def test_a_daemon_that_falls_silent_takes_its_devices_off_and_its_return_brings_them_back():
    node = shared_by_mps()
    allocate(node, f"{CARD}::1")
    node.set_keeper_up(up=False)
    assert {cause for cause, _ in kept_back(node).values()} == {Cause.MPS_DAEMON_FAILED}
    assert node.plan.changes == ()
    node.set_keeper_up(up=True)
    assert on_offer(node) == replicas(CARD, 0, 1, 2)
    answer_now(node)
    assert node.by_mps == {GPU: (CARD,)}


def test_what_was_by_mps_is_forgotten_only_when_holders_are_known():
    found = plan("", by_mps={M: (A,)}, held=Held())
    assert found.by_mps == {M: (A,)}
    unread = msgspec.structs.replace(answer(), unreadable_since=90.0)
    assert plan("", by_mps={M: (A,)}, held=unread).by_mps == {M: (A,)}
    assert plan("", by_mps={M: (A,)}).by_mps == {}


@pytest.mark.parametrize(
    ("now", "missing"),
    [(101.0, {"check_at": 102.0, "ask_since": None}), (103.0, {"check_at": None, "ask_since": 102.0})],
)
def test_what_was_allocated_a_moment_ago_is_held_until_an_answer_that_is_asked_for_says_otherwise(now, missing):
    view, served = ready_for(plan()), {GPU: (A, B)}
    out = given(*ALL)
    out[GPU] = msgspec.structs.replace(out[GPU], allocations={f"{A}::1": AllocateTrace(answered_at=100.0)})
    found = plan(view=view, given=out, by_mps=served, held=answer(at=99.0), now=now)
    assert found.grants.resources[GPU].held == (A,)
    assert {key: getattr(found, key) for key in missing} == missing
    assert found.waiting
    after = plan(view=view, given=out, by_mps=served, held=answer(at=102.0), now=103.0)
    assert after.grants.resources[GPU].held == ()

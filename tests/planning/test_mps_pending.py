"""What a daemon of MPS waits with while pods use it: GPUs that are to leave or join it, and limits."""

from __future__ import annotations

import msgspec
import pytest

from nvdp.model.mps import DaemonSpec
from nvdp.model.reasons import Reason
from nvdp.planning.mps_news import announce_pending
from nvdp.planning.mps_pending import Pending, describe_next, find_pending
from nvdp.planning.reporting_mps import build_mps, find_withheld
from tests.planning.mps_values import SILENT, card, mps_file, plan_of, ready, seen
from tests.planning.values import answer, holding, uuid

MPS = "nvidia.com/m"
ENTRY = "name: gpu, rename: m, devices: [{}], replicas: {}"
HELD = {"held": answer(holding(f"{uuid(0)}::0", "a", MPS)), "names": frozenset({MPS})}
BOTH = DaemonSpec(resource=MPS, gpus=(uuid(0), uuid(1)), thread_percent=25, memory_mib={uuid(0): 20480, uuid(1): 20480})
ONE = msgspec.structs.replace(BOTH, gpus=(uuid(0),), memory_mib={uuid(0): 20480})


def plan(devices, replicas, running, **others):
    """With a pod on GPU 0, while a daemon runs as that."""
    text = mps_file(ENTRY.format(devices, replicas))
    return plan_of(text, card(0), card(1), **(HELD | {"means": seen(ready(running))} | others))


# What the file says and what runs; then what the daemon waits with, and in a word why GPUs are not on offer.
PENDING = {
    "nothing changes": (("0, 1", 4, BOTH), None, {}),
    "a GPU is to leave": (("0", 4, BOTH), "GPU 1 leaves it", {uuid(1): "Held"}),
    "a GPU is to join": (("0, 1", 4, ONE), "GPU 1 joins it", {uuid(1): "Held"}),
    "limits are to change": (("0, 1", 2, BOTH), "25 % → 50 % threads, 20480 MiB → 40960 MiB memory", {}),
}


@pytest.mark.parametrize(("case", "text", "withheld"), PENDING.values(), ids=PENDING)
def test_a_daemon_that_pods_use_says_what_it_waits_with_and_a_gpu_that_is_free_waits_too(case, text, withheld):
    current, view = plan(*case), ready(case[-1])
    (daemon,) = build_mps(view, current).daemons
    assert (daemon.pending, daemon.holders) == ((text, ("team/a",)) if text else ("", ()))
    assert find_withheld(view, current) == withheld
    assert find_pending(current, SILENT) == find_pending(current, None) == {}


def test_what_nobody_holds_waits_for_nobody():
    nobody = {"held": answer()}
    assert find_pending(plan("0", 4, BOTH, **nobody), ready(BOTH)) == {}


def test_by_choice_nothing_waits():
    text = mps_file(ENTRY.format("0", 4)) + "allocation: {modeChange: immediate}"
    assert find_pending(plan_of(text, card(0), card(1), **HELD, means=seen(ready(BOTH))), ready(BOTH)) == {}


def test_a_gpu_that_pods_hold_otherwise_is_not_what_the_daemon_waits_with():
    both = {"held": answer(holding(f"{uuid(0)}::0", "a", MPS), holding(uuid(1), "whole"))}
    current = plan("0, 1", 4, ONE, **both)
    assert find_pending(current, ready(ONE)) == {}
    assert find_withheld(ready(ONE), current) == {uuid(1): "Held"}


def test_a_daemon_that_is_not_wanted_any_more_ends():
    whole = plan_of("{}", card(0), card(1), **HELD, by_mps={MPS: (uuid(0),)}, means=seen(ready(BOTH)))
    assert find_pending(whole, ready(BOTH))[MPS].text == "it ends"


def test_what_begins_to_wait_is_told_once_with_the_pods_however_many_of_them_end():
    waits = Pending(text="GPU 1 leaves it", holders=("team/a", "team/b"))
    fewer, nobody = (msgspec.structs.replace(waits, holders=names) for names in (("team/b",), ()))
    (told,) = announce_pending({}, {MPS: waits})
    assert (told.reason, told.fields) == (Reason.MODE_CHANGE_WAITING, {"resource": MPS, "pods": ["team/a", "team/b"]})
    assert (
        told.text
        == f"{MPS}: MPS control daemon stays as it is while pods have shares (team/a, team/b); then GPU 1 leaves it"
    )
    assert announce_pending({MPS: waits}, {MPS: fewer}) == announce_pending({}, {MPS: nobody}) == ()
    assert len(announce_pending({MPS: nobody}, {MPS: fewer})) == 1
    assert len(announce_pending({MPS: waits}, {MPS: msgspec.structs.replace(waits, text="it ends")})) == 1


def test_each_kind_of_change_is_told_once():
    unlimited = DaemonSpec(resource=MPS, gpus=(uuid(0), uuid(1), uuid(2)), multi_user=False)
    text = describe_next(BOTH, unlimited, lambda uuids: ", ".join(sorted(uuids)))
    assert text == (f"{uuid(2)} joins it, 25 % → no limit threads, 20480 MiB → no limit memory, one user at a time")
    assert describe_next(unlimited, msgspec.structs.replace(unlimited, multi_user=True), str) == ""

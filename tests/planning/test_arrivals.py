"""GPUs that come, and that are gone for good, are told once each, but for those that are none of ours."""

from __future__ import annotations

from nvdp.model.reasons import Reason
from nvdp.planning.arrivals import announce_arrivals
from tests.planning.values import gpu, inventory, uuid


def told(before, after, *untold):
    return [
        (one.reason, one.text, one.fields)
        for one in announce_arrivals(before, after, untold={uuid(number) for number in untold})
    ]


def fields(number):
    return {"device": uuid(number), "index": number, "pci": gpu(number).pci}


def test_who_came_and_who_is_gone_is_told_with_its_place():
    nameless = gpu(2, product=None)
    assert told(inventory(gpu(0), gpu(1)), inventory(gpu(1), nameless)) == [
        (Reason.DEVICE_ADDED, "a GPU was added", fields(2)),
        (Reason.DEVICE_REMOVED, "NVIDIA A10 was removed", fields(0)),
    ]


def test_the_first_gpus_that_are_seen_did_not_come_and_all_may_go():
    assert told(None, inventory(gpu(0))) == []
    assert told(inventory(), inventory(gpu(0))) == [(Reason.DEVICE_ADDED, "NVIDIA A10 was added", fields(0))]
    assert told(inventory(gpu(0)), inventory()) == [(Reason.DEVICE_REMOVED, "NVIDIA A10 was removed", fields(0))]


def test_a_gpu_of_which_only_facts_change_stays():
    assert told(inventory(gpu(0), gpu(1)), inventory(gpu(0, index=7), gpu(1, product="NVIDIA T4"))) == []


def test_who_is_none_of_ours_comes_and_goes_untold():
    assert told(inventory(gpu(0)), inventory(gpu(1)), 0, 1) == []

"""Who holds a MIG device that is gone is told once, as soon as anybody can tell."""

from __future__ import annotations

import msgspec
import pytest

from nvdp.model.reasons import Level
from nvdp.planning.layout_news import announce_late_holders, announce_unread_memory
from nvdp.planning.plan import build_plan
from tests.planning.values import answer, cut, gpu, holding, inputs, mig_uuid, parse, uuid

SMALL = "nvidia.com/mig-1g.10gb"
MIXED = parse("flags: {migStrategy: mixed}")
GONE = mig_uuid(0, 1)
HELD = holding(GONE, pod="nb", resource=SMALL)
WAS, IS = cut(0, "1g.10gb", "1g.10gb"), cut(0, "1g.10gb")


def plan(card, *holders):
    held = answer(*holders, at=100.0)
    return build_plan(inputs(MIXED, card, held=held, names=frozenset({SMALL}), parents={GONE: uuid(0)}))


def told(before, after):
    return [one.text for one in announce_late_holders(before, after)]


def test_a_pod_that_is_seen_after_its_mig_device_is_gone_is_named_once():
    (one,) = announce_late_holders(plan(IS), plan(IS, HELD))
    assert one.text == f"{uuid(0)} (index 0, 0000:10:00.0): {GONE} is gone, and still held by team/nb"
    assert one.fields == {"device": uuid(0), "pods": ["team/nb"], "index": 0, "pci": "0000:10:00.0"}
    assert told(plan(IS, HELD), plan(IS, HELD)) == []
    second = holding(f"{GONE}::1", pod="second", resource=SMALL)
    assert told(plan(IS, HELD), plan(IS, HELD, second)) == [one.text.replace("team/nb", "team/second")]


@pytest.mark.parametrize("card", [gpu(0, mig=WAS.mig, instances=None), gpu(1)], ids=["not listed", "another GPU"])
def test_a_pod_of_a_layout_that_was_not_known_is_named_with_the_first_one_that_is(card):
    assert len(told(None, plan(IS, HELD))) == 1
    assert told(None, plan(card, HELD)) == []
    assert len(told(plan(card, HELD), plan(IS, HELD))) == 1


def test_what_goes_now_is_told_with_the_layout_and_what_is_there_or_free_is_not_at_all():
    assert told(plan(WAS, HELD), plan(IS, HELD)) == []
    assert told(plan(IS), plan(WAS, HELD)) == []
    assert told(plan(IS, HELD), plan(IS)) == []


def test_that_a_gpus_memory_may_not_be_read_is_told_once_as_nothing_that_is_missing():
    unread = plan(msgspec.structs.replace(IS, memory_bytes=None))
    (one,) = announce_unread_memory(None, unread)
    assert one.fields == {"devices": [uuid(0)]}
    assert one.reason.level is Level.INFO
    assert one.text.startswith(f"{uuid(0)}: nothing is missing: ")
    assert "NVIDIA_MIG_MONITOR_DEVICES=all" in one.text
    assert not [*announce_unread_memory(unread, unread)]
    assert not [*announce_unread_memory(None, plan(msgspec.structs.replace(IS, memory_bytes=80 << 30)))]

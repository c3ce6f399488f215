"""MIG devices that pods know by ``GPU:INSTANCE``: a pod that restarts must not get another one, nor another GPU."""

from __future__ import annotations

import msgspec
import pytest

from nvdp.planning.indices import HandedOut
from nvdp.planning.plan import build_plan
from tests.planning.values import GPU, answer, cut, gpu, holding, inputs, mig_uuid, parse, uuid

pytestmark = pytest.mark.invariant(10)

SMALL = "nvidia.com/mig-1g.10gb"
CONFIG = parse("flags: {migStrategy: mixed, plugin: {deviceIDStrategy: index}}")
M0, M1 = mig_uuid(0, 0), mig_uuid(0, 1)


def kept_back(*gpus, held, known):
    """The devices that take no new pods, where a pod holds ``held`` and knows it by the index ``known``."""
    resource = SMALL if held.startswith("MIG") else GPU
    plan = build_plan(
        inputs(
            CONFIG,
            *gpus,
            held=answer(holding(held, resource=resource), at=200.0),
            now=201.0,
            names=frozenset({GPU, SMALL}),
            indices={resource: {held: HandedOut(known, 0.0)}},
            parents={M0: uuid(0), M1: uuid(0)},
        )
    )
    return {device for device in plan.renumbered if device in plan.assignments}


def test_a_pod_that_knows_its_mig_device_by_the_index_that_it_has_is_in_nobody_s_way():
    assert kept_back(cut(0, "1g.10gb", "1g.10gb"), gpu(1), held=M0, known="0:0") == set()


def test_both_mig_devices_wait_when_an_index_moves():
    first, second = cut(0, "1g.10gb", "1g.10gb").instances
    swapped = cut(0, instances=(msgspec.structs.replace(first, index=1), msgspec.structs.replace(second, index=0)))
    assert kept_back(swapped, gpu(1), held=M0, known="0:0") == {M0, M1}


def test_all_wait_when_the_gpus_are_numbered_anew():
    renumbered = [gpu(1, index=0), cut(0, "1g.10gb", "1g.10gb", index=1)]
    assert kept_back(*renumbered, held=M0, known="0:0") == {M0}


def test_a_new_mig_device_with_the_index_of_one_that_is_gone_and_held_waits_and_its_siblings_do_not():
    (new,) = cut(0, "1g.10gb").instances
    layout = cut(
        0,
        instances=(
            msgspec.structs.replace(new, uuid="MIG-new", gpu_instance=9),
            cut(0, "1g.10gb", "1g.10gb").instances[1],
        ),
    )
    assert kept_back(layout, held=M0, known="0:0") == {"MIG-new"}


def test_a_gpu_cut_into_mig_devices_is_kept_back_whole_from_a_pod_that_knows_another_one_by_its_index():
    renumbered = [cut(0, "1g.10gb", "1g.10gb", index=1), gpu(1, index=0)]
    assert kept_back(*renumbered, held=uuid(1), known="1") == {M0, M1, uuid(1)}

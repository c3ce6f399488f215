"""Which GPU is offered as what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.model.listing import Strategy
from nvdp.planning.assignment import Assignment, Form, assign, order_gpus
from tests.planning.values import GPU, SHARED, gpu, parse, sliced, uuid

RULE = "sharing.timeSlicing.resources[0]"
FORMS = {
    "without a file, whole GPUs": (parse(), Assignment(form=Form(GPU, shared=False))),
    "one replica is the GPU itself": (sliced(1), Assignment(form=Form(GPU, shared=False), rule=RULE)),
    "one replica is renamed no more than a whole GPU": (
        sliced(1, rename=True),
        Assignment(form=Form(GPU, shared=False), rule=RULE),
    ),
    "time-sliced": (
        sliced(3),
        Assignment(form=Form(GPU, shared=True), replicas=3, strategy=Strategy.TIME_SLICING, rule=RULE),
    ),
    "time-sliced and renamed by default": (
        sliced(3, rename=True),
        Assignment(form=Form(SHARED, shared=True), replicas=3, strategy=Strategy.TIME_SLICING, rule=RULE),
    ),
    "an entry for a name that no GPU has": (
        parse("sharing: {timeSlicing: {resources: [{name: nvidia.com/other, replicas: 4}]}}"),
        Assignment(form=Form(GPU, shared=False)),
    ),
    "an entry for a list of devices is not for all": (
        parse("sharing: {timeSlicing: {resources: [{name: gpu, rename: gpu.x, devices: [0], replicas: 4}]}}"),
        Assignment(form=Form(GPU, shared=False)),
    ),
}


@pytest.mark.parametrize(("config", "expected"), FORMS.values(), ids=FORMS)
def test_every_gpu_has_the_form_that_the_file_says(config, expected):
    assert assign(config, [gpu(1), gpu(0)], {}) == {uuid(0): expected, uuid(1): expected}


def test_a_withheld_gpu_has_no_form():
    assert list(assign(sliced(3), [gpu(0), gpu(1)], {uuid(0): "any reason"})) == [uuid(1)]


def test_assignments_are_in_list_order():
    assert list(assign(parse(), [gpu(2), gpu(0), gpu(1)], {})) == [uuid(0), uuid(1), uuid(2)]


@pytest.mark.invariant(8)
@given(order=st.permutations(range(6)), indices=st.permutations(range(6)))
def test_gpus_are_ordered_by_slot_whatever_nvml_calls_them(order, indices):
    gpus = [gpu(number, index=indices[number]) for number in range(6)]
    assert order_gpus([gpus[number] for number in order]) == tuple(gpus)


def test_gpus_whose_slot_is_unknown_come_last_by_uuid():
    unknown = [gpu(4, pci=None), gpu(0, pci=None)]
    assert [one.uuid for one in order_gpus([*unknown, gpu(7)])] == [uuid(7), uuid(0), uuid(4)]


def test_a_form_reads_as_people_say_it():
    assert str(Form(GPU, shared=False)) == "nvidia.com/gpu (whole)"
    assert str(Form(GPU, shared=True)) == "nvidia.com/gpu (shared)"

"""The order of GPUs, and the name of a form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.planning.assignment import Form, order_gpus
from tests.planning.values import GPU, gpu, uuid


@pytest.mark.invariant(8)
@given(order=st.permutations(range(6)), indices=st.permutations(range(6)))
def test_gpus_are_ordered_by_slot_whatever_nvml_calls_them(order, indices):
    gpus = [gpu(number, index=indices[number]) for number in range(6)]
    assert order_gpus([gpus[number] for number in order]) == tuple(gpus)


def test_gpus_whose_slot_is_unknown_come_last_by_uuid():
    unknown = [gpu(4, pci=None), gpu(0, pci=None)]
    assert [one.uuid for one in order_gpus([*unknown, gpu(7)])] == [uuid(7), uuid(0), uuid(4)]


def test_a_domain_of_five_digits_comes_after_those_of_four():
    far, near = gpu(0, pci="10000:01:00.0"), gpu(1, pci="ffff:01:00.0")
    assert order_gpus([far, near]) == (near, far)


def test_a_form_reads_as_people_say_it():
    assert str(Form(GPU, shared=False)) == "nvidia.com/gpu (whole)"
    assert str(Form(GPU, shared=True)) == "nvidia.com/gpu (shared)"

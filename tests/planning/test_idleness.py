"""Which GPUs must be idle before a container starts, and what is said of those that are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.model.listing import ListedDevice, ResourceList
from nvdp.model.reasons import Cause
from nvdp.planning.idleness import Checked, Foreign, choose_checked, describe_foreign
from nvdp.planning.plan import build_plan
from tests.planning.mps_values import card, mps_file, plan_of
from tests.planning.values import GPU, gpu, inputs, parse, sliced, uuid


def one_gpu(device_id: str, cause: Cause | None = None, text: str = "") -> ResourceList:
    return ResourceList(resource=GPU, devices=(ListedDevice(id=device_id, gpu_uuid=uuid(0), cause=cause, text=text),))


@pytest.mark.parametrize("config", [parse(), sliced(1), sliced(1, rename=True)], ids=["unshared", "one", "renamed"])
def test_a_gpu_that_is_given_out_whole_must_be_idle(config):
    [listed] = build_plan(inputs(config, gpu(0), gpu(1))).lists.values()
    assert choose_checked(listed, [uuid(1), uuid(0), uuid(1)]) == Checked((uuid(0), uuid(1)))


def test_a_share_of_a_gpu_need_not_be_idle():
    [listed] = build_plan(inputs(sliced(2), gpu(0))).lists.values()
    assert choose_checked(listed, [device.id for device in listed.devices]) == Checked()


def test_a_gpu_that_mps_has_need_not_be_idle_as_its_server_is_there():
    listed = plan_of(mps_file("name: gpu, replicas: 1"), card(0)).lists[GPU]
    assert choose_checked(listed, [uuid(0)]) == Checked()


def test_of_an_id_that_is_not_listed_nothing_is_asked():
    assert choose_checked(one_gpu(uuid(0)), [uuid(7)]) == Checked()


def test_a_gpu_that_goes_over_to_another_form_is_not_asked_about():
    assert choose_checked(one_gpu(uuid(0), Cause.WITHDRAWING), [uuid(0)]) == Checked()


@pytest.mark.parametrize("cause", [Cause.LOST, Cause.CALL_TIMEOUT, Cause.DRIVER_LOST, Cause.DRIVER_PAUSED])
def test_the_driver_is_not_asked_about_a_gpu_that_it_does_not_answer_for(cause):
    assert choose_checked(one_gpu(uuid(0), cause, "gone"), [uuid(0)]) == Checked((), {uuid(0): "gone"})


@pytest.mark.parametrize("cause", [Cause.CORDONED, Cause.XID, Cause.ECC, Cause.HELD])
def test_it_is_asked_about_one_that_takes_no_new_pods_for_another_reason(cause):
    assert choose_checked(one_gpu(uuid(0), cause), [uuid(0)]) == Checked((uuid(0),))


@given(st.sampled_from([*Cause]), st.booleans(), st.integers(0, 3))
def test_every_gpu_of_a_request_is_asked_about_or_excused_or_neither_and_never_both(cause, is_share, replica):
    device_id = f"{uuid(0)}::{replica}" if is_share else uuid(0)
    checked = choose_checked(one_gpu(device_id, cause), [device_id])
    assert len(checked.asked) + len(checked.unanswered) <= (0 if is_share else 1)


def test_the_times_of_the_check_are_the_files():
    config = parse("allocation: {preStartTimeout: 7s}\nhealth: {callTimeout: 2s}")
    [listed] = build_plan(inputs(config, gpu(0))).lists.values()
    assert (listed.facts.pre_start_timeout_s, listed.facts.call_timeout_s) == (7.0, 2.0)


def test_a_process_is_told_by_all_that_is_known_of_it():
    known = Foreign(pid=42, name="python3", container="0123456789ab", memory_bytes=3 << 20)
    assert describe_foreign([known]) == "PID 42 (python3, 3 MiB, container 0123456789ab)"
    assert describe_foreign([Foreign(pid=42)]) == "PID 42 (name unknown)"
    assert describe_foreign([Foreign(pid=42)], nameless="who?") == "PID 42 (who?)"


def test_of_many_processes_a_few_are_named():
    many = [Foreign(pid=pid, name="a") for pid in range(1, 6)]
    assert describe_foreign(many) == "PID 1 (a), PID 2 (a), PID 3 (a) and 2 more"

"""What the sentences of ``nvdp mps`` come to: those that it makes itself, and any other."""

from __future__ import annotations

import msgspec
import pytest

from nvdp.model.mps import DaemonSpec, Phase
from nvdp.mps.program import explain_start
from nvdp.planning.daemon_course import Standing, Surroundings, Wish, plan_daemons
from nvdp.planning.mps_verdicts import Sort, is_orderly, is_out_of_order, judge_text, split_option

SPEC = DaemonSpec(resource="m", gpus=("GPU-1", "GPU-2"))
BOTH = frozenset(SPEC.gpus)
FREE = Wish(wanted=SPEC, free=BOTH)
IDLE = Standing()
OTHER = DaemonSpec(resource="m", gpus=("GPU-1",))


def say(wish=FREE, standing=IDLE, **surroundings) -> str:
    """What the course of the daemons says of one."""
    return (
        plan_daemons({"m": wish}, {"m": standing}, Surroundings(**({"present": BOTH} | surroundings))).steps["m"].text
    )


SAID = {
    "pods have its GPUs": (say(Wish(wanted=SPEC)), Sort.PODS),
    "pods use it": (
        say(Wish(wanted=SPEC, free=BOTH, is_in_use=True), Standing(running=OTHER), claimed=BOTH),
        Sort.PODS,
    ),
    "it is looked at": (say(), Sort.MOMENT),
    "it is being claimed": (say(standing=Standing(cleared=BOTH)), Sort.MOMENT),
    "it is paused": (say(paused="paused by nvdp pause"), Sort.MOMENT),
    "the driver was not asked yet": (say(obstacle="the driver has not answered yet"), Sort.MOMENT),
    "there is no driver": (say(obstacle="the driver is not there: libnvidia-ml.so.1"), Sort.FAULT),
    "there is no program": (explain_start("nvidia-cuda-mps-control", FileNotFoundError()), Sort.FAULT),
    "its GPUs are gone": (say(present=()), Sort.FAULT),
    "the mode of one cannot be set, and pods have the other": (
        say(Wish(wanted=SPEC, free=("GPU-1",)), unclaimable={"GPU-1": "nvmlDeviceSetComputeMode: NoPermission"}),
        Sort.UNSUPPORTED,
    ),
    "something else": (say(obstacle="the moon is not full"), Sort.FAULT),
    "nothing yet": ("", Sort.MOMENT),
}


@pytest.mark.parametrize(("text", "sort"), SAID.values(), ids=SAID)
def test_a_daemon_that_is_not_started_waits_in_order_or_for_somebody_who_mends_something(text, sort):
    assert judge_text(Phase.WAITING, text).sort is sort
    assert (
        is_orderly(Phase.WAITING, text)
        is (sort in {Sort.PODS, Sort.MOMENT})
        is not is_out_of_order(Phase.WAITING, text)
    )


@pytest.mark.parametrize("text", [text for text, _ in SAID.values()])
def test_a_daemon_that_has_failed_is_out_of_order_whatever_it_says(text):
    assert judge_text(Phase.FAILED, text).sort in {Sort.FAULT, Sort.UNSUPPORTED}
    assert is_out_of_order(Phase.FAILED, text)
    assert not is_orderly(Phase.FAILED, text)


def test_that_the_driver_serves_one_user_is_told_apart_from_what_else_there_is():
    simple = msgspec.structs.replace(SPEC, multi_user=False)
    lacks = Standing(running=simple, lacks_multi_user=True)
    assert split_option(say(standing=lacks, claimed=BOTH)) == ("", True)
    part = Standing(running=msgspec.structs.replace(simple, gpus=("GPU-1",)), lacks_multi_user=True)
    rest, lacks_option = split_option(say(Wish(wanted=SPEC, free=("GPU-1",)), part, claimed=BOTH))
    assert (rest, lacks_option) == ("GPU-2: not free yet: pods hold it in another form", True)
    assert split_option("it ends; by and by") == ("it ends; by and by", False)

"""The condition of the Node, and when a start-up taint may go: by the status alone."""

from __future__ import annotations

import copy

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.model.listing import Strategy
from nvdp.model.status import ConfigStatus, DriverState, DriverStatus, ResourceStatus, Status, Trouble
from nvdp.planning.node_condition import (
    Condition,
    ConditionReason,
    ConditionThere,
    build_condition,
    find_condition,
)
from nvdp.planning.startup_taint import build_removal, find_taints, has_allocatable, list_advertised

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
TYPE, KEY = "nvidia.com/GPUReady", "nvidia.com/gpu-not-ready"
IN_FORCE = ConfigStatus(valid=True, hash="sha256:1f0c9a2e77b0", source="/config/config.yaml", applied_at=1.0)
READY = DriverStatus(state=DriverState.READY, version="580.65.06")


def resource(name=GPU, **facts):
    known = {"planned": 4, "healthy": 4, "unhealthy": 0, "registered": True, "streams": 1}
    return ResourceStatus(name=name, strategy=Strategy.NONE, replicas=(1,), **(known | facts))


def status(*resources, **facts):
    known = {"ready": True, "reason": "", "config": IN_FORCE, "driver": READY}
    return Status(resources=resources, **(known | facts))


def driver(state, text=""):
    return status(driver=DriverStatus(state=state, text=text), ready=False, reason="x")


REFUSED = ConfigStatus(refused="config.yaml:14:5: unknown key", problems=1)
CASES = [
    (status(resource()), "PlanAdvertised", "nvidia.com/gpu: 4 of 4 healthy"),
    (status(resource(healthy=1, unhealthy=3)), "PlanAdvertised", "nvidia.com/gpu: 1 of 4 healthy"),
    (status(resource(), resource(SHARED, healthy=0, unhealthy=8)), "PlanAdvertised", "gpu.shared: 0 of 8 healthy"),
    (status(resource(healthy=0, unhealthy=4)), "AllUnhealthy", "nvidia.com/gpu: 0 of 4 healthy"),
    (status(), "AllUnhealthy", "there is nothing to offer"),
    (status(resource(registered=False, missing="no such socket")), "NotRegistered", "nvidia.com/gpu: no such socket"),
    (status(resource(), resource(SHARED, registered=False)), "NotRegistered", f"{SHARED}: not registered yet"),
    (status(resource(), resource(SHARED, registered=False, planned=0, healthy=0)), "PlanAdvertised", "4 of 4"),
    (status(resource(), resource(SHARED, registered=False, healthy=0, waits=True)), "PlanAdvertised", "4 of 4"),
    (
        status(
            resource(),
            ready=False,
            reason="ServiceRestarted",
            troubles=(Trouble(reason="ServiceRestarted", text="planning failed"),),
        ),
        "NotRegistered",
        "planning failed",
    ),
    (driver(DriverState.MISSING, "libnvidia-ml.so.1 not found"), "DriverMissing", "libnvidia-ml.so.1 not found"),
    (driver(DriverState.MISMATCH, "reload the module"), "DriverMissing", "reload the module"),
    (driver(DriverState.LOST), "DriverMissing", "the driver is Lost"),
    (driver(DriverState.PAUSED, "paused by alice"), "AllUnhealthy", "paused by alice"),
    (driver(DriverState.STARTING), "NotRegistered", "nvdp is starting"),
    (Status(), "NotRegistered", "nvdp is starting"),
    (status(config=REFUSED, ready=False), "ConfigInvalid", "config.yaml:14:5: unknown key"),
    (
        status(config=ConfigStatus(unknown=True, refused="label names mixt; there are: mixed"), ready=False),
        "ConfigInvalid",
        "there are: mixed",
    ),
    (
        status(config=ConfigStatus(waiting="waits for the API server"), ready=False),
        "NotRegistered",
        "waits for the API",
    ),
    (status(config=ConfigStatus(missing=True), ready=False), "ConfigInvalid", "there is no configuration"),
]


@pytest.mark.parametrize(("now", "reason", "text"), CASES)
def test_the_condition_says_why(now, reason, text):
    condition = build_condition(now)
    assert condition.reason.value == reason
    assert text in condition.message
    assert condition.status == ("True" if reason == "PlanAdvertised" else "False")


def test_every_reason_is_shown_by_a_case():
    assert {reason for _, reason, _ in CASES} == {reason.value for reason in ConditionReason}


def test_a_mistake_in_an_edit_takes_no_node_out_of_service():
    kept = msgspec.structs.replace(IN_FORCE, valid=False, refused="config.yaml:14:5: unknown key", problems=1)
    assert build_condition(status(resource(), config=kept)).status == "True"
    gone = msgspec.structs.replace(IN_FORCE, valid=False, missing=True)
    assert build_condition(status(resource(), config=gone)).status == "True"


def test_a_start_is_given_more_time_than_anything_else():
    settles = {reason: build_condition(now).settle_s for now, reason, _ in CASES if now != Status()}
    assert build_condition(Status()).settle_s == 30.0
    assert settles["PlanAdvertised"] == settles["AllUnhealthy"] == settles["ConfigInvalid"] == 1.0


RESOURCES = st.lists(
    st.builds(
        resource,
        name=st.text(max_size=300),
        registered=st.booleans(),
        healthy=st.integers(0, 2),
        planned=st.integers(0, 2),
        waits=st.booleans(),
        missing=st.none() | st.text(max_size=3000),
    ),
    max_size=9,
)


@given(
    RESOURCES,
    st.sampled_from(DriverState),
    st.booleans(),
    st.sampled_from([ConfigStatus(), REFUSED, IN_FORCE, ConfigStatus(missing=True)]),
)
def test_it_is_true_only_if_something_is_on_offer_and_nothing_is_missing(resources, state, ready, config):
    now = status(*resources, driver=DriverStatus(state=state), ready=ready, config=config)
    condition = build_condition(now)
    assert condition.status in {"True", "False"}
    assert len(condition.message.encode()) <= 1024
    if condition.status == "True":
        assert state is DriverState.READY
        assert config is IN_FORCE
        assert ready
        assert any(one.healthy for one in resources)
        assert all(one.registered or not one.planned or one.waits for one in resources)
        assert list_advertised(now)
    else:
        assert list_advertised(now) == {}


def node(*taints, conditions=(), allocatable=None):
    return {
        "spec": {"taints": list(taints)},
        "status": {"conditions": list(conditions), "allocatable": allocatable or {}},
    }


def test_the_condition_is_found_among_others():
    there = {
        "type": TYPE,
        "status": "True",
        "reason": "PlanAdvertised",
        "message": "m",
        "lastTransitionTime": "2026-11-29T03:12:07Z",
    }
    found = find_condition(node(conditions=[{"type": "Ready", "status": "False"}, there]), TYPE)
    assert found == ConditionThere(
        status="True", reason="PlanAdvertised", message="m", last_transition="2026-11-29T03:12:07Z"
    )
    said = Condition(reason=ConditionReason.PLAN_ADVERTISED, message="m")
    assert found.says(said)
    assert not found.says(msgspec.structs.replace(said, message="n"))
    assert not found.says(msgspec.structs.replace(said, reason=ConditionReason.NOT_REGISTERED))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["spec", "status", "taints", "conditions", "type", "key", "allocatable"]), inner, max_size=4
        )
    ),
)


@given(st.dictionaries(st.sampled_from(["spec", "status", "metadata"]), JSON))
def test_a_node_of_any_form_can_be_looked_at(found):
    assert isinstance(find_condition(found, TYPE), ConditionThere)
    assert find_taints(found, KEY) == ()
    assert build_removal(found, KEY) == []
    assert has_allocatable(found, [])


def taint(key=KEY, effect="NoSchedule", **more):
    return {"key": key, "effect": effect, **more}


TAINTS = st.lists(
    st.builds(
        taint,
        key=st.sampled_from([KEY, f"{KEY}-not", "node.kubernetes.io/not-ready"]),
        effect=st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"]),
    ),
    max_size=6,
)


@given(TAINTS)
def test_taints_of_the_key_go_and_all_others_stay(taints):
    found = node(*taints)
    assert _apply(found, build_removal(found, KEY))["spec"]["taints"] == [one for one in taints if one["key"] != KEY]


@given(TAINTS, TAINTS)
def test_of_a_node_that_has_changed_meanwhile_nothing_else_goes(seen, meanwhile):
    now = node(*meanwhile)
    try:
        after = _apply(now, build_removal(node(*seen), KEY))["spec"]["taints"]
    except (ValueError, IndexError):
        return
    gone = list(meanwhile)
    for one in after:
        gone.remove(one)
    assert all(one["key"] == KEY for one in gone)


def _apply(found, patch):
    after = copy.deepcopy(found)
    for step in patch:
        index = int(step["path"].removeprefix("/spec/taints/"))
        if step["op"] == "test":
            if after["spec"]["taints"][index] != step["value"]:
                raise ValueError
        else:
            assert step["op"] == "remove"
            del after["spec"]["taints"][index]
    return after


@pytest.mark.parametrize(
    ("allocatable", "expected"),
    [({GPU: "4"}, True), ({GPU: "0"}, False), ({GPU: 0}, False), ({}, False), ({SHARED: "4"}, False)],
)
def test_the_node_shows_the_devices_once_the_kubelet_has_told(allocatable, expected):
    assert has_allocatable(node(allocatable=allocatable), [GPU]) is expected


def test_only_what_is_healthy_is_advertised():
    now = status(resource(), resource(SHARED, healthy=0, unhealthy=4))
    assert list_advertised(now) == {GPU: 4}

"""What is wanted of the control daemons: the plugin's word, else the file's, and nothing while neither is known."""

from __future__ import annotations

import msgspec
import pytest

from nvdp.model.mps import DaemonSpec, Grant, MpsGrants
from nvdp.planning.daemon_course import Wish
from nvdp.services.mps_events import GrantsRead
from nvdp.services.mps_wishes import Wishes
from tests.planning import values
from tests.planning.values import gpu, uuid

SHARED = "nvidia.com/gpu.mps"
MPS = """
version: v1
sharing:
  mps:
    resources:
    - {name: nvidia.com/gpu, rename: nvidia.com/gpu.mps, replicas: 4}
"""
SPEC = DaemonSpec(resource=SHARED, gpus=(uuid(0),), thread_percent=50)
GRANTED = MpsGrants(resources={SHARED: Grant(wanted=SPEC, free=(uuid(0),), held=(uuid(0),), at_once=True)})
PLAIN = values.parse("version: v1")


@pytest.fixture
def told():
    return []


@pytest.fixture
def wishes(told):
    return Wishes(log=lambda _reason, msg, /, **_: told.append(msg))


def inventory(count):
    return values.inventory(*(gpu(number, compute_capability="8.6") for number in range(count)))


def test_before_the_plugins_word_was_looked_for_nothing_is_known_whatever_the_file_says(wishes):
    wishes.follow(values.parse(MPS), inventory(1), {})
    assert wishes.find_problem(values.parse(MPS))
    assert not wishes.may_need_driver(values.parse(MPS))


def test_without_a_word_of_the_plugin_the_file_counts_and_clients_are_what_uses_a_daemon(wishes):
    wishes.take(GrantsRead())
    assert wishes.find_problem(None) == "no configuration is in force yet"
    assert wishes.find_problem(values.parse(MPS)) == "the driver has not answered yet"
    assert wishes.find_problem(PLAIN) == ""
    assert (wishes.may_need_driver(values.parse(MPS)), wishes.may_need_driver(PLAIN)) == (True, False)

    wishes.follow(values.parse(MPS), inventory(1), {})
    built = wishes.build({SHARED: True, "nvidia.com/old": False}, claims=(), occupied={uuid(0): ""})
    assert built[SHARED].wanted.gpus == built[SHARED].free == (uuid(0),)
    assert (built[SHARED].is_in_use, built[SHARED].counts_clients) == (True, True)
    assert built["nvidia.com/old"] == Wish(counts_clients=True)


def test_without_a_word_of_the_plugin_a_gpu_is_free_once_nobody_computes_on_it_or_it_is_ours(wishes):
    wishes.take(GrantsRead())
    wishes.follow(values.parse(MPS), inventory(4), {})
    assert wishes.find_uncertain({uuid(0)}) == {uuid(1), uuid(2), uuid(3)}
    built = wishes.build({}, claims={uuid(0)}, occupied={uuid(1): "", uuid(2): "process 7 computes on it"})[SHARED]
    assert built.free == (uuid(0), uuid(1))
    assert built.occupied[uuid(2)] == "process 7 computes on it"
    assert "it is looked at" in built.occupied[uuid(3)]
    wishes.take(GrantsRead(grants=GRANTED))
    assert wishes.find_uncertain(()) == frozenset()


def test_a_new_gpu_is_wanted_as_the_file_says(wishes):
    wishes.take(GrantsRead())
    wishes.follow(values.parse(MPS), inventory(1), {})
    wishes.follow(values.parse(MPS), inventory(2), {})
    assert wishes.build({}, claims=(), occupied={})[SHARED].wanted.gpus == (uuid(0), uuid(1))


def test_the_word_of_the_plugin_counts_before_the_file_and_after_its_own_file_is_gone(wishes):
    wishes.follow(PLAIN, inventory(1), {})
    wishes.take(GrantsRead(grants=GRANTED))
    wishes.take(GrantsRead())
    assert wishes.find_problem(None) == ""
    assert wishes.may_need_driver(PLAIN)
    assert wishes.build({SHARED: False}, claims=(), occupied={uuid(0): ""}) == {
        SHARED: Wish(wanted=SPEC, free=(uuid(0),), is_in_use=True, at_once=True),
    }


def test_a_plugin_that_wants_nothing_needs_no_driver(wishes):
    wishes.take(GrantsRead(grants=MpsGrants()))
    assert not wishes.may_need_driver(values.parse(MPS))
    assert wishes.build({SHARED: True}, claims=(), occupied={uuid(0): ""}) == {}


def test_a_word_that_cannot_be_read_is_told_once_and_the_last_one_that_could_stands(wishes, told):
    wishes.take(GrantsRead(problem="mps.json: damaged"))
    wishes.take(GrantsRead(problem="mps.json: damaged"))
    assert wishes.find_problem(PLAIN) == "mps.json: damaged"
    assert len(told) == 1

    wishes.take(GrantsRead(grants=GRANTED))
    wishes.take(GrantsRead(problem="mps.json: damaged"))
    assert wishes.find_problem(None) == ""
    assert wishes.build({}, claims=(), occupied={uuid(0): ""})[SHARED].wanted == SPEC


def test_without_a_plugin_at_once_is_what_the_file_says(wishes):
    wishes.take(GrantsRead())
    immediate = MPS + "allocation: {modeChange: immediate}\n"
    wishes.follow(values.parse(immediate), inventory(1), {})
    assert wishes.build({}, claims=(), occupied={uuid(0): ""})[SHARED].at_once
    assert msgspec.structs.replace(
        wishes.build({}, claims=(), occupied={uuid(0): ""})[SHARED], at_once=False
    ).counts_clients

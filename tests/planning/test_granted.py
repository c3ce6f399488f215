"""What nvdp mps may take by what it was told, or may have been told: what was taken back counts once it was heard."""

from __future__ import annotations

import msgspec
import pytest

from nvdp.model.mps import DaemonSpec, Grant, MpsGrants, MpsView
from nvdp.planning.granted import Granted, restore_granted

NOBODY = MpsView(problem="nvdp mps does not run on this node")


def grants(*gpus: str, config: str = "") -> MpsGrants:
    return MpsGrants(config=config, resources={"nvidia.com/gpu.mps": Grant(free=gpus)})


def heard(word: MpsGrants) -> MpsView:
    return MpsView(heard=word.digest)


def written(*words: MpsGrants) -> Granted:
    granted = Granted()
    for word in words:
        granted = granted.ask(word).note_written(word)
    return granted


def sets(granted: Granted) -> tuple[set[str], set[str]]:
    return set(granted.in_file), set(granted.unheard)


A, NONE = grants("GPU-a"), MpsGrants()


def test_what_the_file_lets_be_taken_counts_until_it_says_otherwise_and_that_was_heard():
    assert sets(written(A)) == ({"GPU-a"}, set())
    taken_back = written(A, NONE)
    assert sets(taken_back) == (set(), {"GPU-a"})
    assert sets(taken_back.hear(heard(A))) == (set(), {"GPU-a"})
    assert sets(taken_back.hear(MpsView())) == (set(), {"GPU-a"})
    assert sets(taken_back.hear(heard(NONE))) == (set(), set())


def test_who_is_not_there_will_read_what_is_in_the_file():
    assert sets(written(A, NONE).hear(NOBODY)) == (set(), set())
    assert sets(written(A).ask(NONE).hear(NOBODY)) == ({"GPU-a"}, set())


def test_what_is_not_written_yet_may_be_in_the_file_already_until_the_newest_is():
    first, second = grants("GPU-a"), grants("GPU-b")
    granted = written(NONE).ask(first)
    assert sets(granted) == ({"GPU-a"}, set())
    granted = granted.ask(second)
    assert sets(granted.note_written(first)) == ({"GPU-a", "GPU-b"}, set())
    assert sets(granted.note_written(second)) == ({"GPU-b"}, set())
    assert sets(granted.ask(grants("GPU-b")).note_written(second)) == ({"GPU-b"}, set())


def test_any_later_word_that_is_heard_will_do():
    later = [grants("GPU-b", config=str(number)) for number in range(200)]
    granted = written(A, *later)
    assert granted.unheard == {"GPU-a"}
    assert sets(granted.hear(heard(later[-3]))) == ({"GPU-b"}, set())
    assert len(granted.words) < 100


def test_at_once_means_all_that_is_wanted():
    spec = DaemonSpec(resource="r", gpus=("GPU-a", "GPU-b"))
    assert written(MpsGrants(resources={"r": Grant(wanted=spec, at_once=True)})).in_file == {"GPU-a", "GPU-b"}
    assert written(MpsGrants(resources={"r": Grant(wanted=spec)})).in_file == set()


@pytest.mark.parametrize("is_heard", [False, True], ids=["unheard", "heard"])
def test_a_successor_knows_what_was_taken_back_and_perhaps_not_heard(is_heard):
    before = written(A)
    found = before.complete(NONE)
    assert found == msgspec.structs.replace(NONE, leaving=("GPU-a",))
    after = restore_granted(found)
    assert sets(after) == (set(), {"GPU-a"})
    assert sets(after.hear(heard(found if is_heard else A))) == (set(), set() if is_heard else {"GPU-a"})
    settled = after.hear(heard(found))
    assert settled.complete(NONE) == NONE
    assert not settled.is_any


def spec(*gpus: str, percent: int = 50) -> DaemonSpec:
    return DaemonSpec(resource=NAME, gpus=gpus, thread_percent=percent, memory_mib=dict.fromkeys(gpus, percent))


def told(granted: Granted, **grant: object) -> tuple[Granted, Grant]:
    """The next grants for one resource, and what was remembered after them."""
    complete = granted.complete(MpsGrants(resources={NAME: Grant(**grant)}))
    return granted.ask(complete).note_written(complete), complete.resources[NAME]


NAME = "nvidia.com/gpu.mps"
AB = {"wanted": spec("a", "b"), "free": ("a", "b")}


@pytest.mark.invariant(4)
def test_a_daemon_that_is_to_go_is_kept_for_those_who_hold_what_is_of_it():
    granted, grant = told(Granted(), **AB)
    assert grant.kept is None
    granted, grant = told(granted, held=("b",))
    assert grant.kept == spec("b")
    assert "b" in granted.in_file
    granted, grant = told(restore_granted(granted.asked), held=("b",))  # the plugin was started anew
    assert grant.kept == spec("b")
    granted, grant = told(granted, held=())
    assert grant.kept is None
    assert "b" in granted.unheard


def test_a_daemon_that_is_to_have_other_gpus_is_kept_with_those_that_pods_hold_too():
    granted, _ = told(Granted(), **AB)
    granted, grant = told(granted, wanted=spec("a", percent=20), free=("a",), held=("a", "b"))
    assert grant.kept == msgspec.structs.replace(spec("a", "b", percent=20), memory_mib={"a": 20, "b": 50})
    assert told(granted, wanted=spec("a", percent=20), free=("a",), held=("a",))[1].kept is None
    assert told(granted, wanted=spec("a"), free=("a",), held=("a", "b"), at_once=True)[1].kept is None

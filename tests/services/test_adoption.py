"""Which configuration is in force: the newest valid one that the node can take, else the one before."""

from __future__ import annotations

import msgspec
import pytest

from nvdp.host.state import AppliedConfig
from nvdp.model.chosen import Chosen
from nvdp.model.reasons import Cause, Level, Reason
from nvdp.services.adoption import Adoption
from nvdp.services.events import ConfigRead
from tests.planning.values import ailment, gpu, inventory, parse, sliced, uuid
from tests.virtual.recorder import Recorder

pytestmark = pytest.mark.invariant(9)

NODE = inventory(gpu(0), gpu(1))
FIRST, SECOND, LARGE = sliced(2), sliced(3), sliced(70_000)
BROKEN = "test.yaml:1:1: broken"
MIXED, BASE = Chosen("mixed", "label a=mixed"), Chosen("base", "no label a: --default-config")


class Scene:
    """An adoption, and what it remembered, told and counted."""

    def __init__(self, last_good=None, pins=None, delay_s=0.0, last_chosen=None, *, left=None, left_chosen=None):
        self.now = 50.0
        self.record = Recorder()
        self.record.pins = pins or {}
        self.adoption = Adoption(
            last_good=last_good,
            memory=self.record,
            log=self.record,
            count_edit=lambda result: self.record.counted.append(("edit", result)),
            wall=lambda: 1000.0 + self.now,
            clock=lambda: self.now,
            choose_delay_s=lambda: delay_s,
            last_chosen=last_chosen,
            left=left and ConfigRead(source="test.yaml", config=left, text=b"left", chosen=left_chosen, at=0.0),
        )

    def read(self, config, text=b"text"):
        self.adoption.take(ConfigRead(source="test.yaml", config=config, text=text, at=self.now))

    def refuse(self, *problems, missing=False):
        self.adoption.take(ConfigRead(source="test.yaml", problems=problems, missing=missing, at=self.now))

    def unknown(self, problem):
        self.adoption.take(ConfigRead(source="configs", problems=(problem,), unknown=True, at=self.now))

    def wait(self, why):
        self.adoption.take(ConfigRead(source="configs", problems=(why,), waiting=True, at=self.now))

    def choose(self, config, chosen, text=b"text"):
        self.adoption.take(ConfigRead(source="configs", config=config, text=text, chosen=chosen, at=self.now))

    def judge(self, node=NODE, ailments=None):
        return self.adoption.judge(node, ailments or {})

    def adopt(self, config):
        self.read(config)
        applied = self.judge()
        self.adoption.confirm(applied, "changes")
        return applied

    @property
    def status(self):
        return self.adoption.status


def test_before_anything_was_read_nothing_is_in_force_and_nothing_is_wrong():
    scene = Scene()
    assert scene.judge() is None
    assert (scene.adoption.config, scene.adoption.expected) == (None, None)
    assert (scene.status.valid, scene.status.hash, scene.status.refused) == (False, "", None)


def test_a_valid_configuration_comes_into_force_when_judged_and_is_remembered_when_confirmed():
    scene = Scene()
    scene.read(FIRST, b"first")
    assert scene.adoption.config is None
    assert scene.judge() is FIRST
    assert scene.adoption.config is FIRST
    assert scene.record.config is None
    scene.adoption.confirm(FIRST, "nvidia.com/gpu: 0 → 4")
    assert scene.record.config == AppliedConfig(text="first", source="test.yaml", hash=FIRST.hash)
    assert scene.record.edits() == ["applied"]
    assert scene.record.texts(Reason.CONFIG_APPLIED) == [f"test.yaml {FIRST.hash}  nvidia.com/gpu: 0 → 4"]
    assert (scene.status.valid, scene.status.hash, scene.status.applied_at) == (True, FIRST.hash, 1050.0)
    assert scene.judge() is None


def test_the_newest_of_several_edits_counts():
    scene = Scene()
    scene.read(FIRST)
    scene.read(SECOND, b"second")
    assert scene.judge() is SECOND
    scene.adoption.confirm(SECOND, "")
    assert scene.record.config.text == "second"


def test_an_edit_that_is_taken_back_before_it_was_judged_is_no_edit():
    scene = Scene()
    scene.adopt(FIRST)
    scene.read(SECOND)
    assert not scene.read(FIRST)
    assert scene.judge() is None
    assert scene.record.edits() == ["applied", "unchanged"]


def test_the_same_content_again_changes_nothing():
    scene = Scene()
    scene.adopt(FIRST)
    told = list(scene.record.told)
    assert not scene.read(msgspec.structs.replace(FIRST))
    assert scene.record.told == told
    assert scene.record.edits() == ["applied", "unchanged"]


def test_a_refused_edit_changes_nothing_and_tells_all_its_problems_once():
    scene = Scene()
    scene.adopt(FIRST)
    for _ in range(2):
        assert not scene.refuse(BROKEN, "test.yaml:2:1: also", "test.yaml:3:1: too")
    assert scene.adoption.config is FIRST
    assert scene.record.texts(Reason.CONFIG_REFUSED) == [
        f"{BROKEN}  (3 errors; keeping {FIRST.hash})",
        "test.yaml:2:1: also",
        "test.yaml:3:1: too",
    ]
    assert (scene.status.valid, scene.status.refused, scene.status.hash) == (False, BROKEN, FIRST.hash)
    assert scene.record.edits() == ["applied", "refused", "refused"]


def test_a_file_that_is_valid_again_is_told_so_and_the_same_mistake_is_told_again_later():
    scene = Scene()
    scene.adopt(FIRST)
    scene.refuse(BROKEN)
    scene.read(FIRST)
    assert (scene.status.valid, scene.status.refused) == (True, None)
    assert scene.record.texts(Reason.CONFIG_APPLIED)[-1] == f"test.yaml {FIRST.hash}  valid again, nothing changed"
    scene.refuse(BROKEN)
    assert len(scene.record.texts(Reason.CONFIG_REFUSED)) == 2


def test_a_missing_file_is_told_once_each_time_that_it_goes():
    scene = Scene()
    for _ in range(2):
        scene.refuse("test.yaml: no such file", missing=True)
    assert scene.record.texts(Reason.CONFIG_MISSING) == ["test.yaml: no such file  (nothing in force before)"]
    assert (scene.status.missing, scene.status.refused) == (True, "test.yaml: no such file")
    scene.adopt(FIRST)
    assert not scene.status.missing
    scene.refuse("test.yaml: no such file", missing=True)
    assert scene.record.texts(Reason.CONFIG_MISSING)[1:] == [f"test.yaml: no such file  (keeping {FIRST.hash})"]
    scene.refuse(BROKEN)
    assert not scene.status.missing


# before there are GPUs


def test_while_there_is_no_driver_the_valid_file_is_what_will_be_in_force():
    scene = Scene()
    scene.read(FIRST)
    assert scene.adoption.expected is FIRST
    assert (scene.status.valid, scene.status.hash, scene.status.applied_at) == (True, FIRST.hash, None)


def test_a_broken_edit_does_not_take_away_a_valid_file_that_waits_for_the_driver():
    scene = Scene(last_good=SECOND)
    scene.read(FIRST, b"first")
    scene.refuse(BROKEN)
    assert scene.record.texts(Reason.CONFIG_REFUSED) == [f"{BROKEN}  (1 error; keeping {FIRST.hash})"]
    assert (scene.status.valid, scene.status.refused, scene.status.hash) == (False, BROKEN, FIRST.hash)
    assert scene.judge() is FIRST
    assert scene.status.refused == BROKEN
    scene.adoption.confirm(FIRST, "")
    assert scene.record.config.text == "first"


def test_a_valid_file_is_remembered_at_once_beside_the_last_good_one_and_the_newest_counts():
    scene = Scene(last_good=FIRST)
    for config, text in ((sliced(4), b"third"), (SECOND, b"second")):
        scene.read(config, text)
    scene.refuse(BROKEN)
    assert scene.record.candidate == AppliedConfig(text="second", source="test.yaml", hash=SECOND.hash)
    assert scene.record.config is None, "the last good one stays as it is"
    scene.adoption.confirm(scene.judge(), "")
    assert (scene.record.config.text, scene.record.candidate) == ("second", None)


def test_a_file_that_says_what_the_last_good_one_says_is_not_remembered_twice_and_others_before_it_are_over():
    scene = Scene(last_good=FIRST)
    scene.read(SECOND)
    scene.read(FIRST)
    assert scene.record.candidate is None


def test_an_edit_that_waits_is_remembered_until_it_is_taken_back_and_another_that_is_as_the_last_good_one_was_too():
    scene = Scene(last_good=SECOND, delay_s=30.0)
    scene.adopt(FIRST)
    scene.read(SECOND, b"second")
    assert scene.record.candidate.text == "second"
    scene.read(FIRST)
    assert scene.record.candidate is None


@pytest.mark.invariant(8)
def test_what_is_found_to_be_none_is_not_remembered():
    scene = Scene()
    scene.read(LARGE)
    assert scene.record.candidate.hash == LARGE.hash
    assert scene.judge() is None
    assert scene.record.candidate is None
    scene.read(FIRST)
    scene.judge()
    assert scene.record.candidate.hash == FIRST.hash, "until it is given out"
    scene.adoption.reject("planning failed: x")
    assert scene.record.candidate is None


# one that a predecessor did not come to judge


@pytest.mark.parametrize("last_good", [None, SECOND])
def test_after_a_restart_a_broken_file_leaves_in_force_what_was_still_to_be_judged(last_good):
    scene = Scene(last_good=last_good, left=FIRST)
    assert scene.adoption.has_last_good
    assert scene.adoption.expected is None, "the file may be another by now"
    scene.now = 55.0
    scene.refuse(BROKEN)
    assert scene.record.texts(Reason.CONFIG_REFUSED) == [f"{BROKEN}  (1 error; keeping {FIRST.hash})"]
    assert scene.adoption.expected is FIRST
    assert scene.record.candidate is None, "it is remembered as it was"
    assert (scene.judge(), scene.adoption.due_at) == (FIRST, 55.0)
    scene.adoption.confirm(FIRST, "changes")
    assert scene.record.config == AppliedConfig(text="left", source="test.yaml", hash=FIRST.hash)
    assert scene.record.texts(Reason.CONFIG_APPLIED) == [f"test.yaml {FIRST.hash}  changes"]
    assert scene.status.refused == BROKEN


def test_while_nobody_knows_what_is_chosen_it_is_what_was_still_to_be_judged():
    scene = Scene(last_good=SECOND, left=FIRST, left_chosen=MIXED)
    scene.wait("node a: not answered yet")
    assert scene.record.texts(Reason.CONFIG_MISSING) == [f"node a: not answered yet  (keeping mixed {FIRST.hash})"]
    assert scene.judge() is FIRST
    scene.adoption.confirm(FIRST, "")
    assert scene.record.config.chosen == MIXED


@pytest.mark.invariant(8)
def test_what_was_still_to_be_judged_and_is_none_gives_way_to_the_last_good_one():
    scene = Scene(last_good=FIRST, left=LARGE)
    scene.record.candidate = AppliedConfig(text="left", source="test.yaml", hash=LARGE.hash)
    scene.refuse(BROKEN)
    assert scene.judge() is FIRST
    assert "at most 17091 replicas here" in scene.status.refused
    assert scene.record.candidate is None
    scene.adoption.confirm(FIRST, "")
    scene.refuse(BROKEN)
    assert scene.judge() is None


def test_a_valid_file_at_the_start_takes_the_place_of_what_was_still_to_be_judged():
    scene = Scene(left=FIRST)
    scene.read(SECOND)
    scene.refuse(BROKEN)
    assert scene.judge() is SECOND


# the last good one


def test_that_the_last_good_configuration_stands_in_is_told():
    scene = Scene(last_good=FIRST)
    scene.refuse(BROKEN)
    scene.adoption.confirm(scene.judge(), "changes")
    told = f"test.yaml {FIRST.hash}  changes; the last good one, as before the restart"
    assert scene.record.texts(Reason.CONFIG_APPLIED) == [told]


def test_the_last_good_configuration_is_in_force_while_the_file_is_broken():
    scene = Scene(last_good=FIRST)
    assert scene.judge() is None  # nothing was read yet
    scene.refuse(BROKEN)
    assert scene.adoption.expected is FIRST
    assert scene.judge() is FIRST
    scene.adoption.confirm(FIRST, "")
    assert scene.record.config is None  # it is remembered already
    assert scene.record.edits() == ["refused"]
    assert (scene.status.valid, scene.status.refused, scene.status.hash) == (False, BROKEN, FIRST.hash)
    assert scene.judge() is None


def test_a_valid_file_at_the_start_wins_over_the_last_good_one():
    scene = Scene(last_good=FIRST)
    assert scene.adopt(SECOND) is SECOND


def test_a_file_that_this_node_cannot_take_gives_way_to_the_last_good_one():
    scene = Scene(last_good=FIRST)
    scene.read(LARGE)
    assert scene.judge() is FIRST
    assert "at most 17091 replicas here" in scene.status.refused


@pytest.mark.invariant(8)
@pytest.mark.parametrize("readable", [True, False])
def test_what_was_in_force_before_a_restart_is_not_refused_for_a_gpu_that_came_since(readable):
    scene = Scene(last_good=LARGE)
    if readable:
        scene.read(LARGE)
    else:
        scene.refuse(BROKEN)
    assert scene.judge() is LARGE
    assert scene.status.refused == (None if readable else BROKEN)


# the hardware


@pytest.mark.invariant(8)
def test_an_edit_that_this_node_cannot_take_is_refused_and_the_one_before_stays():
    scene = Scene()
    scene.adopt(FIRST)
    scene.read(LARGE)
    assert scene.judge() is None
    assert scene.adoption.config is FIRST
    assert scene.status.refused.startswith("test.yaml:6:17: sharing.timeSlicing.resources[0].replicas: 2 × 70000 ")
    assert scene.record.edits() == ["applied", "refused"]
    assert scene.record.config.hash == FIRST.hash


def test_a_configuration_that_judging_fails_on_is_refused():
    scene = Scene()
    scene.adopt(FIRST)
    scene.read(msgspec.structs.replace(FIRST, sharing=None, hash="sha256:defect"))
    assert scene.judge() is None
    assert scene.adoption.config is FIRST
    assert "judging it failed: AttributeError: " in scene.status.refused


def test_a_configuration_that_could_not_be_planned_with_is_taken_back():
    scene = Scene()
    scene.adopt(FIRST)
    scene.now = 60.0
    scene.read(SECOND)
    assert scene.judge() is SECOND
    scene.adoption.reject("planning failed: x")
    assert scene.adoption.config is FIRST
    assert (scene.status.refused, scene.status.applied_at) == ("test.yaml: planning failed: x", 1050.0)
    assert scene.record.config.hash == FIRST.hash
    assert scene.record.edits() == ["applied", "refused"]
    assert scene.adopt(sliced(4)).hash == sliced(4).hash


def test_what_was_taken_back_is_not_remembered_in_the_place_of_the_last_good_one():
    scene = Scene(last_good=FIRST)
    scene.read(SECOND)
    assert scene.judge() is SECOND
    scene.adoption.reject("planning failed: x")
    assert scene.judge() is FIRST
    scene.adoption.confirm(FIRST, "")
    assert scene.record.config is None


# references


@pytest.mark.invariant(10)
def test_references_are_pinned_when_a_configuration_is_applied_by_what_was_remembered():
    scene = Scene(pins={"devices.exclude=0": uuid(1), "devices.cordon=7": uuid(0)})
    config = parse("devices: {exclude: [0], cordon: [1]}")
    scene.adopt(config)
    pins = {"devices.exclude=0": uuid(1), "devices.cordon=1": uuid(1)}
    assert scene.adoption.pins == pins
    assert scene.record.pins == pins


@pytest.mark.invariant(10)
def test_pins_of_the_last_good_configuration_are_remembered_too():
    scene = Scene(last_good=parse("devices: {exclude: [1]}"))
    scene.refuse(BROKEN)
    scene.judge()
    assert scene.record.pins == {"devices.exclude=1": uuid(1)}


@pytest.mark.invariant(10)
def test_what_is_taken_back_leaves_the_references_of_the_one_before_as_they_were():
    scene = Scene()
    scene.adopt(parse("devices: {exclude: [1]}"))
    scene.read(parse(f"devices: {{cordon: [0, {uuid(9)}]}}"))
    assert scene.judge() is not None
    assert len(scene.adoption.unmatched) == 1
    scene.adoption.reject("planning failed: x")
    assert scene.adoption.pins == scene.record.pins == {"devices.exclude=1": uuid(1)}
    assert scene.adoption.unmatched == ()


@pytest.mark.invariant(10)
def test_a_vanished_gpu_lends_its_index_to_no_pin():
    scene = Scene()
    scene.read(parse("devices: {exclude: [1]}"))
    scene.judge(inventory(gpu(1), gpu(2, index=1)), {uuid(1): ailment(Cause.VANISHED)})
    assert scene.adoption.pins == {"devices.exclude=1": uuid(2)}


def test_a_reference_that_names_nothing_is_told_once_and_again_when_it_does_so_again():
    scene = Scene()
    scene.adopt(parse(f"devices: {{exclude: [{uuid(1)}]}}"))
    both, one = inventory(gpu(0), gpu(1)), inventory(gpu(0))
    for node in (both, one, one, both, one):
        scene.adoption.follow(node, {})
    told = f"devices.exclude[0]: {uuid(1)} is not on this node (fine if other nodes share this file)"
    assert scene.record.texts(Reason.CONFIG_REFERENCE_UNMATCHED) == [told] * 2
    assert scene.adoption.unmatched == (told,)


def test_a_file_with_many_references_in_vain_does_not_flood_the_log():
    scene = Scene()
    scene.adopt(parse(f"devices: {{exclude: [{', '.join(uuid(number) for number in range(10, 510))}]}}"))
    told = scene.record.texts(Reason.CONFIG_REFERENCE_UNMATCHED)
    assert len(told) == 21
    assert told[-1] == "and 480 more; nvdp plan shows them all"
    assert len(scene.adoption.unmatched) == 500


def test_without_a_configuration_there_is_nothing_to_follow():
    scene = Scene()
    scene.adoption.follow(inventory(gpu(0)), {})
    assert scene.adoption.unmatched == ()


# what is told of a configuration


def test_warnings_are_told_when_it_is_applied():
    scene = Scene()
    scene.adopt(parse("health: {ignoredXIDs: [48], fatalXIDs: [48]}"))
    warnings = [text for text in scene.record.texts(Reason.CONFIG_APPLIED) if "warning: " in text]
    assert warnings == ["test.yaml:1:41: warning: health.fatalXIDs[0]: 48 is also in ignoredXIDs (line 1); fatal wins"]
    assert scene.record.levels[1] is Level.WARNING


CHECKED, UNCHECKED = parse("allocation: {preStartCheck: idle}"), sliced(2)
LATER = "allocation.preStartCheck: {} is used from the next start of nvdp on; until then it is {}"


@pytest.mark.parametrize(("first", "other"), [(CHECKED, UNCHECKED), (UNCHECKED, CHECKED)])
def test_whether_starts_are_checked_is_decided_by_the_first_configuration_and_an_edit_of_it_is_told_once(first, other):
    scene = Scene()
    scene.adopt(first)
    words = [config.allocation.pre_start_check.value for config in (first, other)]
    for config in (other, msgspec.structs.replace(other, hash="sha256:another"), first, other):
        scene.adopt(config)
        assert scene.adoption.checks_starts is (first is CHECKED)
    told = [text for text in scene.record.texts(Reason.CONFIG_APPLIED) if "preStartCheck" in text]
    assert told == [LATER.format(words[1], words[0])] * 2, "once for each time that it was edited"


def test_a_configuration_that_could_not_be_planned_with_decides_nothing_about_starts():
    scene = Scene()
    scene.read(CHECKED)
    scene.judge()
    scene.adoption.reject("planning failed: no")
    scene.adopt(UNCHECKED)
    assert not scene.adoption.checks_starts


# edits that wait, so that the nodes of a fleet do not all change at once


def test_the_first_configuration_never_waits():
    scene = Scene(delay_s=30.0)
    scene.read(FIRST)
    assert scene.adoption.next_at is None
    assert scene.judge() is FIRST


def test_a_valid_edit_waits_for_its_delay_and_shows_that_it_does():
    scene = Scene(delay_s=30.0)
    scene.adopt(FIRST)
    scene.read(SECOND)
    assert scene.adoption.next_at == 80.0
    assert (scene.status.hash, scene.status.pending, scene.status.pending_until) == (FIRST.hash, SECOND.hash, 1080.0)
    scene.now = 79.9
    assert scene.judge() is None
    assert scene.adoption.config is FIRST
    scene.now = 80.0
    assert scene.adoption.next_at is None
    assert scene.judge() is SECOND
    assert (scene.status.pending, scene.status.pending_until) == ("", None)


def test_a_refusal_does_not_wait_and_takes_nothing_from_the_edit_that_does():
    scene = Scene(delay_s=30.0)
    scene.adopt(FIRST)
    scene.read(SECOND)
    scene.refuse(BROKEN)
    assert scene.status.refused == BROKEN
    scene.now = 80.0
    assert scene.judge() is SECOND


def test_a_newer_edit_takes_the_place_of_one_that_waits_and_the_old_text_again_ends_the_wait():
    scene = Scene(delay_s=30.0)
    scene.adopt(FIRST)
    scene.read(SECOND)
    scene.now = 60.0
    scene.read(sliced(4))
    assert scene.adoption.next_at == 90.0
    scene.read(FIRST)
    assert scene.adoption.next_at is None
    scene.now = 100.0
    assert scene.judge() is None
    assert scene.adoption.config is FIRST


def test_who_asks_for_everything_now_waits_for_nothing():
    scene = Scene(delay_s=30.0)
    scene.adopt(FIRST)
    scene.read(SECOND)
    scene.adoption.hurry()
    assert scene.judge() is SECOND


def test_an_edit_that_is_still_being_read_when_somebody_asks_does_not_wait_either_and_later_ones_do():
    scene = Scene(delay_s=30.0)
    scene.adopt(FIRST)
    scene.adoption.hurry()
    scene.now += 1.0
    assert scene.adopt(SECOND) is SECOND
    scene.now += 10.0
    scene.read(FIRST)
    assert scene.judge() is None


# chosen among several

ZZZ = "configs: label a=zzz names no configuration; there are base, mixed"


def test_by_what_a_configuration_was_chosen_is_told_shown_and_remembered():
    scene = Scene()
    scene.choose(FIRST, MIXED, b"first")
    assert (scene.status.entry, scene.status.chosen_by) == ("mixed", "label a=mixed")
    scene.adoption.confirm(scene.judge(), "changes")
    assert scene.record.texts(Reason.CONFIG_APPLIED) == [f"test.yaml (label a=mixed) {FIRST.hash}  changes"]
    assert (scene.status.entry, scene.status.chosen_by, scene.status.source) == ("mixed", "label a=mixed", "test.yaml")
    assert scene.record.config == AppliedConfig(text="first", source="test.yaml", hash=FIRST.hash, chosen=MIXED)


def test_a_label_that_names_nothing_changes_nothing_and_says_what_is_kept():
    scene = Scene()
    scene.choose(FIRST, MIXED)
    scene.adoption.confirm(scene.judge(), "")
    for _ in range(2):
        scene.unknown(ZZZ)
    assert scene.judge() is None
    assert scene.adoption.config is FIRST
    assert scene.record.texts(Reason.CONFIG_UNKNOWN) == [f"{ZZZ}  (keeping mixed {FIRST.hash})"]
    assert scene.record.texts(Reason.CONFIG_REFUSED) == []
    assert (scene.status.valid, scene.status.unknown, scene.status.refused) == (False, True, ZZZ)
    assert (scene.status.entry, scene.status.hash) == ("mixed", FIRST.hash)
    scene.choose(SECOND, BASE)
    assert scene.judge() is SECOND
    assert (scene.status.valid, scene.status.unknown, scene.status.refused) == (True, False, None)


def test_a_label_that_names_nothing_at_the_start_leaves_what_was_applied_last():
    scene = Scene(last_good=FIRST, last_chosen=MIXED)
    scene.unknown(ZZZ)
    assert scene.record.texts(Reason.CONFIG_UNKNOWN) == [f"{ZZZ}  (keeping mixed {FIRST.hash})"]
    assert scene.judge() is FIRST
    assert scene.status.chosen_by == "label a=mixed"


def test_while_nobody_knows_what_is_chosen_the_last_one_applied_is_in_force_and_nothing_is_wrong():
    scene = Scene(last_good=FIRST, last_chosen=MIXED)
    assert scene.judge() is None
    for why in ("node a: not answered yet", "node a: refused"):
        scene.wait(why)
    assert scene.adoption.expected is FIRST
    assert scene.judge() is FIRST
    scene.adoption.confirm(FIRST, "changes")
    assert scene.record.texts(Reason.CONFIG_MISSING) == [f"node a: not answered yet  (keeping mixed {FIRST.hash})"]
    assert (scene.status.valid, scene.status.refused, scene.status.missing) == (True, None, False)
    assert (scene.status.waiting, scene.status.entry, scene.status.hash) == ("node a: refused", "mixed", FIRST.hash)
    assert scene.record.config is None
    assert scene.record.edits() == []


def test_an_answer_that_comes_late_is_followed():
    scene = Scene(last_good=FIRST, last_chosen=MIXED)
    scene.wait("node a: not answered yet")
    scene.adoption.confirm(scene.judge(), "")
    scene.choose(FIRST, MIXED)
    assert scene.status.waiting == ""
    told = scene.record.texts(Reason.CONFIG_APPLIED)[-1]
    assert told.startswith("test.yaml (label a=mixed) ")
    assert told.endswith("  as before, nothing changed")
    scene.wait("node a: not answered yet")
    scene.choose(SECOND, BASE)
    assert scene.judge() is SECOND


def test_without_a_last_one_nothing_is_in_force_while_nobody_knows():
    scene = Scene()
    scene.wait("node a: not answered yet")
    assert scene.judge() is None
    assert (scene.status.valid, scene.status.hash, scene.status.entry) == (False, "", "")
    assert scene.record.texts(Reason.CONFIG_MISSING) == ["node a: not answered yet  (nothing in force before)"]


def test_the_same_content_under_another_name_is_told_and_remembered_and_changes_nothing():
    scene = Scene()
    scene.choose(FIRST, MIXED, b"first")
    scene.adoption.confirm(scene.judge(), "")
    renamed = msgspec.structs.replace(FIRST, name="other.yaml")
    scene.choose(renamed, BASE, b"first")
    assert scene.judge() is None
    assert (scene.status.source, scene.status.entry) == ("other.yaml", "base")
    assert scene.record.config == AppliedConfig(text="first", source="other.yaml", hash=FIRST.hash, chosen=BASE)
    told = f"other.yaml ({BASE.by}) {FIRST.hash}  the same content, nothing changed"
    assert scene.record.texts(Reason.CONFIG_APPLIED)[-1] == told
    assert scene.record.edits() == ["applied", "unchanged"]
    scene.choose(renamed, BASE, b"first")
    assert scene.record.texts(Reason.CONFIG_APPLIED)[-2:].count(told) == 1


def test_what_chose_a_candidate_that_the_node_cannot_take_is_not_shown():
    scene = Scene(last_good=FIRST, last_chosen=MIXED)
    scene.choose(LARGE, BASE)
    assert scene.judge() is FIRST
    assert scene.status.entry == "mixed"

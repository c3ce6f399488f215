"""The labels are kept as they should be: written when something differs, tried again, moved, never just taken away."""

from __future__ import annotations

import itertools
import random
import threading
import time

import pytest

from nvdp.cluster.node_features import NodeFeatureObject
from nvdp.cluster.node_labels import NodeLabels
from nvdp.config.cluster import LabelTarget
from nvdp.errors import ClusterError, ClusterFault, HostError
from nvdp.host.feature_file import FeatureFile
from nvdp.model.cluster import ObjectSeen
from nvdp.planning.label_catalog import is_catalogued
from nvdp.planning.label_pace import LabelPace
from nvdp.planning.label_wish import LabelWish
from nvdp.services.labelling import LabelService
from tests.cluster.timing import Clock
from tests.daemon.process import wait_until
from tests.labelling.objects import DAEMON_SET, FEATURE, NODE, Objects, is_at_rest, put_pod

TIME = "nvidia.com/gfd.timestamp"
COUNT = "nvidia.com/gpu.count"
OBJECT = "nodefeature nvdp/nvidia-features-for-gpu-a3"
UNTIL_MENDED = 100_000  # times that something fails: each is tried again soon, however late the test looks


def labels(count):
    return {COUNT: str(count), "nvidia.com/gpu.product": "NVIDIA-H200"}


class Quick(LabelPace):
    """A pace without waits between writes, and with short ones behind failures; ``calls`` are what it was told."""

    def __init__(self, first_at=0.0):
        super().__init__(first_at=first_at, rng=random.Random(0))
        self.calls = []
        self.held = False

    @property
    def change_at(self):
        return float("inf") if self.held else self.look_at

    repair_at = change_at

    def wrote(self, now, *, is_repair):
        self.calls.append("repair" if is_repair else "change")

    def failed(self, now, fault, *, retry_after_s=None):
        super().failed(now, fault, retry_after_s=retry_after_s)
        self.calls.append(fault)
        self._retry_at = now + 0.02


class Places:
    """Every kind of place, over one server and one directory."""

    def __init__(self, objects, directory):
        self.objects = objects
        self.directory = directory
        self.node = NodeLabels(objects, node_name="gpu-a3", is_ours=is_catalogued)
        self.feature = NodeFeatureObject(objects, node_name="gpu-a3", namespace="nvdp", pod_name="nvdp-x7")
        self.files = {}

    def find(self, wish):
        if wish.target is LabelTarget.FILE:
            if not wish.file:
                raise HostError("no file is named")
            return self.files.setdefault(wish.file, FeatureFile(self.directory / wish.file))
        return self.node if wish.target is LabelTarget.NODE else self.feature

    def see(self, seen):
        return self.node.see(seen) or self.feature.see(seen)


class Bench:
    """A service whose facts are wishes; without a target they are of a NodeFeature."""

    def __init__(self, tmp_path):
        self.objects = Objects()
        put_pod(self.objects, DAEMON_SET)
        self.objects.put(NODE, metadata={"name": "gpu-a3", "labels": {"team": "a"}})
        self.directory = tmp_path
        self.log = []
        self.counts = []
        self.planned = 0
        self.stamps = itertools.count(1_700_000_000)
        self.services = []

    def plan(self, facts):
        self.planned += 1
        if facts is None or facts == "unknown":
            return None
        if isinstance(facts, Exception):
            raise facts
        stamped = {**facts.labels, TIME: str(next(self.stamps))}
        return LabelWish(**{**{name: getattr(facts, name) for name in facts.__struct_fields__}, "labels": stamped})

    def build(self, pace=None, **times):
        service = LabelService(
            self.plan,
            Places(self.objects, self.directory),
            pace=pace or Quick(),
            log=lambda reason, text, **fields: self.log.append((reason.word, text, fields)),
            count=self.counts.append,
            **times,
        )
        self.services.append(service)
        service.start()
        return service

    def want(self, service, count, target=LabelTarget.NODE_FEATURE, **more):
        service.want(LabelWish(labels=labels(count), target=target, **more))

    @property
    def feature(self):
        found = self.objects.get(FEATURE)
        return found and {key: value for key, value in found["spec"]["labels"].items() if key != TIME}

    def wait_feature(self, count):
        wait_until(lambda: self.feature == labels(count), what=f"{count} in the object")


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path)
    yield bench
    for service in bench.services:  # their threads rest
        service.want("unknown")


def test_what_is_wanted_is_written_told_and_counted(bench):
    service = bench.build()
    bench.want(service, 8)
    bench.wait_feature(8)
    wait_until(lambda: bench.log, what="a line, which is told after the count")
    (line,) = bench.log
    assert line == (
        "LabelsWritten",
        f"{OBJECT}: 3 labels; {TIME}, {COUNT}, nvidia.com/gpu.product changed",
        {"labels": 3, "changed": (TIME, COUNT, "nvidia.com/gpu.product")},
    )
    assert (bench.counts, service.trouble) == (["written"], None)


def test_only_the_newest_counts_and_the_same_again_is_no_request(bench):
    pace = Quick()
    pace.held = True
    service = bench.build(pace)
    for count in range(1, 9):
        bench.want(service, count)
    with service._changed:  # or it may see that it is not held any more, and not yet that there is another one
        pace.held = False
        bench.want(service, 9)
    bench.wait_feature(9)
    wait_until(lambda: bench.counts == ["written"], what="one write")
    bench.objects.journal.clear()
    bench.want(service, 9)
    service.want(LabelWish(labels=labels(9), target=LabelTarget.NODE_FEATURE, look_s=1e9))  # not the same, no change
    wait_until(lambda: bench.planned == 2, what="another plan")
    bench.want(service, 10)
    bench.wait_feature(10)
    assert bench.objects.journal == [("patch", "nodefeatures")]


def test_a_restart_writes_nothing_and_the_time_stays(bench):
    bench.want(bench.build(), 8)
    bench.wait_feature(8)
    before = bench.objects.get(FEATURE)
    again = bench.build()
    bench.want(again, 8)
    wait_until(lambda: bench.planned == 2, what="the second one's look")
    bench.want(again, 9)
    bench.wait_feature(9)
    assert bench.objects.count("create", "patch") == 2
    assert int(bench.objects.get(FEATURE)["spec"]["labels"][TIME]) > int(before["spec"]["labels"][TIME])


def test_what_is_not_known_takes_nothing_away(bench):
    service = bench.build()
    bench.want(service, 8)
    bench.wait_feature(8)
    wait_until(lambda: bench.counts, what="a count")
    bench.objects.journal.clear()
    service.want("unknown")
    wait_until(lambda: bench.planned == 2, what="another plan")
    assert (bench.objects.journal, bench.feature) == ([], labels(8))


def test_nothing_is_asked_before_the_first_delay_is_over(bench):
    first_at = time.monotonic() + 0.3
    service = bench.build(Quick(first_at))
    bench.want(service, 8)
    bench.wait_feature(8)
    assert time.monotonic() >= first_at
    assert bench.planned == 1


@pytest.mark.parametrize("fault", [ClusterFault.DENIED, ClusterFault.REFUSED])
def test_what_a_person_has_to_put_right_is_told_at_once_and_once_and_shown_until_it_is(bench, fault):
    service = bench.build()
    bench.objects.fail("create", fault, times=UNTIL_MENDED)
    bench.want(service, 8)
    wait_until(lambda: bench.counts.count("failed") >= 4, what="some tries")
    assert service.trouble.reason == "LabelsFailed"
    assert service.trouble.text == f"create: {fault.value}; the labels that are there stay"
    bench.objects.mend()
    bench.wait_feature(8)
    wait_until(lambda: service.trouble is None, what="no trouble")
    assert [word for word, *_ in bench.log] == ["LabelsFailed", "LabelsWritten"]
    assert bench.counts[-2:] == ["failed", "written"]


def test_what_is_not_to_be_written_any_more_is_no_trouble(bench):
    """As where labels were taken away by order."""
    service = bench.build()
    bench.objects.fail("create", ClusterFault.DENIED, times=UNTIL_MENDED)
    bench.want(service, 8)
    wait_until(lambda: service.trouble, what="a trouble")
    service.want("unknown")
    wait_until(lambda: service.trouble is None, what="no trouble")


def test_what_was_refused_is_tried_again_soon_once_the_node_can_be_watched_again(bench):
    """A token expired in a long outage, and is renewed a moment after it: that must not take a quarter of an hour."""
    clock = Clock()
    service = bench.build(LabelPace(first_at=0.0, rng=random.Random(0)), clock=clock)
    clock.services.append(service)
    bench.objects.fail("create", ClusterFault.DENIED, times=UNTIL_MENDED)
    bench.want(service, 8)
    for tries in range(1, 9):
        wait_until(lambda tries=tries: service._pace._failures == tries, what="a try that failed")
        clock.pass_time(900.0)
    wait_until(lambda: service._pace.look_at >= clock.now + 450.0, what="a long wait")
    service.see(ObjectSeen(problem="watch node gpu-a3: 401", at=0.0))
    bench.objects.mend()
    service.see(ObjectSeen(object=bench.objects.get(NODE), at=0.0))
    clock.pass_time(5.0)
    bench.wait_feature(8)


@pytest.mark.parametrize("fault", [ClusterFault.UNREACHABLE, ClusterFault.THROTTLED, ClusterFault.FAILED])
def test_what_passes_by_itself_is_shown_and_told_only_if_it_lasts(bench, fault):
    service = bench.build()
    bench.objects.fail("read", fault, times=UNTIL_MENDED)
    bench.want(service, 8)
    wait_until(lambda: bench.counts.count("failed") >= 4, what="some tries")
    assert service.trouble
    bench.objects.mend()
    bench.wait_feature(8)
    wait_until(lambda: service.trouble is None, what="no trouble")
    assert [word for word, *_ in bench.log] == ["LabelsWritten"]
    impatient = bench.build(patience_s=0.01)
    bench.objects.fail("read", fault, times=4)
    bench.want(impatient, 8)
    wait_until(lambda: len(bench.log) == 2, what="a line")
    assert bench.log[1][:2] == ("LabelsFailed", f"read: {fault.value}; the labels that are there stay")


def test_an_outage_over_a_restart_changes_nothing_and_is_followed_by_what_is_new(bench):
    bench.want(bench.build(), 8)
    bench.wait_feature(8)
    bench.objects.fail("read", ClusterFault.UNREACHABLE, times=UNTIL_MENDED)
    bench.want(bench.build(), 7)
    wait_until(lambda: bench.counts.count("failed") >= 5, what="some tries")
    assert bench.feature == labels(8)
    bench.objects.mend()
    bench.wait_feature(7)


def test_a_server_says_when_to_come_again(bench):
    pace = Quick()
    service = bench.build(pace)
    bench.objects.fail("read", ClusterFault.THROTTLED, retry_after_s=30.0)
    bench.want(service, 8)
    bench.wait_feature(8)
    assert ClusterFault.THROTTLED in pace.calls


def test_owners_that_are_not_found_are_a_trouble_and_labels_are_written_all_the_same(bench):
    service = bench.build()
    real, fails = bench.objects.read, [True]

    def read(path):
        if path.resource == "pods" and fails:
            raise ClusterError("pods: forbidden", fault=ClusterFault.DENIED)
        return real(path)

    bench.objects.read = read
    bench.want(service, 8)
    wait_until(lambda: service.trouble, what="a trouble")
    assert bench.feature == labels(8)
    assert "its owners stay as they are" in service.trouble.text
    fails.clear()
    wait_until(lambda: "ownerReferences" in bench.objects.get(FEATURE)["metadata"], what="owners")
    wait_until(lambda: service.trouble is None, what="no trouble")


def test_labels_of_the_node_that_somebody_took_away_are_put_back(bench):
    pace = Quick()
    service = bench.build(pace)
    service.see(ObjectSeen(object=bench.objects.get(NODE), at=0.0))
    bench.want(service, 8, LabelTarget.NODE)
    wait_until(lambda: COUNT in bench.objects.get(NODE)["metadata"]["labels"], what="labels")
    bench.objects.merge(NODE, {"metadata": {"labels": {COUNT: "1"}}})
    service.see(ObjectSeen(object=bench.objects.get(NODE), at=0.0))
    wait_until(lambda: bench.objects.get(NODE)["metadata"]["labels"][COUNT] == "8", what="the label")
    wait_until(lambda: pace.calls == ["change", "repair"], what="a repair")
    assert bench.objects.journal == [("patch", "nodes"), ("patch", "nodes")]


def test_a_node_feature_that_was_deleted_is_made_anew_once_the_node_loses_its_labels(bench):
    service = bench.build()
    bench.want(service, 8)
    bench.wait_feature(8)
    wait_until(lambda: bench.counts, what="a count")
    whole = bench.objects.get(FEATURE)["spec"]["labels"]
    service.see(ObjectSeen(object={"metadata": {"labels": whole}}, at=0.0))
    bench.objects.drop(FEATURE)
    service.see(ObjectSeen(object={"metadata": {"labels": {}}}, at=0.0))
    bench.wait_feature(8)


def test_a_file_is_looked_at_as_often_as_is_said_and_put_right(bench):
    service = bench.build()
    bench.want(service, 8, LabelTarget.FILE, file="gfd", look_s=0.05)
    path = bench.directory / "gfd"
    wait_until(path.exists, what="the file")
    before = path.read_text()
    path.write_text("nvidia.com/gpu.count=1\n")
    wait_until(lambda: COUNT + "=8" in path.read_text(), what="the file as it was")
    path.unlink()
    wait_until(path.exists, what="the file again")
    assert before.count("\n") == path.read_text().count("\n")
    assert bench.objects.journal == []


def test_a_file_that_is_not_looked_at_is_left_until_somebody_asks(bench):
    service = bench.build()
    path = bench.directory / "gfd"
    bench.want(service, 8, LabelTarget.FILE, file="gfd")
    wait_until(lambda: bench.counts == ["written"], what="the file")
    path.unlink()
    assert service._look_at == float("inf")
    service.look()
    wait_until(path.exists, what="the file again")


def test_somebody_who_asks_has_the_object_read_again(bench):
    service = bench.build()
    bench.want(service, 8)
    bench.wait_feature(8)
    wait_until(lambda: bench.counts, what="a count")
    bench.objects.merge(FEATURE, {"spec": {"labels": {COUNT: "1"}}})
    service.look()
    bench.wait_feature(8)


def test_once_is_once_until_it_is_not_said_any_more(bench):
    service = bench.build()
    bench.objects.fail("create", ClusterFault.FAILED, times=2)
    bench.want(service, 8, is_once=True)
    bench.wait_feature(8)
    wait_until(lambda: "written" in bench.counts, what="a count")
    bench.objects.journal.clear()
    bench.want(service, 7, is_once=True)
    wait_until(lambda: bench.planned == 4, what="another plan")
    service.look()
    wait_until(lambda: bench.planned == 5, what="another look")
    assert (bench.objects.journal, bench.feature) == ([], labels(8))
    bench.want(service, 7)
    bench.wait_feature(7)


# To another place


def test_labels_move_first_they_are_written_there_then_removed_here(bench):
    service = bench.build()
    seen = []
    bench.objects.before = lambda verb, _path: seen.append((verb, (bench.directory / "gfd").exists()))
    bench.want(service, 8)
    bench.wait_feature(8)
    bench.want(service, 8, LabelTarget.FILE, file="gfd")
    wait_until(lambda: bench.objects.get(FEATURE) is None, what="no object")
    assert (bench.directory / "gfd").exists()
    assert seen[-1] == ("delete", True)
    text = f"{OBJECT}: no labels any more; {TIME}, {COUNT}, nvidia.com/gpu.product removed"
    wait_until(lambda: bench.log[-1][1] == text, what="a line about it")
    assert bench.counts == ["written", "written", "removed"]
    bench.want(service, 8)
    bench.wait_feature(8)
    wait_until(lambda: not (bench.directory / "gfd").exists(), what="no file")


def test_what_cannot_be_removed_yet_is_removed_later_even_over_further_moves(bench):
    service = bench.build()
    bench.want(service, 8)
    bench.wait_feature(8)
    bench.objects.fail("delete", ClusterFault.UNREACHABLE, times=UNTIL_MENDED)
    bench.want(service, 8, LabelTarget.FILE, file="one")
    wait_until(lambda: service.trouble, what="a trouble")
    bench.want(service, 8, LabelTarget.FILE, file="two")
    wait_until((bench.directory / "two").exists, what="the move")
    bench.objects.mend()
    wait_until(lambda: bench.objects.get(FEATURE) is None, what="no object")
    wait_until(lambda: service.trouble is None, what="no trouble")
    assert [path.name for path in bench.directory.iterdir()] == ["two"]


def test_a_place_that_is_turned_to_again_is_not_cleared(bench):
    service = bench.build()
    bench.want(service, 8)
    bench.wait_feature(8)
    bench.objects.fail("delete", ClusterFault.UNREACHABLE, times=UNTIL_MENDED)
    bench.want(service, 8, LabelTarget.FILE, file="gfd")
    wait_until(lambda: service.trouble, what="a trouble")
    bench.want(service, 9)
    bench.wait_feature(9)
    wait_until(lambda: not (bench.directory / "gfd").exists(), what="no file")
    assert bench.feature == labels(9)


def test_a_place_that_cannot_be_leaves_the_labels_where_they_are(bench):
    service = bench.build()
    bench.want(service, 8)
    bench.wait_feature(8)
    bench.want(service, 8, LabelTarget.FILE, file="")
    wait_until(lambda: service.trouble, what="a trouble")
    assert service.trouble.text == "no file is named; the labels that are there stay"
    bench.want(service, 8, LabelTarget.FILE, file="gfd")
    wait_until(lambda: bench.objects.get(FEATURE) is None, what="no object")


def test_a_label_server_that_hangs_holds_up_nobody(bench):
    entered, released = threading.Event(), threading.Event()

    def hang(_verb, _path):
        entered.set()
        assert released.wait(10)

    bench.objects.before = hang
    service = bench.build()
    bench.want(service, 8)
    slow = bench.build(slow_s=0.0)
    bench.want(slow, 8)
    assert entered.wait(5)
    wait_until(lambda: slow.trouble, what="a trouble")
    assert slow.trouble.text == "labels: a write has taken more than 0s, as if a disk did not answer"
    began = time.monotonic()
    for one in (service, slow):
        bench.want(one, 9)
        one.see(ObjectSeen(object=bench.objects.get(NODE), at=0.0))
        one.look()
    assert service.trouble is None
    assert time.monotonic() - began < 5.0, "it hangs for twice as long"
    released.set()
    bench.wait_feature(9)


def test_after_a_crash_between_read_and_write_it_goes_on(bench):
    ended = threading.Event()
    crashes = [ValueError("a defect")]

    def crash(verb, _path):
        if verb == "create" and crashes:
            raise crashes.pop()

    bench.objects.before = crash
    hook, threading.excepthook = threading.excepthook, lambda _: ended.set()
    try:
        service = bench.build()
        bench.want(service, 8)
        assert ended.wait(5)
        wait_until(lambda: service.start() or bench.feature == labels(8), what="the labels")
    finally:
        threading.excepthook = hook


def test_two_writers_of_the_same_object_come_to_rest(bench):
    one, two = bench.build(), bench.build()
    for count in range(1, 6):
        bench.want(one, count)
        bench.want(two, count)
    bench.wait_feature(5)
    wait_until(lambda: all(map(is_at_rest, (one, two))), what="rest")
    bench.want(one, 6)
    bench.want(two, 6)
    bench.wait_feature(6)
    assert bench.objects.count("create", "patch", "read") < 60

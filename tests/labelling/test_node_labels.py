"""Labels on the Node itself: those of our catalogue alone, remembered in an annotation, whoever else writes there."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.cluster.node_labels import NodeLabels
from nvdp.errors import ClusterError, ClusterFault
from nvdp.model.cluster import ObjectSeen
from nvdp.planning.label_catalog import is_catalogued
from nvdp.planning.label_changes import OWNED, parse_node, plan_node
from tests.labelling.objects import NODE, Objects

TIME = "nvidia.com/gfd.timestamp"
COUNT = "nvidia.com/gpu.count"
LABELS = {COUNT: "8", "nvidia.com/gpu.product": "NVIDIA-H200", TIME: "1700000000"}
OTHERS = {
    "kubernetes.io/hostname": "gpu-a3",
    "nvidia.com/device-plugin.config": "shared",
    "nvidia.com/mig.config": "all-1g.18gb",
    "nvidia.com/gpu.deploy.driver": "true",
    "nvidia.com/gpu.present": "true",
}
REMEMBERED = "gfd.timestamp,gpu.count,gpu.product"


@pytest.fixture
def objects():
    found = Objects()
    found.put(NODE, metadata={"name": "gpu-a3", "labels": dict(OTHERS), "annotations": {"note": "theirs"}})
    return found


def build(objects, **options):
    return NodeLabels(objects, node_name="gpu-a3", is_ours=is_catalogued, **options)


def see(labels, objects):
    return labels.see(ObjectSeen(object=objects.get(NODE), at=0.0))


def get(objects):
    metadata = objects.get(NODE)["metadata"]
    return metadata["labels"], metadata["annotations"]


def test_labels_are_added_remembered_and_nobody_elses_are_touched(objects):
    outcome = build(objects).write(LABELS)
    assert get(objects) == ({**OTHERS, **LABELS}, {"note": "theirs", OWNED: REMEMBERED})
    assert (outcome.is_written, outcome.changed) == (True, tuple(sorted(LABELS)))
    assert objects.journal == [("read", "nodes"), ("patch", "nodes")]
    assert str(build(objects)) == "node gpu-a3"


def test_what_is_there_already_is_not_written_even_after_a_restart(objects):
    build(objects).write(LABELS)
    objects.journal.clear()
    again = build(objects)
    outcome = again.write({**LABELS, TIME: "1800000000"})
    assert (outcome.is_written, outcome.labels[TIME]) == (False, "1700000000")
    assert not again.write(LABELS).is_written
    assert objects.journal == [("read", "nodes")]


def test_a_node_that_is_watched_is_not_read(objects):
    labels = build(objects)
    see(labels, objects)
    labels.write(LABELS)
    assert objects.journal == [("patch", "nodes")]


def test_what_is_ours_and_not_wanted_any_more_goes_and_nothing_else(objects):
    build(objects).write(LABELS)
    objects.merge(NODE, {"metadata": {"labels": {"nvidia.com/gpu.mode": "compute"}}})  # in the catalogue, not ours
    outcome = build(objects).write({"nvidia.com/gpu.count": "8"})
    assert get(objects)[0] == {**OTHERS, "nvidia.com/gpu.count": "8", "nvidia.com/gpu.mode": "compute"}
    assert outcome.changed == (TIME, "nvidia.com/gpu.product")


def test_a_label_of_the_catalogue_that_somebody_else_wrote_becomes_ours(objects):
    objects.merge(NODE, {"metadata": {"labels": {"nvidia.com/gpu.product": "Tesla-V100"}}})
    build(objects).write(LABELS)
    assert get(objects)[0]["nvidia.com/gpu.product"] == "NVIDIA-H200"
    build(objects).write({})
    assert get(objects)[0] == OTHERS


def test_labels_that_others_wrote_just_the_same_are_only_remembered(objects):
    objects.merge(NODE, {"metadata": {"labels": {**LABELS, TIME: "1600000000"}}})
    outcome = build(objects).write(LABELS)
    assert (outcome.is_written, outcome.changed) == (True, ())
    assert get(objects)[1][OWNED] == REMEMBERED
    assert get(objects)[0][TIME] == "1600000000"


@pytest.mark.parametrize(
    "told", ["device-plugin.config,mig.config", "gpu.deploy.driver,,", "x" * 70_000, "gpu.present"]
)
def test_no_annotation_makes_us_take_away_what_is_not_in_the_catalogue(objects, told):
    objects.merge(NODE, {"metadata": {"annotations": {OWNED: told}}})
    build(objects).write({})
    assert get(objects)[0] == OTHERS
    assert build(objects).remove() == ()
    assert get(objects) == (OTHERS, {"note": "theirs"})


def test_a_label_outside_of_the_catalogue_is_not_written(objects):
    outcome = build(objects).write({"nvidia.com/mig.config": "all-disabled", "team": "a"})
    assert outcome.labels == {}
    assert get(objects)[0] == OTHERS


# Seen


def test_what_somebody_took_away_or_changed_is_seen_and_put_back(objects):
    labels = build(objects)
    assert not see(labels, objects)  # nothing is wanted yet
    labels.write(LABELS)
    assert not see(labels, objects)
    for change in ({"nvidia.com/gpu.count": None}, {"nvidia.com/gpu.product": "other"}):
        objects.merge(NODE, {"metadata": {"labels": change}})
        assert see(labels, objects)
        labels.write(LABELS)
        assert get(objects)[0] == {**OTHERS, **LABELS}
    objects.merge(NODE, {"metadata": {"labels": {"team": "a"}}})
    assert not see(labels, objects)


def test_a_watch_that_tells_late_of_what_was_before_our_write_is_not_believed(objects):
    labels = build(objects)
    before = objects.get(NODE)
    labels.write(LABELS)
    assert not labels.see(ObjectSeen(object=before, at=0.0))
    objects.journal.clear()
    assert not labels.write(LABELS).is_written
    assert objects.journal == []


def test_a_server_that_was_restored_to_what_was_before_is_believed_after_a_while(objects):
    now = 0.0
    labels = build(objects, clock=lambda: now)
    before = objects.get(NODE)
    labels.write(LABELS)
    now = 3600.0
    objects.merge(NODE, {"metadata": {"labels": dict.fromkeys(LABELS)}})
    assert labels.see(ObjectSeen(object=before, at=0.0))
    labels.write(LABELS)
    assert get(objects)[0] == {**OTHERS, **LABELS}


def test_a_node_that_cannot_be_asked_stays_as_it_was_seen(objects):
    labels = build(objects)
    labels.write(LABELS)
    assert not labels.see(ObjectSeen(problem="not reachable", at=0.0))
    objects.journal.clear()
    labels.write(LABELS)
    assert objects.journal == []


def test_a_node_that_was_deleted_and_made_anew_is_labelled_again(objects):
    labels = build(objects)
    labels.write(LABELS)
    objects.drop(NODE)
    assert not labels.see(ObjectSeen(at=0.0))
    with pytest.raises(ClusterError) as failed:
        labels.write(LABELS)
    assert failed.value.fault is ClusterFault.MISSING
    objects.put(NODE, metadata={"name": "gpu-a3", "labels": {}})
    assert see(labels, objects)
    labels.write(LABELS)
    assert get(objects) == (LABELS, {OWNED: REMEMBERED})


@pytest.mark.parametrize("fault", [ClusterFault.DENIED, ClusterFault.CONFLICT, ClusterFault.UNREACHABLE])
def test_a_patch_that_failed_is_raised_and_made_again(objects, fault):
    labels = build(objects)
    objects.fail("patch", fault)
    with pytest.raises(ClusterError) as failed:
        labels.write(LABELS)
    assert failed.value.fault is fault
    assert labels.write(LABELS).is_written


@pytest.mark.parametrize(
    ("answer", "fault", "said"),
    [
        ({}, ClusterFault.UNREACHABLE, "no object"),
        ({"metadata": []}, ClusterFault.UNREACHABLE, "no object"),
        ({"metadata": {"resourceVersion": "9", "labels": {COUNT: 8}}}, ClusterFault.REFUSED, "does not have them"),
    ],
)
def test_a_server_that_takes_labels_and_does_not_have_them_is_a_fault_that_is_shown(objects, answer, fault, said):
    class Odd(Objects):
        def read(self, path):
            return objects.read(path)

        def patch(self, path, body):
            return answer

    with pytest.raises(ClusterError, match=said) as failed:
        build(Odd()).write(LABELS)
    assert failed.value.fault is fault


# Taken away


def test_exactly_what_is_ours_is_taken_away(objects):
    build(objects).write(LABELS)
    objects.merge(NODE, {"metadata": {"labels": {"nvidia.com/gpu.mode": "compute"}}})
    assert build(objects).remove() == tuple(sorted(LABELS))
    assert get(objects) == ({**OTHERS, "nvidia.com/gpu.mode": "compute"}, {"note": "theirs"})
    objects.journal.clear()
    assert build(objects).remove() == ()
    assert objects.journal == [("read", "nodes")]


# The plan of a write, over whatever is there

names = st.sampled_from(["gpu.count", "gpu.product", "mig.config", "gpu.deploy.x", "gfd.timestamp", "gpu.mode", "team"])
values = st.text(string.ascii_letters + string.digits, max_size=3)
label_sets = st.dictionaries(names.map("nvidia.com/{}".format), values, max_size=6)
annotations = st.one_of(st.none(), st.lists(names).map(",".join), st.text(max_size=20))


@given(there=label_sets, wanted=label_sets, annotation=annotations)
def test_a_write_reaches_what_is_wanted_touches_nothing_else_and_is_the_last(there, wanted, annotation):
    objects = Objects()
    noted = {} if annotation is None else {OWNED: annotation}
    objects.put(NODE, metadata={"name": "gpu-a3", "labels": there, "annotations": noted})
    build(objects).write(wanted)
    after = objects.get(NODE)["metadata"]["labels"]
    others = {key: value for key, value in there.items() if not is_catalogued(key)}
    assert {key: value for key, value in after.items() if not is_catalogued(key)} == others
    for key, value in wanted.items():
        assert not is_catalogued(key) or key == TIME or after[key] == value
    assert plan_node(parse_node(objects.get(NODE)), wanted, is_ours=is_catalogued)[0] == {}
    build(objects).remove()
    left = objects.get(NODE)["metadata"]
    assert OWNED not in left["annotations"]
    assert not set(left["labels"]) & set(wanted) - set(others)

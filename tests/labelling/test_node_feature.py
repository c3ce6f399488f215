"""The NodeFeature object: NVIDIA's by name and form, written only if something differs, and nobody else's."""

from __future__ import annotations

import pytest

from nvdp.cluster.node_features import NodeFeatureObject
from nvdp.errors import ClusterError, ClusterFault
from nvdp.model.cluster import ObjectSeen
from tests.labelling.objects import DAEMON_SET, FEATURE, OWN_POD, Objects, owner, put_pod

TIME = "nvidia.com/gfd.timestamp"
LABELS = {"nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "NVIDIA-H200", TIME: "1700000000"}


@pytest.fixture
def objects():
    found = Objects()
    put_pod(found, DAEMON_SET)
    return found


def build(objects, node_name="gpu-a3", pod_name="nvdp-x7"):
    return NodeFeatureObject(objects, node_name=node_name, namespace="nvdp", pod_name=pod_name)


def put_of_gfd(objects, **labels):
    """The object as GPU Feature Discovery leaves it, owned by its DaemonSet."""
    return objects.put(
        FEATURE,
        apiVersion="nfd.k8s-sigs.io/v1alpha1",
        kind="NodeFeature",
        metadata={
            "name": FEATURE.name,
            "namespace": "nvdp",
            "labels": {"nfd.node.kubernetes.io/node-name": "gpu-a3"},
            "ownerReferences": [owner("DaemonSet", "gfd", "ds-9", controller=True), owner("Pod", "gfd-1", "pod-9")],
        },
        spec={"features": {"flags": {}, "attributes": {}, "instances": {}}, "labels": labels},
    )


def test_the_object_is_made_as_nvidia_makes_it_with_its_owners(objects):
    outcome = build(objects).write(LABELS)
    found = objects.get(FEATURE)
    del found["metadata"]["resourceVersion"]
    assert found == {
        "apiVersion": "nfd.k8s-sigs.io/v1alpha1",
        "kind": "NodeFeature",
        "metadata": {
            "name": "nvidia-features-for-gpu-a3",
            "namespace": "nvdp",
            "labels": {"nfd.node.kubernetes.io/node-name": "gpu-a3", "app.kubernetes.io/managed-by": "nvdp"},
            "ownerReferences": [DAEMON_SET, OWN_POD],
        },
        "spec": {"features": {"attributes": {}, "flags": {}, "instances": {}}, "labels": LABELS},
    }
    assert (outcome.is_written, outcome.changed) == (True, tuple(sorted(LABELS)))
    assert str(build(objects)) == "nodefeature nvdp/nvidia-features-for-gpu-a3"


def test_what_is_there_already_costs_no_request_and_over_a_restart_only_reads(objects):
    feature = build(objects)
    feature.write(LABELS)
    objects.journal.clear()
    assert not feature.write(LABELS).is_written
    assert objects.journal == []
    outcome = build(objects).write({**LABELS, TIME: "1800000000"})
    assert (outcome.is_written, outcome.labels[TIME]) == (False, "1700000000")
    assert objects.journal == [("read", "nodefeatures"), ("read", "pods")]


def test_a_change_is_one_patch_of_what_differs(objects):
    feature = build(objects)
    feature.write(LABELS)
    objects.journal.clear()
    wanted = {"nvidia.com/gpu.count": "7", "nvidia.com/gpu.mode": "compute", TIME: "1800000000"}
    outcome = feature.write(wanted)
    assert objects.journal == [("patch", "nodefeatures")]
    assert objects.get(FEATURE)["spec"]["labels"] == wanted
    assert outcome.changed == tuple(sorted({*LABELS, *wanted}))
    assert feature.write(wanted).is_written is False


def test_what_others_added_to_the_object_stays(objects):
    build(objects).write(LABELS)
    objects.merge(FEATURE, {"metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}}})
    build(objects).write({})
    metadata = objects.get(FEATURE)["metadata"]
    assert (metadata["labels"]["team"], metadata["annotations"]) == ("a", {"note": "b"})


def test_the_object_of_gpu_feature_discovery_is_taken_over_owners_and_all(objects):
    put_of_gfd(objects, **{"nvidia.com/gpu.count": "4", "nvidia.com/gone": "x"})
    build(objects).write(LABELS)
    found = objects.get(FEATURE)
    assert found["spec"]["labels"] == LABELS
    assert found["metadata"]["ownerReferences"] == [DAEMON_SET, OWN_POD]


def test_without_owners_of_our_own_those_of_gpu_feature_discovery_go_lest_the_labels_go_with_it(objects):
    put_of_gfd(objects, **LABELS)
    assert build(objects, pod_name="").write(LABELS).is_written
    assert "ownerReferences" not in objects.get(FEATURE)["metadata"]


@pytest.mark.parametrize("fault", [ClusterFault.DENIED, ClusterFault.MISSING, ClusterFault.UNREACHABLE])
def test_owners_that_cannot_be_looked_up_stay_as_they_are_are_told_and_looked_up_again(objects, fault):
    build(objects).write(LABELS)
    fail_pods = [ClusterError("pods: no", fault=fault)]

    class Failing(Objects):
        def read(self, path):
            if path.resource == "pods" and fail_pods:
                raise fail_pods.pop()
            return objects.read(path)

        def patch(self, path, body):
            return objects.patch(path, body)

    put_pod(objects, DAEMON_SET, uid="pod-2")
    feature = build(Failing())
    outcome = feature.write({**LABELS, "nvidia.com/gpu.count": "7"})
    assert outcome.problem.fault is fault
    assert "its owners stay as they are: pods: no" in str(outcome.problem)
    assert objects.get(FEATURE)["metadata"]["ownerReferences"] == [DAEMON_SET, OWN_POD]
    assert objects.get(FEATURE)["spec"]["labels"]["nvidia.com/gpu.count"] == "7"
    assert feature.write({**LABELS, "nvidia.com/gpu.count": "7"}).problem is None
    assert objects.get(FEATURE)["metadata"]["ownerReferences"] == [DAEMON_SET, {**OWN_POD, "uid": "pod-2"}]


def test_somebody_elses_write_in_between_is_read_and_set_right(objects):
    feature = build(objects)
    feature.write(LABELS)
    objects.merge(FEATURE, {"spec": {"labels": {"nvidia.com/gpu.product": "other", "nvidia.com/more": "x"}}})
    objects.journal.clear()
    feature.write({**LABELS, "nvidia.com/gpu.count": "7"})
    assert objects.journal == [("patch", "nodefeatures"), ("read", "nodefeatures"), ("patch", "nodefeatures")]
    assert objects.get(FEATURE)["spec"]["labels"] == {**LABELS, "nvidia.com/gpu.count": "7"}


def test_of_two_that_create_it_at_once_the_later_one_changes_what_differs(objects):
    def create_first(verb, _path):
        if verb == "create":
            objects.before = lambda _verb, _path: None
            put_of_gfd(objects, **{"nvidia.com/gpu.count": "1"})

    objects.before = create_first
    build(objects).write(LABELS)
    assert objects.get(FEATURE)["spec"]["labels"] == LABELS
    assert objects.count("create", "patch") == 2


def test_an_object_that_was_deleted_is_made_anew_at_the_next_change(objects):
    feature = build(objects)
    feature.write(LABELS)
    objects.drop(FEATURE)
    feature.write({**LABELS, "nvidia.com/gpu.count": "7"})
    assert objects.get(FEATURE)["spec"]["labels"]["nvidia.com/gpu.count"] == "7"


def test_who_changes_it_at_each_of_our_tries_has_us_give_up_for_now(objects):
    feature = build(objects)
    feature.write(LABELS)
    versions = iter(range(100))

    def change(verb, _path):
        if verb == "patch":
            objects.merge(FEATURE, {"metadata": {"annotations": {"n": str(next(versions))}}})

    objects.before = change
    with pytest.raises(ClusterError) as failed:
        feature.write({})
    assert failed.value.fault is ClusterFault.CONFLICT
    assert objects.count("patch") == 3


def test_without_node_feature_discovery_it_says_what_to_do_and_asks_once_each_time(objects):
    objects.absent.add("nodefeatures")
    feature = build(objects)
    for expected in (("read", "create"), ("create",)):
        objects.journal.clear()
        with pytest.raises(ClusterError, match="install node-feature-discovery, or set --write-labels node") as failed:
            feature.write(LABELS)
        assert failed.value.fault is ClusterFault.REFUSED
        assert tuple(verb for verb, resource in objects.journal if resource == "nodefeatures") == expected
    objects.absent.clear()
    assert feature.write(LABELS).is_written


@pytest.mark.parametrize("verb", ["read", "create", "patch"])
@pytest.mark.parametrize("fault", [ClusterFault.DENIED, ClusterFault.THROTTLED, ClusterFault.UNREACHABLE])
def test_what_the_server_refuses_is_raised_and_a_later_try_finds_all_well(objects, verb, fault):
    if verb == "patch":
        put_of_gfd(objects, **{"nvidia.com/gpu.count": "4"})
    objects.fail(verb, fault, retry_after_s=7.0)
    feature = build(objects, pod_name="")
    with pytest.raises(ClusterError) as failed:
        feature.write(LABELS)
    assert (failed.value.fault, failed.value.retry_after_s) == (fault, 7.0)
    feature.write(LABELS)
    assert objects.get(FEATURE)["spec"]["labels"] == LABELS


def test_a_patch_that_was_carried_out_and_never_answered_is_not_sent_again(objects):
    build(objects).write(LABELS)

    class Cut(Objects):
        def read(self, path):
            return objects.read(path)

        def patch(self, path, body):
            objects.patch(path, body)
            raise ClusterError("cut", fault=ClusterFault.UNREACHABLE)

    feature = build(Cut())
    with pytest.raises(ClusterError):
        feature.write({})
    assert feature.write({}).is_written is False
    assert objects.get(FEATURE)["spec"]["labels"] == {}


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ({}, ClusterFault.UNREACHABLE),
        ({"metadata": 3}, ClusterFault.UNREACHABLE),
        ({"metadata": {"resourceVersion": 5}}, ClusterFault.UNREACHABLE),
        ({"metadata": {"resourceVersion": "5"}, "spec": {"labels": [1]}}, ClusterFault.REFUSED),
        ({"metadata": {"resourceVersion": "5"}, "spec": {"labels": {**LABELS, TIME: "1"}}}, ClusterFault.REFUSED),
    ],
)
def test_an_answer_that_is_not_the_object_is_not_believed(objects, answer, fault):
    class Odd(Objects):
        def read(self, path):
            return objects.read(path)

        def create(self, path, body):
            objects.create(path, body)
            return answer

    feature = build(Odd())
    with pytest.raises(ClusterError) as failed:
        feature.write(LABELS)
    assert failed.value.fault is fault
    assert feature.write(LABELS).is_written is False


def test_a_node_name_that_no_label_can_have_is_no_request(objects):
    with pytest.raises(ClusterError, match="at most 63 characters; set --write-labels node"):
        build(objects, node_name="n" * 64).write(LABELS)
    assert objects.journal == []


# Taken away


def test_what_nvdp_wrote_is_removed_and_told(objects):
    feature = build(objects)
    feature.write(LABELS)
    assert feature.remove() == tuple(sorted(LABELS))
    assert objects.get(FEATURE) is None
    assert feature.remove() == ()
    assert feature.write(LABELS).is_written


def test_what_somebody_else_wrote_is_left_alone(objects):
    put_of_gfd(objects, **LABELS)
    assert build(objects).remove() == ()
    assert objects.get(FEATURE) is not None


def test_one_that_goes_away_while_it_is_removed_is_gone(objects):
    feature = build(objects)
    feature.write(LABELS)
    objects.before = lambda verb, path: objects.drop(path) if verb == "delete" else None
    assert feature.remove() == tuple(sorted(LABELS))


# Seen by the Node


def seen(labels):
    return ObjectSeen(object={"metadata": {"labels": labels}}, at=0.0)


def test_a_node_that_loses_what_it_had_from_the_object_has_it_read_again_once(objects):
    feature = build(objects)
    feature.write(LABELS)
    assert not feature.see(seen({}))  # node-feature-discovery has not got to it yet
    assert not feature.see(seen({**LABELS, "other": "x"}))
    objects.drop(FEATURE)
    assert not feature.see(ObjectSeen(problem="not reachable", at=0.0))
    assert feature.see(seen({"other": "x"}))
    assert not feature.see(seen({}))
    feature.write(LABELS)
    assert objects.get(FEATURE)["spec"]["labels"] == LABELS


def test_a_node_that_never_had_them_or_has_those_before_asks_for_nothing(objects):
    feature = build(objects)
    feature.write(LABELS)
    assert not feature.see(seen(LABELS))
    feature.write({**LABELS, "nvidia.com/gpu.count": "7"})
    assert not feature.see(seen(LABELS))

"""Who owns the object with the labels: vectors C9, by their rows."""

from __future__ import annotations

import pytest

from nvdp.cluster.owners import load_owners, parse_owners
from nvdp.errors import ClusterError, ClusterFault
from tests.labelling.objects import DAEMON_SET, OWN_POD, POD, Objects, owner, put_pod


@pytest.fixture
def objects():
    return Objects()


def load(objects, pod_name="nvdp-x7"):
    return load_owners(objects, namespace="nvdp", pod_name=pod_name)


def test_c9_without_the_name_of_a_pod_there_are_no_owners_and_no_request(objects):
    assert load(objects, "") == ()
    assert objects.journal == []


def test_c9_a_pod_of_a_daemon_set_gives_both_the_daemon_set_as_controller(objects):
    put_pod(objects, DAEMON_SET)
    assert load(objects) == (DAEMON_SET, OWN_POD)
    assert objects.journal == [("read", "pods")]


@pytest.mark.parametrize(
    "owners",
    [
        (),
        (owner("ReplicaSet", "nvdp", "rs-1", controller=True),),
        (owner("DaemonSet", "other", "ds-2"),),  # not its controller
    ],
    ids=["unowned", "replica set", "no controller"],
)
def test_c9_a_pod_that_no_daemon_set_made_gives_none(objects, owners):
    put_pod(objects, *owners)
    assert load(objects) == ()


def test_c9_a_pod_that_is_not_there_is_an_error(objects):
    with pytest.raises(ClusterError) as failed:
        load(objects)
    assert failed.value.fault is ClusterFault.MISSING


@pytest.mark.parametrize(
    "pod",
    [
        {},
        {"metadata": None},
        {"metadata": {"ownerReferences": [DAEMON_SET]}},
        {"metadata": {"uid": 7, "ownerReferences": [DAEMON_SET]}},
        {"metadata": {"uid": "pod-1", "ownerReferences": {"kind": "DaemonSet"}}},
        {"metadata": {"uid": "pod-1", "ownerReferences": [None, 3, {"kind": "DaemonSet", "controller": True}]}},
    ],
)
def test_a_pod_that_is_told_oddly_gives_none(objects, pod):
    class Odd(Objects):
        def read(self, path):
            assert path == POD
            return pod

    assert load(Odd()) == ()


def test_of_references_only_what_names_the_owner_is_kept():
    assert parse_owners([{**DAEMON_SET, "blockOwnerDeletion": True, "more": 1}]) == (DAEMON_SET,)
    assert parse_owners([{**OWN_POD, "controller": False}]) == (OWN_POD,)

"""Which MIG devices a fault concerns, and what a MIG device of which a call fails is."""

from __future__ import annotations

import msgspec
import pytest

from nvdp.model.health import Vitals
from nvdp.model.inventory import Fault, Inventory, MigMode
from nvdp.model.reasons import Cause
from nvdp.nvml.frames import Ecc, Xid
from nvdp.planning.presence import merge_scan
from nvdp.planning.xid_policy import XidRules
from nvdp.services.health import HealthWatch, KnownFaults
from tests.planning.values import cut, gpu, inventory, mig_uuid, uuid

A, B, M0, M1 = uuid(0), uuid(1), mig_uuid(0, 0), mig_uuid(0, 1)
CUT, OTHER = cut(0, "1g.10gb", "1g.10gb"), cut(1, "1g.10gb")  # GPU instances 1 and 2, compute instance 0

pytestmark = pytest.mark.invariant(5)


class Counting:
    def __init__(self):
        self.seen = []

    def xid_seen(self, uuid, xid, verdict):
        self.seen.append((uuid, xid, verdict))

    def memory_error_seen(self, uuid, kind):
        self.seen.append((uuid, kind))


class Watched:
    """A watch that has seen these GPUs once, well. ``settings`` are the file's, ``variables`` the environment's."""

    def __init__(self, *gpus, settings=None, variables=None):
        self.now = 100.0
        self.counts = Counting()
        self.watch = HealthWatch(
            KnownFaults(variables=variables or XidRules()),
            log=lambda *_, **__: None,
            observer=self.counts,
            clock=lambda: self.now,
            wall=lambda: self.now,
        )
        if settings is not None:
            self.watch.configure(settings)
        self.presence = None
        self.scan(inventory(*gpus))

    def scan(self, found: Inventory, **vitals):
        """All GPUs answer; ``vitals`` are what GPU A reads."""
        self.presence = merge_scan(self.presence, found, (), now=self.now, wall=self.now)
        self.watch.take_scan(self.presence, {one.uuid: Vitals() for one in found.gpus} | {A: Vitals(**vitals)})

    def hear(self, xid=48, *, session=1, **facts):
        return self.watch.hear(session, Xid(uuid=A, code=xid, at=self.now, **facts))

    def hear_memory_error(self, *, double, session=1):
        return self.watch.hear(session, Ecc(uuid=A, double=double, at=self.now))

    @property
    def ailing(self):
        return {one: each.cause for one, each in self.watch.find_ailments(self.presence).items()}


@pytest.mark.parametrize(
    ("facts", "concerned"),
    [
        ({"gpu_instance": 1, "compute_instance": 0}, {M0}),
        ({"gpu_instance": 2, "compute_instance": 0}, {M1}),
        ({"gpu_instance": 2}, {M1}),
        ({"gpu_instance": 2, "compute_instance": 7}, set()),
        ({}, {M0, M1}),
    ],
    ids=["one", "another", "a GPU instance", "another compute instance", "no instance is named"],
)
def test_an_event_concerns_the_mig_device_that_it_names_else_all_of_the_gpu_and_no_other_gpu(facts, concerned):
    node = Watched(CUT, OTHER)
    node.hear(**facts)
    assert node.ailing == dict.fromkeys({A, *concerned}, Cause.XID)


def test_a_mig_device_whose_numbers_are_not_known_has_every_fault_of_its_gpu():
    bare = cut(0, "1g.10gb").instances[0]
    node = Watched(cut(0, instances=(type(bare)(uuid=M0, index=0, profile="1g.10gb"),)))
    node.hear(gpu_instance=5, compute_instance=0)
    assert node.ailing.keys() == {A, M0}


def test_what_ails_the_gpu_as_such_is_of_all_its_mig_devices():
    node = Watched(CUT, OTHER)
    node.scan(inventory(OTHER))
    assert node.ailing == dict.fromkeys((A, M0, M1), Cause.VANISHED)


def test_a_mig_device_of_which_a_call_fails_ails_alone_since_then():
    node = Watched(CUT)
    fault = Fault(call="nvmlDeviceGetAttributes", kind="Unknown", text="Unknown Error")
    first, second = CUT.instances
    failing = cut(0, instances=(first, msgspec.structs.replace(second, fault=fault)))
    for node.now in (200.0, 210.0):
        node.scan(inventory(failing))
        found = node.watch.find_ailments(node.presence)
        assert {one: (each.cause, each.text, each.since) for one, each in found.items()} == {
            M1: (Cause.CALL_FAILED, "Unknown Error", 200.0)
        }
    node.scan(inventory(CUT))
    assert node.ailing == {}


def test_a_fault_of_a_mig_device_that_is_gone_stays_one_of_its_gpu():
    node = Watched(CUT)
    node.hear(gpu_instance=1, compute_instance=0)
    node.scan(inventory(gpu(0, mig=MigMode.DISABLED)))
    assert node.ailing == {A: Cause.XID}

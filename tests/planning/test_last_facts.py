"""What stays true of MIG devices while something of them cannot be read."""

from __future__ import annotations

import msgspec

from nvdp.model.inventory import Driver, Fault, Gpu, MigInstance, MigMode, UnreadableInstance
from nvdp.planning.last_facts import forget_faults, recall_driver, recall_facts

FAILED = Fault(call="nvmlDeviceGetAttributes", kind="Unknown", text="failed")


def device(number: int, index: int | None = None, **facts) -> MigInstance:
    return MigInstance(uuid=f"MIG-{number}", index=number if index is None else index, **facts)


def whole(number: int) -> MigInstance:
    return device(number, gpu_instance=number, compute_instance=0, profile="1g.10gb", memory_bytes=1)


def gpu(*instances: MigInstance, **facts) -> Gpu:
    return msgspec.structs.replace(Gpu(uuid="GPU-0", index=0, mig=MigMode.ENABLED, instances=instances), **facts)


BEFORE = gpu(whole(0), whole(1))


def test_a_device_that_cannot_be_read_keeps_its_facts_and_the_others_are_as_read() -> None:
    other = device(0, gpu_instance=5, compute_instance=0, profile="2g.20gb", memory_bytes=2)
    now = recall_facts(BEFORE, gpu(other, device(1, gpu_instance=9, fault=FAILED)))
    expected = device(1, gpu_instance=9, compute_instance=0, profile="1g.10gb", memory_bytes=1, fault=FAILED)
    assert now.instances == (other, expected)


def test_a_new_device_that_cannot_be_read_has_no_facts() -> None:
    bad = device(7, fault=FAILED)
    assert recall_facts(BEFORE, gpu(whole(0), bad)).instances == (whole(0), bad)


def test_a_device_that_is_gone_is_gone() -> None:
    assert recall_facts(BEFORE, gpu(whole(1))).instances == (whole(1),)
    assert recall_facts(BEFORE, gpu()).instances == ()


def test_a_device_without_a_uuid_is_the_one_that_had_its_place() -> None:
    now = recall_facts(BEFORE, gpu(whole(1), unreadable_instances=(UnreadableInstance(index=0, fault=FAILED),)))
    bad = msgspec.structs.replace(whole(0), fault=msgspec.structs.replace(FAILED, text="MIG-0: failed"))
    assert (now.instances, now.unreadable_instances) == ((bad, whole(1)), ())


def test_a_place_that_nobody_had_or_whose_device_has_another_now_stays_unreadable() -> None:
    places = (UnreadableInstance(index=0, fault=FAILED), UnreadableInstance(index=4, fault=FAILED))
    now = recall_facts(BEFORE, gpu(device(0, index=2), device(1), unreadable_instances=places))
    assert [instance.uuid for instance in now.instances or ()] == ["MIG-1", "MIG-0"]
    assert now.unreadable_instances == places


def test_devices_that_could_not_be_listed_are_those_last_seen_unless_the_gpu_left_mig_mode() -> None:
    assert recall_facts(BEFORE, gpu(fault=FAILED, instances=None)).instances == BEFORE.instances
    assert recall_facts(BEFORE, gpu(fault=FAILED, instances=None, mig=None)).instances == BEFORE.instances
    assert recall_facts(BEFORE, gpu(fault=FAILED, instances=None, mig=MigMode.DISABLED)).instances is None


def test_a_pending_mode_is_the_last_one_only_where_the_modes_could_not_be_read() -> None:
    before = gpu(mig_pending=MigMode.DISABLED)
    assert recall_facts(before, gpu(fault=FAILED)).mig_pending is None
    assert recall_facts(before, gpu(fault=FAILED, mig=None)).mig_pending is MigMode.DISABLED


def test_faults_are_forgotten_with_what_cannot_be_told_without_them() -> None:
    places = (UnreadableInstance(index=4, fault=FAILED),)
    faulty = gpu(msgspec.structs.replace(whole(0), fault=FAILED), whole(1), unreadable_instances=places, fault=FAILED)
    assert forget_faults(faulty) == BEFORE


def test_a_fabric_that_is_set_up_anew_changes_nothing_of_what_is_wired() -> None:
    before = gpu(clique="c1.7")
    assert recall_facts(before, gpu()).clique == "c1.7"
    assert recall_facts(before, gpu(clique="")).clique == ""
    assert recall_facts(before, gpu(clique="c1.8")).clique == "c1.8"


def test_versions_of_the_driver_are_kept_while_they_cannot_be_read() -> None:
    known, silent = Driver(version="580.65.06", cuda_version="13.0"), Driver(version="", cuda_version="")
    assert recall_driver(known, silent) == known
    assert recall_driver(known, Driver(version="590.1", cuda_version="13.1")).version == "590.1"
    assert recall_driver(None, silent) == silent

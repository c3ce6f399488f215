"""MIG devices as the child reads them from a simulated machine: names, faults, changes under way."""

from __future__ import annotations

import time

import pytest

from nvdp.model.inventory import GpuRef, MigMode
from nvdp.nvml.frames import Probe, Probed, Processes, ProcessesRead, Scan, Scanned
from nvdp.nvml.outcomes import Hung

A100 = "- {model: a100-sxm4-80gb, count: 2}\n"
LAYOUT = "layouts: [{gpu: 0, instances: [1g.10gb, 1g.10gb, 3g.40gb]}, {gpu: 1, instances: [7g.80gb]}]\n"
EVERY_PROFILE = """
- {model: a100-sxm4-40gb, instances: [1g.5gb, 1g.5gb+me, 1g.10gb, 2g.10gb, 3g.20gb, 4g.20gb, 7g.40gb]}
- {model: h200-sxm5-141gb, instances: [1g.18gb, 1g.18gb+me, 1g.35gb, 2g.35gb, 3g.71gb, 4g.71gb, 7g.141gb]}
- {model: b200-sxm6-180gb, instances: [1g.23gb, 1g.23gb+me, 1g.45gb, 2g.45gb, 3g.90gb, 4g.90gb, 7g.180gb]}
- model: rtx-pro-6000-96gb
  instances: [1g.24gb, 1g.24gb+me, 1g.24gb+gfx, 1g.24gb-me, 1g.24gb+me.all, 2g.48gb, 2g.48gb+gfx]
- {model: rtx-pro-6000-96gb, instances: [2g.48gb-me, 2g.48gb+me.all, 4g.96gb, 4g.96gb+gfx, 1c.4g.96gb, 3c.4g.96gb+gfx]}
- {model: h200-sxm5-141gb, instances: [5g.88gb+of.tomorrow, 2c.5g.88gb+of.tomorrow, 1g.18gb]}
"""


class Node:
    """A node file that changes, and one child that scans it."""

    def __init__(self, path, asking) -> None:
        self._path = path
        self._asking = asking
        self._source: dict[str, str] = {"simulated": str(path)}
        self._client = None

    def write(self, rest: str = "", *, gpus: str = A100, driver: str = "{}") -> None:
        fresh = self._path.with_suffix(".new")
        fresh.write_text(f"driver: {driver}\ngpus:\n{gpus}{rest}")
        fresh.rename(self._path)

    def ask(self, command, *, limit_s: float = 10.0):
        self._client = self._client or self._asking(**self._source).spawn()
        return self._client.call(command, limit_s=limit_s)

    def scan(self):
        scanned = self.ask(Scan())
        assert isinstance(scanned, Scanned)
        return scanned.inventory.gpus


@pytest.fixture
def node(tmp_path, asking) -> Node:
    made = Node(tmp_path / "node.yaml", asking)
    made.write(LAYOUT)
    return made


def list_profiles(gpu) -> list[str | None]:
    return [instance.profile for instance in gpu.instances]


def list_written(gpus: str) -> list[list[str]]:
    return [line.split("[")[1].split("]")[0].split(", ") for line in gpus.splitlines() if "instances:" in line]


@pytest.mark.parametrize("driver", ["{}", "{migMonitor: true}"])
@pytest.mark.parametrize("older", ["", "faults: [{call: nvmlDeviceGetGpuInstanceProfileInfo, error: NotSupported}]"])
def test_every_device_is_called_as_the_driver_calls_it_with_and_without_permissions(node, driver, older) -> None:
    node.write(older, gpus=EVERY_PROFILE, driver=driver)
    gpus = node.scan()
    assert [list_profiles(gpu) for gpu in gpus] == list_written(EVERY_PROFILE)
    assert [(gpu.fault, gpu.memory_bytes is None) for gpu in gpus] == [(None, driver == "{}")] * len(gpus)
    assert [one.fault for gpu in gpus for one in gpu.instances if one.fault] == []


def test_without_the_devices_own_names_only_what_differs_in_nothing_else_is_confused(node) -> None:
    faults = "faults: [{call: nvmlDeviceGetName, error: NotSupported}]"
    node.write(faults, gpus=EVERY_PROFILE)
    seen = [profile for gpu in node.scan() for profile in list_profiles(gpu)]
    assert seen == [profile.replace("+gfx", "") for written in list_written(EVERY_PROFILE) for profile in written]
    node.write(faults, gpus=EVERY_PROFILE, driver="{migMonitor: true}")
    again = Node(node._path, node._asking)
    assert [list_profiles(gpu) for gpu in again.scan()] == list_written(EVERY_PROFILE), "the GPU instance tells"


def test_a_device_has_its_facts_and_its_gpu_its_mode(node) -> None:
    node.write("layouts: [{gpu: 1, migPending: enabled, instances: [null, 2g.20gb]}]", driver="{version: 460.1}")
    first, second = node.scan()
    assert (first.mig, first.mig_pending, first.instances) == (MigMode.DISABLED, None, None)
    assert (second.mig, second.mig_pending) == (MigMode.ENABLED, None)
    (one,) = second.instances
    assert one.uuid == f"MIG-{second.uuid}/9/0"
    assert (one.index, one.gpu_instance, one.compute_instance, one.memory_bytes) == (1, 9, 0, 19456 << 20)
    node.write("layouts: [{gpu: 0, migPending: enabled}, {gpu: 1, mig: enabled, migPending: disabled}]")
    first, second = node.scan()
    assert (first.mig, first.mig_pending) == (MigMode.DISABLED, MigMode.ENABLED)
    assert (second.mig, second.mig_pending, second.instances) == (MigMode.ENABLED, MigMode.DISABLED, ())


def test_devices_that_an_edit_leaves_alone_stay_the_same(node) -> None:
    before = {one.uuid: one for one in node.scan()[0].instances}
    node.write("layouts: [{gpu: 0, instances: [2g.20gb, 3g.40gb, 1g.10gb]}, {gpu: 1, instances: [7g.80gb]}]")
    after = {one.uuid: one for one in node.scan()[0].instances}
    assert len(before.keys() & after.keys()) == 2
    assert {(after[uuid].gpu_instance, after[uuid].profile) for uuid in before.keys() & after.keys()} == {
        (before[uuid].gpu_instance, before[uuid].profile) for uuid in before.keys() & after.keys()
    }
    node.write("layouts: [{gpu: 0, mig: disabled}, {gpu: 1, instances: [7g.80gb]}]")
    first, second = node.scan()
    assert (first.instances, list_profiles(second)) == (None, ["7g.80gb"])
    node.write(LAYOUT)
    assert {one.uuid: one for one in node.scan()[0].instances} == before


@pytest.mark.parametrize("monitor", ["true", "false"])
@pytest.mark.parametrize(
    ("gpus", "before", "after", "fault"),
    [
        ("- {model: rtx-pro-6000-96gb}\n", "1g.24gb", "1g.24gb+gfx", ""),
        (A100, "1g.10gb", "3g.40gb", "faults: [{call: nvmlDeviceGetAttributes, gpu: 0, error: NoPermission}]"),
    ],
)
def test_a_device_that_is_made_anew_as_another_with_the_same_uuid_is_called_anew(  # noqa: PLR0917 - a table
    node, monitor, gpus, before, after, fault
) -> None:
    for profile in (before, after):
        made = f"{{profile: {profile}, uuid: MIG-11111111-0000-5000-8000-000000000000, gpuInstance: 1}}"
        node.write(
            f"layouts: [{{gpu: 0, instances: [{made}]}}]\n{fault}", gpus=gpus, driver=f"{{migMonitor: {monitor}}}"
        )
        assert list_profiles(node.scan()[0]) == [profile]


OF_A_DEVICE = (
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetComputeInstanceId",
    "nvmlDeviceGetAttributes",
    "nvmlDeviceGetMemoryInfo",
)


@pytest.mark.invariant(5)
def test_a_failing_call_is_the_fault_of_that_device_only_and_its_text_names_it(node) -> None:
    before = node.scan()
    for call in OF_A_DEVICE:
        node.write(f"{LAYOUT}faults: [{{call: {call}, gpu: 0, instance: 1, error: 999}}]")
        first, second = node.scan()
        assert (first.fault, second) == (None, before[1])
        assert (first.instances[0], first.instances[2]) == (before[0].instances[0], before[0].instances[2])
        bad = first.instances[1]
        assert (bad.uuid, bad.fault.call, bad.fault.kind) == (before[0].instances[1].uuid, call, "Unknown")
        assert bad.fault.text == f"{bad.uuid}: {call}: the driver reports an internal error"


@pytest.mark.invariant(5)
@pytest.mark.parametrize("call", ["nvmlDeviceGetName", "nvmlGpuInstanceGetInfo", "nvmlDeviceGetGpuInstanceById"])
def test_a_call_that_only_a_new_device_needs_is_its_fault_until_it_works(node, call) -> None:
    fault = f"faults: [{{call: {call}, gpu: 0, instance: 1, error: 999}}]"
    node.write(LAYOUT + fault, driver="{migMonitor: true}")
    bad = node.scan()[0].instances[1]
    assert (bad.profile, bad.fault.call, bad.gpu_instance) == (None, call, 2)
    node.write(LAYOUT, driver="{migMonitor: true}")
    assert node.scan()[0].instances[1].profile == "1g.10gb"
    node.write(LAYOUT + fault, driver="{migMonitor: true}")
    assert node.scan()[0].instances[1].fault is None, "how a device is called does not change"


@pytest.mark.invariant(5)
@pytest.mark.parametrize("call", ["nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetUUID"])
def test_a_device_whose_uuid_cannot_be_read_is_told_by_its_place(node, call) -> None:
    node.write(f"{LAYOUT}faults: [{{call: {call}, gpu: 0, instance: 1, error: 999}}]")
    first, second = node.scan()
    assert (first.fault, second.fault, len(first.instances)) == (None, None, 2)
    assert [(one.index, one.fault.call) for one in first.unreadable_instances] == [(1, call)]


@pytest.mark.invariant(5)
@pytest.mark.parametrize(
    ("call", "error", "fault"),
    [
        ("nvmlDeviceGetMaxMigDeviceCount", 999, "Unknown"),
        ("nvmlDeviceGetUUID, instance: 2", "GpuIsLost", "GpuIsLost"),
        ("nvmlDeviceGetAttributes, instance: 1", "GpuIsLost", "GpuIsLost"),
    ],
)
def test_devices_that_cannot_be_counted_or_whose_gpu_is_lost_are_the_fault_of_the_gpu(node, call, error, fault) -> None:
    node.write(f"{LAYOUT}faults: [{{call: {call}, gpu: 0, error: {error}}}]")
    first, second = node.scan()
    assert (first.fault.kind, first.instances) == (fault, None)
    assert (second.fault, list_profiles(second)) == (None, ["7g.80gb"])


def test_a_driver_that_cannot_count_mig_devices_has_none(node) -> None:
    node.write(f"{LAYOUT}faults: [{{call: nvmlDeviceGetMaxMigDeviceCount, gpu: 0, error: NotSupported}}]")
    first = node.scan()[0]
    assert (first.fault, first.instances) == (None, ())


def test_instances_are_numbered_by_nvml_else_by_an_old_uuid_else_not_at_all(node) -> None:
    fault = "faults: [{call: nvmlDeviceGetGpuInstanceId, gpu: 0, error: NoPermission}]"
    node.write(LAYOUT + fault, driver="{version: 450.1}")
    assert [(one.gpu_instance, one.fault) for one in node.scan()[0].instances] == [(1, None), (2, None), (17, None)]
    node.write(LAYOUT + fault)
    one = node.scan()[0].instances[0]
    assert one.gpu_instance is None
    assert one.fault.text == f"{one.uuid}: nvmlDeviceGetGpuInstanceId: this process may not do that"


@pytest.mark.invariant(5)
def test_a_hanging_call_is_blamed_on_the_gpu(node) -> None:
    node.scan()
    node.write(f"{LAYOUT}faults: [{{call: nvmlDeviceGetComputeInstanceId, gpu: 1, instance: 0, hang: true}}]")
    hung = node.ask(Scan(), limit_s=0.4)
    assert isinstance(hung, Hung)
    assert (hung.call, hung.gpu and hung.gpu.index) == ("nvmlDeviceGetComputeInstanceId", 1)


def test_a_probe_reads_mig_devices_as_a_scan_does(node) -> None:
    scanned = node.scan()[1]
    probed = node.ask(Probe(gpu=GpuRef(index=1, count=2, uuid=scanned.uuid)))
    assert isinstance(probed, Probed)
    assert probed.gpu == scanned


def test_processes_of_a_gpu_in_mig_mode_are_those_of_its_devices(node) -> None:
    processes = "[{pid: 7, instance: 0}, {pid: 8, instance: 2}, {pid: 9, instance: 2}]"
    gpus = f"- {{model: a100-sxm4-80gb, instances: [1g.10gb, null, 1g.10gb], processes: {processes}}}\n"
    for driver in ("{}", "{migMonitor: true}"):
        node.write(gpus=gpus, driver=driver)
        read = node.ask(Processes(gpu=GpuRef(index=0, count=1)))
        assert isinstance(read, ProcessesRead)
        assert sorted(process.pid for process in read.processes) == [7, 8, 9]
    node.write(gpus=gpus.replace("instances: [1g.10gb, null, 1g.10gb]", "mig: enabled"))
    read = node.ask(Processes(gpu=GpuRef(index=0, count=1)))
    assert read.fault.kind == "NoPermission", "without a device nobody can be asked"


def test_readings_that_a_gpu_in_mig_mode_refuses_without_privileges_are_none_and_no_errors(node) -> None:
    node.write(
        f"{LAYOUT}faults: [{{call: nvmlDeviceGetMemoryErrorCounter, error: NoPermission}}]", gpus=f"{A100}{A100}"
    )
    scanned = node.ask(Scan())
    assert [scanned.vitals[gpu.uuid].errors for gpu in scanned.inventory.gpus] == [
        (),
        (),
        ("nvmlDeviceGetMemoryErrorCounter",),
        ("nvmlDeviceGetMemoryErrorCounter",),
    ]


def test_eight_gpus_with_seven_devices_each_are_scanned_fast(node) -> None:
    node.write(gpus=f"- {{model: h100-sxm5-80gb, count: 8, instances: [{', '.join(['1g.10gb'] * 7)}]}}")
    node.scan()
    best = 1.0
    for _ in range(5):
        started = time.perf_counter()
        node.scan()
        best = min(best, time.perf_counter() - started)
    assert best < 0.1, "measured: 0.012 s"


def name(card: int) -> str:
    return f"GPU-{card:08x}-0000-0000-0000-000000000000"


PROFILES = (
    "profile 0 19 1 1920 1,1,0,1,0 MIG 1g.2gb",
    "profile 7 20 1 1920 1,1,0,1,1 MIG 1g.2gb+me",
    "profile 2 9 3 7936 3,3,0,3,0 MIG 3g.8gb",
    "profile 20 77 3 7936 3,0,0,0,0 MIG 3g.8gb+new",
)
DEVICES = (
    "mig 0 1",
    "instance 0 0 7 0 1 1 1920 0 MIG-0000",
    "instance 0 2 13 0 1 1 1920 7 MIG-0002",
    "instance 0 3 1 0 3 1 7936 2 MIG-GPU-x/1/0",
    "mig 1 1 0",
    f"instance 1 0 1 0 3 3 7936 20 MIG-{name(1)}/1/0",
    "mig 2 0 1",
)


@pytest.fixture
def driver(fake_driver):
    fake_driver.install()
    fake_driver.configure("cards 0 1 2 3", *DEVICES, *PROFILES)
    return fake_driver


def scan_driver(driver, asking):
    scanned = asking(driver_root=str(driver.root)).scan()
    assert isinstance(scanned, Scanned)
    return scanned.inventory.gpus


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("monitor",),
        ("fail nvmlDeviceGetName 3 66",),
        ("fail nvmlDeviceGetMemoryInfo 4 64",),
        ("fail nvmlDeviceGetGpuInstanceProfileInfo 4",),
        ("fail nvmlDeviceGetGpuInstanceProfileInfoV 13", "monitor"),
        ("fail nvmlDeviceGetGpuInstanceProfileInfoV 25",),
    ],
)
def test_a_compiled_library_is_read_in_whatever_way_is_open(driver, asking, more) -> None:
    driver.configure("cards 0 1 2 3", *DEVICES, *PROFILES, *more)
    gpus = scan_driver(driver, asking)
    assert [gpu.fault for gpu in gpus] == [None] * 4
    assert [(gpu.mig, gpu.mig_pending) for gpu in gpus] == [
        (MigMode.ENABLED, None),
        (MigMode.ENABLED, MigMode.DISABLED),
        (MigMode.DISABLED, MigMode.ENABLED),
        (MigMode.UNSUPPORTED, None),
    ]
    assert [gpu.instances is None for gpu in gpus] == [False, False, True, True]
    assert [(one.index, one.gpu_instance, one.profile, one.fault) for one in gpus[0].instances] == [
        (0, 7, "1g.2gb", None),
        (2, 13, "1g.2gb+me", None),
        (3, 1, "1c.3g.8gb", None),
    ]
    assert list_profiles(gpus[1]) == ["3g.8gb+new"]
    assert [gpu.memory_bytes for gpu in gpus] == [*[16 << 30 if "monitor" in more else None] * 2, *[16 << 30] * 2]
    assert gpus[0].instances[0].memory_bytes == 1920 << 20


def test_a_driver_that_tells_no_names_leaves_memory_and_the_profiles_number(driver, asking) -> None:
    silent = [f"fail nvmlDeviceGetName 3 {number}" for number in (64, 66, 67, 72)]
    silent.append("fail nvmlDeviceGetGpuInstanceProfileInfoV 13")
    driver.configure("cards 0 1", *DEVICES, *PROFILES, "profile 4 0 7 16000 8,7,0,7,1", *silent)
    first, second = scan_driver(driver, asking)
    assert list_profiles(first) == ["1g.2gb", "1g.2gb+me", "1c.3g.8gb"]
    assert list_profiles(second) == ["3g.8gb"], "nothing tells what is new about it"


def test_two_devices_with_one_uuid_are_one_and_a_place_that_is_told(driver, asking) -> None:
    driver.configure("cards 0", *DEVICES, *PROFILES, "instance 0 5 9 0 1 1 1920 0 MIG-0000")
    (gpu,) = scan_driver(driver, asking)
    assert [one.uuid for one in gpu.instances] == ["MIG-0000", "MIG-0002", "MIG-GPU-x/1/0"]
    ((index, text),) = [(place.index, place.fault.text) for place in gpu.unreadable_instances]
    assert (index, text) == (5, "nvmlDeviceGetUUID: the same UUID as instance 0: MIG-0000")


def test_a_device_of_which_nothing_tells_the_profile_is_the_only_one_with_a_fault(driver, asking) -> None:
    blind = [f"fail nvmlDeviceGet{call} 3 66" for call in ("Name", "Attributes")]
    driver.configure("cards 0", *DEVICES, *PROFILES, *blind)
    (gpu,) = scan_driver(driver, asking)
    assert [one.profile for one in gpu.instances] == ["1g.2gb", None, "1c.3g.8gb"]
    assert gpu.instances[1].fault.text == (
        "MIG-0002: nvmlDeviceGetName: the driver tells nothing by which the profile could be known"
    )


@pytest.mark.invariant(5)
@pytest.mark.parametrize(
    "call",
    [*OF_A_DEVICE, "nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMigDeviceHandleByIndex"],
)
def test_a_failing_call_of_a_compiled_library_concerns_that_device_only(driver, asking, call) -> None:
    driver.configure("cards 0 1", *DEVICES, *PROFILES, f"fail {call} 999 66")
    first, second = scan_driver(driver, asking)
    assert (first.fault, second.fault, [one.fault for one in second.instances]) == (None, None, [None])
    bad = [*(one for one in first.instances if one.fault), *first.unreadable_instances]
    assert [(one.index, one.fault.call) for one in bad] == [(2, call)]

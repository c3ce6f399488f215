"""What a scan reads for labels: what MIG devices have, and the clique of a GPU on a fabric."""

from __future__ import annotations

import msgspec
import pytest

from nvdp.model.health import Vitals
from nvdp.model.inventory import Inventory
from nvdp.model.mig import MigAttributes
from nvdp.nvml.frames import Scanned
from nvdp.nvml.simulated.export import build_node_file
from nvdp.nvml.vitals import find_clique

CLUSTER = "6f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
SMALL = MigAttributes(
    memory_mib=9728,
    multiprocessors=16,
    slices=1,
    compute_slices=1,
    copy_engines=1,
    decoders=1,
    encoders=0,
    jpeg_engines=1,
    ofa_engines=0,
)


@pytest.fixture
def scan(tmp_path, asking):
    def scan(text: str) -> Scanned:
        node = tmp_path / "node.yaml"
        node.write_text(text)
        scanned = asking(simulated=str(node)).scan()
        assert isinstance(scanned, Scanned)
        return scanned

    return scan


def test_what_a_mig_device_has_goes_with_its_profile_unless_the_file_says_otherwise(scan) -> None:
    written = (
        "{memoryMib: 5, multiprocessors: 12, copyEngines: 13, decoders: 14, encoders: 15, jpegEngines: 16,"
        " ofaEngines: 17}"
    )
    (gpu,) = scan(
        f"gpus: [{{model: a100-sxm4-80gb, instances: [1g.10gb, {{profile: 1c.2g.20gb, attributes: {written}}}]}}]"
    ).inventory.gpus
    plain, other = (one.attributes for one in gpu.instances or ())
    assert plain == SMALL
    assert other == MigAttributes(
        memory_mib=5,
        multiprocessors=12,
        slices=2,
        compute_slices=1,
        copy_engines=13,
        decoders=14,
        encoders=15,
        jpeg_engines=16,
        ofa_engines=17,
    )
    assert gpu.fault is None


@pytest.mark.parametrize(("error", "is_fault"), [("NotSupported", False), ("NoPermission", False), ("Unknown", True)])
def test_a_driver_that_does_not_tell_what_a_device_has_costs_that_alone(scan, error, is_fault) -> None:
    fault = f"faults: [{{call: nvmlDeviceGetAttributes, gpu: 0, instance: 0, error: {error}}}]"
    (gpu,) = scan(f"gpus: [{{model: a100-sxm4-80gb, instances: [1g.10gb, 1g.10gb]}}]\n{fault}").inventory.gpus
    first, second = gpu.instances or ()
    assert (first.attributes, first.fault is not None) == (None, is_fault)
    assert (second.attributes, second.fault) == (SMALL, None)
    assert first.profile == (None if is_fault else "1g.10gb")


@pytest.mark.parametrize(
    ("vitals", "clique"),
    [
        (Vitals(), ""),
        (Vitals(errors=("nvmlDeviceGetGpuFabricInfo",)), None),
        (Vitals(fabric_state="NotStarted", fabric_status="Success"), None),
        (Vitals(fabric_state="InProgress", fabric_status="Success", fabric_clique="ab/1"), None),
        (Vitals(fabric_state="Completed", fabric_status="Timeout", fabric_clique="ab/1"), None),
        (Vitals(fabric_state="Completed", fabric_status="Success"), ""),
        (
            Vitals(fabric_state="Completed", fabric_status="Success", fabric_clique=f"{CLUSTER.replace('-', '')}/3"),
            f"{CLUSTER}.3",
        ),
    ],
)
def test_a_clique_is_known_once_the_fabric_is_complete(vitals, clique) -> None:
    assert find_clique(vitals) == clique


FABRIC = f"""\
gpus: [{{model: h200-sxm5-141gb, count: 5, nvswitchLinks: 18}}, {{model: t4}}]
conditions:
- {{gpu: 0, fabric: {{cluster: {CLUSTER}, clique: 3}}}}
- {{gpu: 1, fabric: {{cluster: {CLUSTER}}}}}
- {{gpu: 2, fabric: {{clique: 1}}}}
- {{gpu: 3, fabric: {{state: InProgress, clique: 1}}}}
"""


def test_cliques_are_those_of_the_node_file(scan) -> None:
    cliques = [gpu.clique for gpu in scan(FABRIC).inventory.gpus]
    assert cliques == [f"{CLUSTER}.3", f"{CLUSTER}.0", "c1c1c1c1-c1c1-c1c1-c1c1-c1c1c1c1c1c1.1", None, "", ""]


def test_a_fabric_that_does_not_answer_is_no_fault_of_its_gpu(scan) -> None:
    fault = "faults: [{call: nvmlDeviceGetGpuFabricInfo, gpu: 0, error: Unknown}]"
    first, *others = scan(FABRIC + fault).inventory.gpus
    assert (first.clique, first.fault) == (None, None)
    assert others[0].clique == f"{CLUSTER}.0"


@pytest.mark.parametrize(
    "text",
    [
        FABRIC,
        "gpus: [{model: a100-sxm4-80gb, instances: [1g.10gb, {profile: 1c.2g.20gb, attributes: {encoders: 5}}]}]",
        "gpus: [{model: a100-sxm4-80gb, instances: [1g.10gb]}]\nfaults: [{call: nvmlDeviceGetAttributes, error: 3}]",
    ],
    ids=["fabric", "attributes", "no attributes"],
)
def test_an_exported_node_tells_the_same(scan, text) -> None:
    first = scan(text).inventory
    assert scan(build_node_file(first)).inventory.gpus == first.gpus


def test_what_was_kept_before_there_were_such_facts_is_still_read() -> None:
    instance = {"uuid": "MIG-1", "index": 0, "profile": "1g.10gb"}
    gpus = [{"uuid": "GPU-1", "index": 0, "mig": "enabled", "instances": [instance]}]
    kept = {"driver": {"version": "580.65.06", "cuda_version": "13.0"}, "gpus": gpus}
    (gpu,) = msgspec.json.decode(msgspec.json.encode(kept), type=Inventory).gpus
    assert (gpu.clique, [one.attributes for one in gpu.instances or ()]) == (None, [None])


def test_a_compiled_library_tells_both(fake_driver, asking) -> None:
    """Through the layout of the driver's own structures."""
    fake_driver.install()
    fake_driver.configure(
        "cards 0 1",
        "vital 0 fabric_state 3",
        "vital 0 fabric_status 0",
        "vital 0 fabric_clique 7",
        "mig 1 1",
        "profile 2 9 3 40192 3,2,0,1,0 MIG 3g.40gb",
        "instance 1 0 2 0 3 3 40192 2 MIG-1",
    )
    scanned = asking(driver_root=str(fake_driver.root)).scan()
    assert isinstance(scanned, Scanned)
    first, second = scanned.inventory.gpus
    assert first.clique == "00000000-0000-0000-0000-000000000001.7"
    (one,) = second.instances or ()
    assert one.attributes is not None
    assert (one.attributes.multiprocessors, one.attributes.memory_mib) == (14 * 3, 40192)

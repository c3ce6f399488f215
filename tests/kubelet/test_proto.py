"""The generated messages equal their sources, and those the protocol: names and numbers are what travels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nvdp.kubelet import protocol
from nvdp.kubelet.proto import deviceplugin_v1beta1_pb2 as deviceplugin
from nvdp.kubelet.proto import podresources_v1_pb2 as podresources

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ROOT / "nvdp" / "kubelet" / "proto"


def contents(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in directory.iterdir() if "_pb2" in path.name}


def test_the_generated_code_is_what_the_sources_give(tmp_path):
    subprocess.run([sys.executable, ROOT / ".ci" / "generate_proto.py", tmp_path], check=True, timeout=50)
    assert contents(tmp_path) == contents(GENERATED)
    assert {name.split("_pb2")[0] for name in contents(GENERATED)} == {
        source.stem for source in (ROOT / "api").glob("*.proto")
    }


def test_every_call_of_the_sources_is_described_and_no_other():
    described = {
        call.path: (call.request, call.answer) for call in vars(protocol).values() if isinstance(call, protocol.Call)
    }
    declared = {
        f"/{service.full_name}/{method.name}": (method.input_type._concrete_class, method.output_type._concrete_class)
        for module in (deviceplugin, podresources)
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert described == declared


@pytest.mark.parametrize(
    ("message", "numbers"),
    [
        (deviceplugin.RegisterRequest, {"version": 1, "endpoint": 2, "resource_name": 3, "options": 4}),
        (
            deviceplugin.DevicePluginOptions,
            {"pre_start_required": 1, "get_preferred_allocation_available": 2},
        ),
        (deviceplugin.Device, {"id": 1, "health": 2, "topology": 3}),
        (
            deviceplugin.ContainerAllocateResponse,
            {"envs": 1, "mounts": 2, "devices": 3, "annotations": 4, "cdi_devices": 5},
        ),
        (deviceplugin.Mount, {"container_path": 1, "host_path": 2, "read_only": 3}),
        (deviceplugin.DeviceSpec, {"container_path": 1, "host_path": 2, "permissions": 3}),
        (
            deviceplugin.ContainerPreferredAllocationRequest,
            {"available_device_ids": 1, "must_include_device_ids": 2, "allocation_size": 3},
        ),
        (podresources.PodResources, {"name": 1, "namespace": 2, "containers": 3}),
        (
            podresources.ContainerResources,
            {"name": 1, "devices": 2, "cpu_ids": 3, "memory": 4, "dynamic_resources": 5},
        ),
        (podresources.ContainerDevices, {"resource_name": 1, "device_ids": 2, "topology": 3}),
        (podresources.DynamicResource, {"claim_name": 2, "claim_namespace": 3, "claim_resources": 4}),
        (
            podresources.ClaimResource,
            {"cdi_devices": 1, "driver_name": 2, "pool_name": 3, "device_name": 4, "share_id": 5},
        ),
        (podresources.GetPodResourcesRequest, {"pod_name": 1, "pod_namespace": 2}),
    ],
)
def test_field_numbers_are_those_of_the_protocol(message, numbers):
    assert {field.name: field.number for field in message.DESCRIPTOR.fields} == numbers


def test_numa_node_0_is_sent_as_present():
    device = deviceplugin.Device(id="x")
    device.topology.nodes.add(id=0)
    assert len(deviceplugin.Device.FromString(device.SerializeToString()).topology.nodes) == 1

"""Which devices an answer to Allocate names, in each way in which containers are told of them."""

from __future__ import annotations

import pytest

from nvdp.kubelet.messages import build_container_response
from nvdp.planning.response import ContainerAllocation, Mount
from nvdp.simulate.handed import find_named, show_devices

VENDOR = "k8s.device-plugin.nvidia.com"
UUID = "GPU-0a5731e0-0334-e023-e7a0-2f14b6245215"
ROOT = "/var/run/nvidia-container-devices"
NAMES = (f"{VENDOR}/gpu={UUID}", f"{VENDOR}/gpu=1", f"{VENDOR}/gds=all")


@pytest.mark.parametrize(
    ("allocation", "shown"),
    [
        (ContainerAllocation(envs={"NVIDIA_VISIBLE_DEVICES": f"{UUID},1"}), "NVIDIA_VISIBLE_DEVICES=GPU-0a5731e0...,1"),
        (
            ContainerAllocation(
                envs={"NVIDIA_VISIBLE_DEVICES": ROOT},
                mounts=tuple(Mount(container_path=f"{ROOT}/{name}", host_path="/dev/null") for name in (UUID, "1")),
            ),
            f"NVIDIA_VISIBLE_DEVICES={ROOT}",
        ),
        (
            ContainerAllocation(cdi_devices=NAMES),
            f"{VENDOR}/gpu=GPU-0a5731e0..., {VENDOR}/gpu=1, {VENDOR}/gds=all",
        ),
        (
            ContainerAllocation(annotations={"cdi.k8s.io/a": ",".join(NAMES)}),
            f"{VENDOR}/gpu=GPU-0a5731e0..., {VENDOR}/gpu=1, {VENDOR}/gds=all",
        ),
    ],
    ids=["variable", "mounts", "CDI field", "CDI annotation"],
)
def test_every_way_names_the_same_devices(allocation, shown):
    response = build_container_response(allocation)
    assert find_named(response) == (UUID, "1")
    assert show_devices(response) == shown


def test_an_empty_answer_names_none():
    assert find_named(build_container_response(ContainerAllocation())) == ()

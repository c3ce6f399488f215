"""What others on the node may say, serve or leave lying about: read in bounds, or refused in words."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from nvdp.errors import HostError
from nvdp.kubelet import protocol
from nvdp.kubelet.checkpoint import load_checkpoint
from nvdp.kubelet.podresources import PodResourcesClient
from nvdp.kubelet.proto import podresources_v1_pb2 as podresources
from nvdp.kubelet.server import build_address
from nvdp.model.replica import parse_replica_id
from tests.daemon.node import GPU, build_config, gpu_uuid, healthy, on_node
from tests.daemon.process import LIMIT_S


@pytest.mark.parametrize("name", ["%41", "q?x", "h#x", "s p", "ü"])
def test_holders_are_asked_for_also_under_a_path_that_means_something_else_in_an_address(root: Path, name: str):
    (root / name).mkdir()
    socket = root / name / "kubelet.sock"
    server = grpc.server(ThreadPoolExecutor(1))
    answer = protocol.LIST_POD_RESOURCES.unary_handler(lambda *_: podresources.ListPodResourcesResponse())
    server.add_generic_rpc_handlers(
        (protocol.build_service(protocol.POD_RESOURCES, {protocol.LIST_POD_RESOURCES: answer}),)
    )
    server.add_insecure_port(build_address(socket))
    server.start()
    client = PodResourcesClient(socket)

    assert client.list(5) == ()
    client.close()
    server.stop(None).wait()


@pytest.mark.parametrize("number", ["9" * 10, "9" * 5000, "-1", "01", "x", "", "1\n", "٣"])
def test_an_id_with_a_number_that_no_list_can_have_is_not_ours(number: str):
    assert parse_replica_id(f"{gpu_uuid(0)}::{number}") is None


@pytest.mark.parametrize(
    "text", ["GPU-", "GPU", "gpu-0", "nvidia0", "0000:17:00.0", "GPU-a b", "GPU-a:0", "GPU-é", "GPU-" + "a" * 121]
)
def test_a_name_that_no_library_of_nvidia_gives_is_not_ours(text: str):
    assert parse_replica_id(text) is None


@pytest.mark.invariant(3)
@on_node(
    kubelet={"topology_policy": "restricted"},
    machine={"count": 2, "uuid": ["GPU-FAKE-1", "GPU-0123456789ABCDEF"]},
)
def test_held_devices_are_kept_however_the_library_spells_their_uuid(kubelet, start):
    before = start(build_config(share=4))
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 8, LIMIT_S)
    pods = [kubelet.admit(f"pod-{number}", {"main": {GPU: 1}}) for number in range(8)]
    before.stop()
    after = len(kubelet.messages(GPU))
    start(build_config(share=1))

    first = kubelet.wait_until(lambda: kubelet.messages(GPU)[after:], LIMIT_S)[0]
    assert {held for pod in pods for held in pod.ids(GPU)} <= set(first.ids)
    assert not first.healthy  # whole GPUs, while all of them are shared
    kubelet.restart()  # it would crash for a held device that is missing
    kubelet.wait_until(lambda: kubelet.readmissions_pending == 0, LIMIT_S)
    assert {pod.phase for pod in pods} == {"Running"}


def test_a_directory_in_the_place_of_the_checkpoint_costs_no_file_descriptor(root: Path):
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are all that is needed
    for _ in range(5):
        with pytest.raises(HostError, match="cannot be read"):
            load_checkpoint(root)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - as above

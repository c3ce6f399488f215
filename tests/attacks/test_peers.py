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
from tests.daemon.node import gpu_uuid


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


def test_a_directory_in_the_place_of_the_checkpoint_costs_no_file_descriptor(root: Path):
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are all that is needed
    for _ in range(5):
        with pytest.raises(HostError, match="cannot be read"):
            load_checkpoint(root)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - as above

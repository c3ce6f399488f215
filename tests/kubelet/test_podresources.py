"""The reader of PodResources against a server that says what it is told (requirement 47)."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from nvdp.errors import KubeletError
from nvdp.kubelet import protocol
from nvdp.kubelet.podresources import RECEIVE_LIMIT_BYTES, PodResourcesClient
from nvdp.kubelet.proto import podresources_v1_pb2 as podresources
from nvdp.model.held import Holding
from nvdp.simulate.kubelet import Kubelet
from tests.twin.reference_plugin import ReferencePlugin, device

RESOURCE = "nvidia.com/gpu"
RATE_LIMITED = (grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")


class Lister:
    """Answers List. ``errors`` are given out first; ``hold`` keeps a question until it is set."""

    def __init__(self, path: Path, answer: podresources.ListPodResourcesResponse) -> None:
        path.unlink(missing_ok=True)
        self.answer = answer
        self.errors: list[tuple[grpc.StatusCode, str]] = []
        self.asked_at: list[float] = []
        self.asked = threading.Event()
        self.hold = threading.Event()
        self.hold.set()
        self.server = grpc.server(ThreadPoolExecutor(4))
        handler = protocol.LIST_POD_RESOURCES.unary_handler(self._list)
        service = protocol.build_service(protocol.POD_RESOURCES, {protocol.LIST_POD_RESOURCES: handler})
        self.server.add_generic_rpc_handlers((service,))
        self.server.add_insecure_port(f"unix:{path}")
        self.server.start()

    def _list(self, _, context):
        self.asked_at.append(time.monotonic())
        self.asked.set()
        self.hold.wait(20)
        if self.errors:
            context.abort(*self.errors.pop(0))
        return self.answer

    def stop(self) -> None:
        self.hold.set()
        self.server.stop(None).wait()


def pods(*names: str, ids: tuple[str, ...] = ("GPU-a",)) -> podresources.ListPodResourcesResponse:
    return podresources.ListPodResourcesResponse(
        pod_resources=[
            podresources.PodResources(
                name=name,
                namespace="team-a",
                containers=[
                    podresources.ContainerResources(
                        name="main",
                        devices=[podresources.ContainerDevices(resource_name=RESOURCE, device_ids=ids)],
                    ),
                    podresources.ContainerResources(name="empty"),
                ],
            )
            for name in names
        ]
    )


def holding(pod: str, device_id: str = "GPU-a", numa_node: int | None = None) -> Holding:
    return Holding(
        resource=RESOURCE, device_id=device_id, namespace="team-a", pod=pod, container="main", numa_node=numa_node
    )


@pytest.fixture
def path(short_dir):
    return short_dir / "kubelet.sock"


@pytest.fixture
def lister(path):
    server = Lister(path, pods("one"))
    yield server
    server.stop()


@pytest.fixture
def client(path):
    reader = PodResourcesClient(path)
    yield reader
    reader.close()


@pytest.mark.requirement(47)
def test_a_device_on_two_numa_nodes_counts_once_and_the_answer_is_sorted(lister, client):
    answer = podresources.ListPodResourcesResponse()
    for name in ("b", "a"):
        container = answer.pod_resources.add(name=name, namespace="team-a").containers.add(name="main")
        for node in (1, 0):
            entry = container.devices.add(resource_name=RESOURCE, device_ids=[f"GPU-{name}"])
            entry.topology.nodes.add(id=node)
    lister.answer = answer
    assert client.list(5) == (holding("a", "GPU-a", numa_node=0), holding("b", "GPU-b", numa_node=0))


@pytest.mark.requirement(47)
def test_devices_of_claims_are_read_over(lister, client):
    container = lister.answer.pod_resources[0].containers[0]
    claim = container.dynamic_resources.add(claim_name="claim", claim_namespace="team-a")
    claim.claim_resources.add(driver_name="gpu.nvidia.com", pool_name="node", device_name="gpu-0", share_id="1")
    container.cpu_ids.append(3)
    container.memory.add(memory_type="memory", size=1)
    assert client.list(5) == (holding("one"),)


@pytest.mark.requirement(47)
def test_a_reply_larger_than_grpcs_own_limit_is_read(lister, client):
    ids = tuple(f"GPU-{number:060}" for number in range(100_000))
    lister.answer = pods("one", ids=ids)
    assert lister.answer.ByteSize() > 4 * 1024 * 1024
    assert len(client.list(20)) == len(ids)


@pytest.mark.requirement(47)
def test_a_reply_beyond_16_mib_is_told_apart_from_the_rate_limit(lister, client):
    lister.answer = pods("x" * RECEIVE_LIMIT_BYTES)
    with pytest.raises(KubeletError, match="list of pods is larger than 16 MiB") as error:
        client.list(20)
    assert len(lister.asked_at) == 1
    assert "\n" not in str(error.value)


@pytest.mark.requirement(47)
def test_the_rate_limit_is_waited_out_with_growing_pauses(lister, client):
    lister.errors = [RATE_LIMITED] * 3
    assert client.list(5) == (holding("one"),)
    first, second, third = (
        later - earlier for earlier, later in zip(lister.asked_at[:-1], lister.asked_at[1:], strict=True)
    )
    assert first >= 0.05
    assert second >= 0.1
    assert third >= 0.2


@pytest.mark.requirement(47)
def test_a_rate_limit_that_does_not_end_is_reported_within_the_time(lister, client):
    lister.errors = [RATE_LIMITED] * 100
    began = time.monotonic()
    with pytest.raises(KubeletError, match=r"rate limit left no room for 0\.5 s"):
        client.list(0.5)
    assert time.monotonic() - began < 2


@pytest.mark.requirement(47)
def test_a_kubelet_with_get_disabled_is_read_all_the_same(short_dir):
    with Kubelet(short_dir, version="1.33") as kubelet:
        client = PodResourcesClient(kubelet.pod_resources_socket)
        assert client.list(5) == ()
        client.close()


def test_a_kubelet_that_does_not_answer_costs_the_time_given_and_no_more(lister, client):
    lister.hold.clear()
    began = time.monotonic()
    with pytest.raises(KubeletError, match=r"did not answer within 0\.3 s"):
        client.list(0.3)
    assert time.monotonic() - began < 2
    lister.hold.set()
    assert client.list(5) == (holding("one"),)


def test_closing_ends_a_question_under_way(lister, client):
    lister.hold.clear()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.list, 20)
        assert lister.asked.wait(5)
        began = time.monotonic()
        client.close()
        with pytest.raises(KubeletError, match="closed"):
            waiting.result(5)
        assert time.monotonic() - began < 2
    with pytest.raises(KubeletError, match="closed"):
        client.list(1)


def test_a_missing_socket_names_its_path_and_what_to_look_at(path, client):
    with pytest.raises(KubeletError, match=rf"^{path}: no such socket; .*--pod-resources-socket"):
        client.list(1)


def test_who_may_not_look_is_told_so(short_dir):
    class Forbidden(type(short_dir)):
        def stat(self, **_):
            raise PermissionError

    asking = PodResourcesClient(Forbidden(short_dir / "kubelet.sock"))
    with pytest.raises(KubeletError, match=rf"^{short_dir}/kubelet.sock: only root may look; run as uid 0$"):
        asking.list(1)
    asking.close()


def test_a_dead_kubelet_is_noticed_at_once_and_a_new_one_found_at_once(path, client):
    first = Lister(path, pods("one"))
    assert client.list(5) == (holding("one"),)
    before = client.kubelet
    first.stop()
    path.touch()
    with pytest.raises(KubeletError, match="nobody answers"):
        client.list(5)
    second = Lister(path, pods("two"))
    began = time.monotonic()
    assert client.list(5) == (holding("two"),)
    assert time.monotonic() - began < 0.5
    assert client.kubelet not in {None, before}
    second.stop()


def test_whose_an_answer_is_nobody_knows_if_the_socket_was_replaced_meanwhile(path, lister, client):
    lister.hold.clear()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.list, 10.0)
        assert lister.asked.wait(10)
        after = Lister(path, pods())
        lister.hold.set()
        assert [holding.pod for holding in asked.result(10)] == ["one"]
    assert client.kubelet is None
    assert client.list(10.0) == ()
    assert client.kubelet is not None
    after.stop()


def test_a_kubelet_that_refuses_is_quoted_in_one_line(lister, client):
    lister.errors = [(grpc.StatusCode.INTERNAL, "first\nsecond")]
    with pytest.raises(KubeletError, match="the kubelet refuses: INTERNAL: first second"):
        client.list(5)


def test_healthy_devices_come_by_resource_and_a_device_on_two_numa_nodes_once(short_dir):
    listed = [device("GPU-a", numa=(0, 1)), device("GPU-b", health="Unhealthy"), device("GPU-c")]
    with Kubelet(short_dir) as kubelet, ReferencePlugin(kubelet.directory, listed=listed) as plugin:
        plugin.register()
        kubelet.wait_until(lambda: len(kubelet.devices(RESOURCE)) == 3, what="the list")
        asking = PodResourcesClient(kubelet.pod_resources_socket)
        assert asking.list_healthy(5) == {RESOURCE: frozenset({"GPU-a", "GPU-c"})}
        asking.close()

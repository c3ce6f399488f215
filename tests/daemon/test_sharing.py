"""A node of eight cards with four kinds of sharing is as its file says, simulated and on a compiled library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from nvdp.simulate.kubelet import AdmissionError
from tests.daemon.node import (
    build_config,
    connect,
    gpu_uuid,
    healthy,
    pci_address,
)
from tests.daemon.process import LIMIT_S, Daemon
from tests.kubelet.plugin_client import visible_devices
from tests.nvml.conftest import FakeDriver, compile_fake

A100, SLICED, TENTH, MPS = (f"nvidia.com/a100{suffix}" for suffix in ("", ".shared", ".tenth", ".mps"))
L4, HALF = "nvidia.com/l4", "nvidia.com/l4.half"
MODELS = ["a100-sxm4-80gb"] * 6 + ["l4"] * 2
PRODUCTS = ["NVIDIA A100-SXM4-80GB"] * 6 + ["NVIDIA L4"] * 2


class Cards(NamedTuple):
    """Where the cards come from: their names, and a start of the daemon on them."""

    uuids: list[str]
    pcis: list[str]
    start: Callable[[], Daemon]


def build_mixed(cards: Cards, *, tenths=10, exclude=5, cordon=1, sliced=SLICED) -> dict[str, Any]:
    """Card 0 whole, 1 cordoned, 2 and 3 time-sliced in two ways, 4 under MPS, 5 excluded, 6 of another model in
    halves, 7 of that model whole.
    """
    slices = [
        {"name": A100, "rename": sliced, "devices": [cards.pcis[2]], "replicas": 4},
        {"name": A100, "rename": TENTH, "devices": [cards.uuids[3]], "replicas": tenths},
        {"name": L4, "rename": HALF, "devices": 1, "replicas": 2},
    ]
    return build_config(
        devices={"exclude": [exclude], "cordon": [cards.uuids[cordon]]},
        resources={"gpus": [{"pattern": "*A100*", "name": A100}, {"pattern": "*", "name": L4}]},
        sharing={
            "timeSlicing": {"failRequestsGreaterThanOne": True, "resources": slices},
            "mps": {"resources": [{"name": A100, "rename": MPS, "devices": ["4"], "replicas": 4}]},
        },
        allocation={"sharedPolicy": "packed"},
    )


def build_ids(cards: Cards, tenths: int = 10) -> dict[str, set[str]]:
    """What is Healthy under such a file."""

    def pieces(card: int, count: int) -> set[str]:
        return {f"{cards.uuids[card]}::{number}" for number in range(count)}

    return {
        A100: {cards.uuids[0]},
        SLICED: pieces(2, 4),
        TENTH: pieces(3, tenths),
        HALF: pieces(6, 2),
        L4: {cards.uuids[7]},
        MPS: pieces(4, 4),
    }


@pytest.fixture
def cards(request, kubelet, root, config_map, start) -> Cards:
    """On a simulated machine and on a compiled library, by the parameter ``source``."""
    if request.param == "simulated":
        return Cards([gpu_uuid(n) for n in range(8)], [pci_address(n) for n in range(8)], start)
    driver: FakeDriver = request.getfixturevalue("driver")
    names = [f"name {number} {product}" for number, product in enumerate(PRODUCTS)]
    driver.configure("cards 0 1 2 3 4 5 6 7", *names)
    driver.install()
    started: list[Daemon] = []

    def run() -> Daemon:
        started.append(
            Daemon(
                *("--config-file", config_map.file, "--kubelet-root", kubelet.directory.parent),
                *("--state-dir", root / "state", "--run-dir", root / "run", "--mps-dir", root / "mps"),
                *("--log-format", "json"),
                environment={"CONTAINER_DRIVER_ROOT": str(driver.root), "DRIVER_ROOT_CTR_PATH": str(driver.root)},
            )
        )
        start.daemons.append(started[-1])
        return started[-1]

    return Cards(
        [f"GPU-{number:08x}-0000-0000-0000-000000000000" for number in range(8)],
        [f"0000:{0x10 + number:02x}:00.0" for number in range(8)],
        run,
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    directory = tmp_path_factory.mktemp("fake")
    return compile_fake(directory, basic=False), compile_fake(directory, basic=True)


@pytest.fixture
def driver(tmp_path, built) -> FakeDriver:
    return FakeDriver(tmp_path / "driver", *built)


on_both_sources = pytest.mark.parametrize(
    ("cards", "settings"),
    [(source, {"machine": {"count": 8, "models": MODELS}}) for source in ("simulated", "compiled")],
    indirect=["cards"],
    ids=["simulated", "compiled"],
)


def wait_for_ids(kubelet, wanted: dict[str, set[str]]) -> None:
    kubelet.wait_until(
        lambda: {resource: healthy(kubelet, resource) for resource in wanted} == wanted,
        LIMIT_S,
        what=str({resource: len(ids) for resource, ids in wanted.items()}),
    )


@on_both_sources
@pytest.mark.requirement(37)
@pytest.mark.invariant(4)
def test_a_mixed_node_is_as_its_file_says(kubelet, config_map, cards, keeper):
    config_map.publish(build_mixed(cards))
    daemon = cards.start()
    wanted = build_ids(cards)
    wait_for_ids(kubelet, wanted)

    assert {found.resource for found in kubelet.registrations} == wanted.keys()
    assert kubelet.devices(A100)[cards.uuids[1]].health == "Unhealthy"
    amounts = kubelet.node_status()
    assert {resource: tuple(amounts[resource]) for resource in wanted} == {
        A100: (2, 1),
        SLICED: (4, 4),
        TENTH: (10, 10),
        HALF: (2, 2),
        L4: (1, 1),
        MPS: (4, 4),
    }
    for resource, ids in wanted.items():
        with connect(kubelet, resource) as client:
            some = min(ids)
            assert visible_devices(client.allocate([some])) == [some.partition("::")[0]]

    daemon.wait_ready()
    for card, reason in ((1, "Cordoned"), (5, "Excluded")):
        daemon.wait_metric(1, "nvdp_device_withheld", uuid=cards.uuids[card], reason=reason)
    strategies = ((A100, "none", 1), (SLICED, "time-slicing", 4), (TENTH, "time-slicing", 10), (MPS, "mps", 4))
    for resource, strategy, count in strategies:
        daemon.wait_metric(1, "nvdp_resource_sharing_info", resource=resource, strategy=strategy, replicas=str(count))
    assert {line["resource"] for line in daemon.log.of("SharingUnisolated")} == {SLICED, TENTH, HALF}

    kubelet.admit("team/two-cards", {"one": {A100: 1, L4: 1}, "two": {SLICED: 1, TENTH: 1}})
    with pytest.raises(
        AdmissionError, match=r"2 asked, 1 allowed \(sharing\.timeSlicing\.failRequestsGreaterThanOne\)"
    ):
        kubelet.admit("team/greedy", {"main": {TENTH: 2}})


@on_both_sources
@pytest.mark.invariant(4)
@pytest.mark.invariant(8)
def test_restarts_leave_a_mixed_node_and_its_pods_as_they_are(kubelet, config_map, cards, keeper):
    config_map.publish(build_mixed(cards))
    daemon = cards.start()
    wanted = build_ids(cards)
    wait_for_ids(kubelet, wanted)
    pods = [kubelet.admit(f"team/{number}", {"main": {resource: 1}}) for number, resource in enumerate(wanted)]

    kubelet.restart()
    kubelet.wait_until(lambda: not kubelet.readmissions_pending, LIMIT_S)
    wait_for_ids(kubelet, wanted)
    assert daemon.stop().code == 0
    cards.start()
    wait_for_ids(kubelet, wanted)

    for resource in wanted:
        assert len({message.raw for message in kubelet.messages(resource)}) == 1
    assert {pod.phase for pod in pods} == {"Running"}
    assert kubelet.registrations[-1].resource in wanted


@on_both_sources
@pytest.mark.invariant(8)
def test_an_edit_concerns_the_resources_that_it_changes_and_no_others(kubelet, config_map, cards, keeper):
    config_map.publish(build_mixed(cards))
    daemon = cards.start()
    wait_for_ids(kubelet, build_ids(cards))

    def count() -> dict[str, int]:
        return {resource: len(kubelet.messages(resource)) for resource in build_ids(cards)}

    quarter = "nvidia.com/a100.quarter"
    edits: tuple[tuple[dict[str, Any], dict[str, set[str]], set[str]], ...] = (
        ({"tenths": 12}, {TENTH: build_ids(cards, 12)[TENTH]}, {TENTH}),
        ({"tenths": 12, "cordon": 0}, {A100: {cards.uuids[1]}}, {A100}),
        ({"tenths": 12, "cordon": 0, "exclude": 7}, {L4: set(), A100: {cards.uuids[1], cards.uuids[5]}}, {L4, A100}),
        (
            {"tenths": 12, "cordon": 0, "exclude": 7, "sliced": quarter},
            {quarter: build_ids(cards)[SLICED], SLICED: set()},
            {SLICED},
        ),
    )
    for settings, wanted, changed in edits:
        before = count()
        lines = len(daemon.log)
        config_map.publish(build_mixed(cards, **settings))
        wait_for_ids(kubelet, wanted)
        daemon.log.wait_for("ConfigApplied", after=lines)
        assert {resource for resource, number in count().items() if number > before[resource]} == changed

    registered = [found.resource for found in kubelet.registrations]
    assert sorted(registered) == sorted([*build_ids(cards), quarter])
    assert daemon.log.of("StreamLost") == []
    assert daemon.running

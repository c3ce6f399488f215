"""What the probes say, and when they fail."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import msgspec
import pytest

from nvdp.host.container import WornContainer
from nvdp.http.probes import build_health, build_ready, find_problems
from nvdp.model.listing import Strategy
from nvdp.model.reasons import Cause
from nvdp.model.status import ConfigStatus, DeviceStatus, DriverState, DriverStatus, ResourceStatus, Status, Trouble


def resource(name: str, *, planned: int, healthy: int, missing: str | None = None) -> ResourceStatus:
    return ResourceStatus(
        name=name, planned=planned, healthy=healthy, unhealthy=0, registered=missing is None, streams=1,
        strategy=Strategy.NONE, replicas=1, missing=missing,
    )  # fmt: skip


STATUS = Status(
    ready=False,
    reason="NotRegistered",
    config=ConfigStatus(valid=True, hash="sha256:1f0c9a2e77b0", source="/config/mixed", applied_at=1795921927.5),
    driver=DriverStatus(state=DriverState.READY, version="580.65.06"),
    resources=(
        resource("nvidia.com/gpu", planned=5, healthy=4),
        resource("nvidia.com/gpu.mps", planned=4, healthy=0, missing="the kubelet's socket is not there"),
    ),
)


def test_readyz_says_in_json_what_is_there_and_what_is_missing():
    response = build_ready(STATUS, {})
    assert response.status == 503
    assert json.loads(response.body) == {
        "ready": False,
        "reason": "NotRegistered",
        "config": {
            "valid": True,
            "hash": "sha256:1f0c9a2e77b0",
            "source": "/config/mixed",
            "appliedAt": "2026-11-29T03:12:07Z",
            "refused": None,
        },
        "driver": {"state": "Ready", "version": "580.65.06"},
        "resources": [
            {"name": "nvidia.com/gpu", "planned": 5, "healthy": 4, "registered": True},
            {
                "name": "nvidia.com/gpu.mps",
                "planned": 4,
                "healthy": 0,
                "registered": False,
                "missing": "the kubelet's socket is not there",
            },
        ],
    }


def test_readyz_answers_200_exactly_while_the_daemon_is_ready():
    assert build_ready(Status(ready=True, reason=""), {}).status == 200
    assert build_ready(Status(), {}).status == 503


def test_for_people_the_same_is_said_in_lines():
    response = build_ready(STATUS, {"format": "text"})
    assert response.content_type.startswith("text/plain")
    assert response.body.decode().splitlines() == [
        "not ready: NotRegistered",
        "config    sha256:1f0c9a2e77b0 from /config/mixed, in force since 2026-11-29T03:12:07Z",
        "driver    Ready 580.65.06",
        "resource  nvidia.com/gpu: 5 planned, 4 healthy, registered",
        "resource  nvidia.com/gpu.mps: 4 planned, 0 healthy, not registered: the kubelet's socket is not there",
    ]


def test_a_refused_configuration_and_a_missing_driver_are_explained():
    status = Status(
        config=ConfigStatus(refused="/config/mixed:14:5: replica: unknown key"),
        driver=DriverStatus(state=DriverState.MISSING, text="libnvidia-ml.so.1 not found"),
    )
    text = build_ready(status, {"format": "text"}).body.decode()
    assert "config    none in force" in text
    assert "refused   /config/mixed:14:5: replica: unknown key" in text
    assert "driver    Missing  libnvidia-ml.so.1 not found" in text
    assert json.loads(build_ready(status, {}).body)["driver"]["text"] == "libnvidia-ml.so.1 not found"


def test_a_configuration_that_waits_for_the_driver_is_not_called_in_force():
    status = Status(config=ConfigStatus(valid=True, hash="sha256:1f0c9a2e77b0", source="/config/mixed"))
    text = build_ready(status, {"format": "text"}).body.decode()
    assert "config    sha256:1f0c9a2e77b0 from /config/mixed, not applied yet\n" in text


def test_what_chose_the_configuration_and_what_the_choice_waits_for_are_shown_where_there_is_one():
    config = ConfigStatus(
        hash="sha256:1f0c9a2e77b0", source="configmap a/b:mixed", entry="mixed", chosen_by="label c=mixed"
    )
    waiting = msgspec.structs.replace(config, waiting="node n: not answered yet")
    shown = json.loads(build_ready(Status(config=waiting), {}).body)["config"]
    assert (shown["entry"], shown["chosenBy"]) == ("mixed", "label c=mixed")
    assert shown["waiting"] == "node n: not answered yet"
    text = build_ready(Status(config=waiting), {"format": "text"}).body.decode()
    assert "config    sha256:1f0c9a2e77b0 from configmap a/b:mixed (label c=mixed), not applied yet\n" in text
    assert "awaited   node n: not answered yet\n" in text
    assert {"entry", "waiting"}.isdisjoint(json.loads(build_ready(STATUS, {}).body)["config"])


def test_healthz_fails_with_the_problem_in_its_body():
    response = build_health(STATUS, {}, problems=("nvidia.com/gpu: its own socket does not answer",))
    assert response.status == 503
    body = json.loads(response.body)
    assert (body["healthy"], body["problems"]) == (False, ["nvidia.com/gpu: its own socket does not answer"])
    text = build_health(STATUS, {"format": "text"}, problems=("a", "b")).body.decode()
    assert text.startswith("PROBLEM   a\nPROBLEM   b\n")


def test_the_event_loop_has_ten_seconds_and_is_asked_first():
    waited: list[float] = []

    def never(timeout_s: float) -> bool:
        waited.append(timeout_s)
        return False

    def fail() -> tuple[str, ...]:
        raise AssertionError

    assert find_problems(loop_answers=never, sockets_answer=fail, container_problem=lambda: None) == (
        "the event loop has not answered within 10 s",
    )
    assert waited == [10.0]


def test_silent_sockets_and_a_worn_container_are_problems():
    assert find_problems(
        loop_answers=lambda _: True, sockets_answer=lambda: ("nvidia.com/gpu",), container_problem=lambda: "worn out"
    ) == ("nvidia.com/gpu: its own socket does not answer", "worn out")
    assert find_problems(loop_answers=lambda _: True, sockets_answer=lambda: (), container_problem=lambda: None) == ()


WELL = Status(ready=True, reason="", config=ConfigStatus(valid=True, hash="sha256:1f0c9a2e77b0"), driver=STATUS.driver)


def bad(reason: str, **facts: object) -> Status:
    return msgspec.structs.replace(WELL, ready=False, reason=reason, **facts)


def driver(state: DriverState) -> Status:
    return bad(f"Driver{state.value}", driver=DriverStatus(state=state))


def trouble(reason: str) -> Status:
    return msgspec.structs.replace(WELL, troubles=(Trouble(reason=reason, text="x"),))


def lost(number: int) -> DeviceStatus:
    return DeviceStatus(
        uuid=f"GPU-{number}", index=number, pci="", product="", mig="", memory_bytes=None, healthy=False,
        cause=Cause.LOST, text="fallen off the bus", changed_at=0.0,
    )  # fmt: skip


WAITED_OUT = {
    "all is well": WELL,
    "slow discovery": Status(),
    "no driver": driver(DriverState.MISSING),
    "a driver that was lost": driver(DriverState.LOST),
    "a driver that is let go of": driver(DriverState.PAUSED),
    "a configuration that is refused": bad("ConfigRefused", config=ConfigStatus(refused="x", problems=1)),
    "no configuration": bad("ConfigMissing", config=ConfigStatus(refused="x", missing=True)),
    "no kubelet": STATUS,
    "all GPUs Unhealthy": msgspec.structs.replace(WELL, devices=tuple(lost(number) for number in range(8))),
    "a full state directory": trouble("StateDamaged"),
    "a port that is taken": trouble("PortTaken"),
    "no inotify": trouble("WatchDegraded"),
    "unknown holders": trouble("HoldersUnknown"),
    "a part that died": bad("ServiceRestarted", troubles=(Trouble(reason="ServiceRestarted", text="planning failed"),)),
}
MISMATCH = driver(DriverState.MISMATCH)
HEALTHY, SICK = 200, 503


class Container:
    """The surroundings of a daemon that is asked for its health, and a clock."""

    def __init__(self, root: Path, *, privileged: bool) -> None:
        self.now = 0.0
        self.status = WELL
        self.loop_turns = True
        self.silent: tuple[str, ...] = ()
        directory = root / "device-plugins"
        directory.mkdir()
        self.mount = os.open(directory, os.O_RDONLY)  # a path to it stays, as a mount does
        self._worn = WornContainer(
            directory=Path(f"/proc/self/fd/{self.mount}"),
            dev=root / "dev",
            host_dev=root / "host-dev",
            follows_driver=privileged,
            get_driver=lambda: self.status.driver,
            clock=lambda: self.now,
        )

    def probe(self) -> int:
        problems = find_problems(
            loop_answers=lambda _: self.loop_turns, sockets_answer=lambda: self.silent, container_problem=self._worn
        )
        return build_health(self.status, {}, problems=problems).status


@pytest.fixture(params=["runtime-injected", "privileged"])
def container(request, tmp_path):
    made = Container(tmp_path, privileged=request.param == "privileged")
    yield made
    os.close(made.mount)


def test_healthz_does_not_fail_for_what_the_daemon_waits_out_however_long(container):
    for name, status in WAITED_OUT.items():
        container.status = status
        for _ in range(3):
            assert container.probe() == HEALTHY, name
            container.now += 3600


def test_another_driver_fails_healthz_after_a_minute_where_a_new_container_would_get_it(container, request):
    container.status = MISMATCH
    told = []
    for _ in range(3):
        told.append(container.probe())
        container.now += 30
    is_injected = "runtime-injected" in request.node.name
    assert told == ([HEALTHY, HEALTHY, SICK] if is_injected else [HEALTHY] * 3)
    container.status = WELL
    assert container.probe() == HEALTHY


def test_a_directory_that_is_another_one_on_the_host_fails_healthz_after_a_minute(container, tmp_path):
    assert container.probe() == HEALTHY
    shutil.rmtree(tmp_path / "device-plugins")
    assert container.probe() == HEALTHY
    container.now += 60
    assert container.probe() == SICK


def test_a_loop_or_a_socket_that_does_not_answer_fails_healthz_at_once_and_no_longer_than_it_lasts(container):
    container.loop_turns = False
    assert container.probe() == SICK
    container.loop_turns, container.silent = True, ("nvidia.com/gpu",)
    assert container.probe() == SICK
    container.silent = ()
    assert container.probe() == HEALTHY

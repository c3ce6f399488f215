"""The daemon on a compiled libnvidia-ml under a driver root: no simulation but the library's own answers."""

from __future__ import annotations

import pytest

from tests.daemon.node import build_config, connect, wait_healthy
from tests.daemon.process import Daemon
from tests.nvml.conftest import FakeDriver, compile_fake


def card(number: int) -> str:
    return f"GPU-{number:08x}-0000-0000-0000-000000000000"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    directory = tmp_path_factory.mktemp("fake")
    return compile_fake(directory, basic=False), compile_fake(directory, basic=True)


@pytest.fixture
def driver(tmp_path, built) -> FakeDriver:
    """Its library is not there yet."""
    return FakeDriver(tmp_path / "driver", *built)


@pytest.fixture
def daemon(kubelet, root, driver, config_map):
    """Overrides the one on a simulated machine; it ends well, or the test fails."""
    config_map.publish(build_config(health={"callTimeout": "1s"}))
    started = Daemon(
        *("--config-file", config_map.file, "--kubelet-root", kubelet.directory.parent, "--state-dir", root / "state"),
        *("--run-dir", root / "run", "--log-format", "json"),
        environment={"CONTAINER_DRIVER_ROOT": str(driver.root), "DRIVER_ROOT_CTR_PATH": str(driver.root)},
    )
    yield started
    assert started.stop().code == 0
    print("the log:", *started.log, *started.log.texts, sep="\n")  # noqa: T201 - pytest shows it if the test fails


def test_a_library_that_appears_under_the_driver_root_is_found(kubelet, daemon, driver):
    missing = daemon.log.wait_for("DriverMissing")["msg"]
    assert str(driver.root) in missing
    assert "NVIDIA_DRIVER_ROOT" in missing
    assert daemon.wait_probe("/readyz", lambda probe: probe.body["driver"]["state"] == "Missing").status == 503

    driver.install()

    wait_healthy(kubelet, [card(number) for number in range(4)])
    daemon.wait_ready()
    assert "driver 570.1.1" in daemon.log.wait_for("DriverReady")["msg"]


def test_a_card_that_comes_is_offered_without_a_new_registration(kubelet, daemon, driver):
    driver.install()
    wait_healthy(kubelet, [card(number) for number in range(4)])

    driver.configure("cards 0 1 2 3 4", "driver 580.2.2")
    wait_healthy(kubelet, [card(number) for number in range(5)])
    assert daemon.log.wait_for("DeviceAdded")["device"] == card(4)
    with connect(kubelet) as client:
        assert client.allocate([card(4)]).container_responses
    assert len(kubelet.registrations) == 1

"""What containerd makes of CDI names, which the start-up check and the specs count on."""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from tests.containers.cri import Injection, Runtime
from tests.containers.unpacked import PROGRAMS
from tests.host.runtime_files import CASES, Case, write_case

pytestmark = pytest.mark.campaign

KIND = "k8s.device-plugin.nvidia.com/gpu"
NULL = Injection(cdi_devices=(f"{KIND}=a",))


@pytest.fixture
def spec(cdi: Path) -> Path:
    """A spec with one device that is /dev/null by another name."""
    path = cdi / "k8s.device-plugin.nvidia.com-gpu.json"
    edits = {"deviceNodes": [{"path": "/dev/nvidia7", "hostPath": "/dev/null"}], "env": ["GIVEN=yes"]}
    devices = [{"name": "a", "containerEdits": edits}]
    path.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": KIND, "devices": devices}))
    return path


def test_a_container_gets_what_the_spec_of_its_device_says(spec: Path, runtime: Runtime):
    container = runtime.start(NULL)
    assert container.devices() == {"/dev/nvidia7": "1:3"}
    assert container.environment()["GIVEN"] == "yes"
    container.stop()


def test_a_name_without_a_spec_is_refused(spec: Path, runtime: Runtime):
    with pytest.raises(grpc.RpcError, match=f"unresolvable CDI devices {KIND}=b"):
        runtime.start(Injection(cdi_devices=(f"{KIND}=b",)))


def test_without_enable_cdi_the_device_is_silently_missing(spec: Path, start_runtime: Callable[[str], Runtime]):
    container = start_runtime("").start(NULL)
    assert container.devices() == {}
    assert "GIVEN" not in container.environment()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_containerd_reads_its_configuration_as_the_start_up_check_does(root: Path, case: Case):
    main = write_case(case, root)
    command = [PROGRAMS / "containerd", "--config", main, "config", "dump"]
    dumped = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    plugins = tomllib.loads(dumped)["plugins"]
    assert plugins["io.containerd.grpc.v1.cri"]["enable_cdi"] is case.heeds

"""The device nodes of MIG devices are read with each scan, where there is a host to tell them."""

from __future__ import annotations

import pytest

from nvdp.host.mig_capabilities import MigCapabilities
from nvdp.host.sysfs import Sysfs
from nvdp.nvml.frames import Scanned
from nvdp.services.nvml_session import NvmlSession
from tests.planning.values import cut, gpu, inventory


class Client:
    pid = 1

    def __init__(self, found):
        self.found = found

    def call(self, command, *, limit_s, init_limit_s):
        return Scanned(inventory=self.found)


class Children:
    """Each child finds the same GPUs."""

    def __init__(self, *gpus):
        self.found = inventory(*gpus)

    def spawn(self, on_notice):
        return Client(self.found)

    def end(self, child): ...


@pytest.fixture
def proc(tmp_path):
    minors = tmp_path / "driver/nvidia-caps/mig-minors"
    minors.parent.mkdir(parents=True)
    minors.write_text("config 1\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\ngpu0/gi2/access 21\n")
    return tmp_path


def scan(proc, tmp_path, *gpus, sysfs=True):
    session = NvmlSession(
        Children(*gpus),
        sysfs=Sysfs(tmp_path / "sys") if sysfs else None,
        on_notice=lambda *_: None,
        clock=lambda: 0.0,
        capabilities=MigCapabilities(proc),
    )
    outcome = session.scan((), limit_s=1.0)
    assert isinstance(outcome, Scanned)
    return outcome.inventory.gpus


def test_mig_devices_have_the_nodes_that_the_host_tells(proc, tmp_path):
    (card, other) = scan(proc, tmp_path, cut(0, "1g.10gb", "1g.10gb"), gpu(1))
    assert [one.nodes for one in card.instances] == [
        ("/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"),
        (),
    ]
    assert other.instances is None


def test_a_gpu_without_a_minor_number_and_a_simulated_node_have_none(proc, tmp_path):
    (card,) = scan(proc, tmp_path, cut(0, "1g.10gb", minor=None))
    assert card.instances[0].nodes == ()
    (card,) = scan(proc, tmp_path, cut(0, "1g.10gb"), sysfs=False)
    assert card.instances[0].nodes == ()

"""The compute mode of a real GPU."""

from __future__ import annotations

import pytest

from nvdp.errors import NvmlError
from nvdp.model.inventory import ComputeMode, Gpu, GpuRef
from nvdp.nvml.compute_mode import set_compute_mode
from nvdp.nvml.frames import Probe, Probed
from tests.gpu.conftest import LIMIT_S

pytestmark = pytest.mark.gpu


def read(children, gpu: Gpu) -> ComputeMode | None:
    child = children.spawn()
    try:
        probed = child.call(Probe(gpu=GpuRef(index=0, count=0, uuid=gpu.uuid)), limit_s=LIMIT_S)
    finally:
        children.end(child)
    assert isinstance(probed, Probed)
    assert probed.gpu is not None
    return probed.gpu.compute_mode


def test_a_mode_outlives_the_child_that_set_it_and_can_be_put_back(children, idle_gpu) -> None:
    before = idle_gpu.compute_mode
    other = ComputeMode.DEFAULT if before is ComputeMode.EXCLUSIVE_PROCESS else ComputeMode.EXCLUSIVE_PROCESS
    try:
        set_compute_mode(children, idle_gpu.uuid, other, limit_s=LIMIT_S)
    except NvmlError as error:
        if error.kind == "NoPermission":
            pytest.skip(str(error))
        raise
    try:
        assert read(children, idle_gpu) is other
    finally:
        set_compute_mode(children, idle_gpu.uuid, before, limit_s=LIMIT_S)
    assert read(children, idle_gpu) is before

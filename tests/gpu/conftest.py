"""An idle GPU of this machine, for what only a real driver can show. Where there is none, nothing here runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvdp.model.inventory import Gpu, GpuRef, MigMode
from nvdp.nvml.children import NvmlChildren
from nvdp.nvml.frames import Processes, ProcessesRead, Scan, Scanned

LIMIT_S = 10.0


@pytest.fixture
def children() -> NvmlChildren:
    if not Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has no NVIDIA driver")
    return NvmlChildren()


@pytest.fixture
def idle_gpu(children):
    """A GPU on which nothing computes. A session holds it meanwhile, so that the driver forgets nothing about it."""
    holder = children.spawn()
    try:
        scanned = holder.call(Scan(), limit_s=LIMIT_S)
        if not isinstance(scanned, Scanned):
            pytest.skip(f"the driver cannot be asked: {scanned}")
        idle = [gpu for gpu in scanned.inventory.gpus if _is_idle(gpu, holder)]
        if not idle:
            pytest.skip("no GPU of this machine is idle, whole, and tells its compute mode")
        yield idle[0]
    finally:
        children.end(holder)


def _is_idle(gpu: Gpu, holder) -> bool:
    ref = GpuRef(index=0, count=0, uuid=gpu.uuid)
    return (
        gpu.fault is None
        and gpu.mig is not MigMode.ENABLED
        and gpu.compute_mode is not None
        and holder.call(Processes(gpu=ref), limit_s=LIMIT_S) == ProcessesRead(processes=())
    )

"""What ``nvdp plan`` hears of the control daemons of MPS on its node: a warning of what keeps them from working."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from nvdp.app.handing import foresee_daemons
from nvdp.config.process import ProcessOptions
from nvdp.host.boot import load_boot_id
from nvdp.host.mps_report import write_report
from nvdp.model.mps import DaemonReport, DaemonSpec, Grant, MpsGrants, MpsReport, Phase

M = "nvidia.com/m"
GRANTS = MpsGrants(resources={M: Grant(wanted=DaemonSpec(resource=M, gpus=("GPU-1",)))})
NO_DRIVER = "the driver is not there: libnvidia-ml.so.1 not found"
# How the daemon is; then what is warned of.
SEEN = {
    "it answers": (DaemonReport(phase=Phase.READY), ()),
    "it waits for pods": (DaemonReport(phase=Phase.WAITING, text="GPU-1: not free yet: pods hold it"), ()),
    "its container has no driver": (
        DaemonReport(phase=Phase.WAITING, text=NO_DRIVER),
        (f"{M}: its MPS control daemon is no good now: {NO_DRIVER}",),
    ),
    "it died": (DaemonReport(phase=Phase.FAILED, text="x"), (f"{M}: its MPS control daemon is no good now: x",)),
}


@pytest.mark.parametrize(("report", "warned"), SEEN.values(), ids=SEEN)
def test_a_daemon_that_cannot_work_is_warned_of_and_one_that_waits_in_order_is_not(
    tmp_path: Path, report: DaemonReport, warned: tuple[str, ...]
) -> None:
    write_report(tmp_path, MpsReport(at=time.monotonic(), boot_id=load_boot_id(), daemons={M: report}))
    assert foresee_daemons(ProcessOptions(mps_dir=tmp_path), GRANTS) == warned


def test_without_nvdp_mps_what_it_would_share_is_named(tmp_path: Path) -> None:
    (told,) = foresee_daemons(ProcessOptions(mps_dir=tmp_path), GRANTS)
    assert told.startswith("nvdp mps does not run on this node")
    assert told.endswith(f"until it does {M} cannot be offered")

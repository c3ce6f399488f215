"""What a start takes over of the GPUs and their faults: only what is of the same boot may be compared with a scan."""

from __future__ import annotations

import pytest

from nvdp.app.past import build_past
from nvdp.config.process import ProcessOptions
from nvdp.host.state import Seen, State
from nvdp.planning.course import Record
from tests.planning.values import gpu, inventory

GPUS = inventory(gpu(0), gpu(1))
RECORDS = {"GPU-0": Record(boot_id="this boot", is_gone=True)}


def begin(state: State, *, boot_id: str):
    return build_past(state, boot_id=boot_id, options=ProcessOptions(), log=lambda *_, **__: None)


@pytest.mark.invariant(9)
@pytest.mark.parametrize(
    ("seen_in", "now_in", "expected"),
    [("this boot", "this boot", GPUS), ("this boot", "another boot", None), ("this boot", "", None), ("", "", None)],
    ids=["a restart", "a reboot", "which boot it is now is not known", "no boot is known"],
)
def test_gpus_that_a_predecessor_knew_are_taken_over_in_the_same_boot_only(seen_in, now_in, expected):
    past = begin(State(seen=Seen(boot_id=seen_in, inventory=GPUS)), boot_id=now_in)
    assert past.inventory == expected


def test_faults_are_taken_over_with_the_boot_of_now():
    past = begin(State(health=RECORDS), boot_id="another boot")
    assert (past.inventory, past.faults.records, past.faults.boot_id) == (None, RECORDS, "another boot")

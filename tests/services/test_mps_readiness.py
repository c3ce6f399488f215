"""The probe of ``nvdp mps``: not ready before everything is known, nor while a daemon is not as wanted."""

from __future__ import annotations

import pytest

from nvdp.model.mps import DaemonReport, Phase
from nvdp.services.events import ConfigRead, GpusScanned
from nvdp.services.mps_events import GrantsRead
from nvdp.services.mps_readiness import judge_readiness

WELL = {"unheard": (), "needs_driver": True, "refused": "", "problem": "", "daemons": {}}
GPU = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ({}, ()),
        ({"unheard": {ConfigRead, GrantsRead}}, ("configuration was not read", "what the plugin wants")),
        ({"unheard": {GpusScanned}}, ("the driver has not answered",)),
        ({"unheard": {GpusScanned}, "needs_driver": False}, ()),
        ({"refused": "the file is wrong"}, ("the file is wrong",)),
        ({"problem": "nobody knows"}, ("nobody knows",)),
        ({"daemons": {GPU: DaemonReport(phase=Phase.FAILED, text="it died")}}, (f"{GPU}: it died",)),
        ({"daemons": {GPU: DaemonReport(phase=Phase.READY)}}, ()),
    ],
)
def test_it_is_ready_once_all_is_known_and_as_wanted(changes, problems):
    found = judge_readiness(**{**WELL, **changes}).problems
    assert len(found) == len(problems)
    assert all(words in text for words, text in zip(problems, found, strict=True))

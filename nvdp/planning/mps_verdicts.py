"""What a sentence of ``nvdp mps`` about one of its daemons comes to: as it should be, passing, or to be mended.

The phase of a daemon says that it does not work, and its sentence why. The words are those of ``daemon_course`` and of
the services that start daemons. A sentence that is not known here is something to be mended.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from nvdp.model.mps import Phase
from nvdp.planning import remedies


class Sort(enum.Enum):
    """PODS: it waits for pods to end. MOMENT: it takes a moment, or is paused. UNSUPPORTED: what is asked for cannot be
    had here. FAULT: something is broken, or missing.
    """

    PODS = "pods"
    MOMENT = "moment"
    UNSUPPORTED = "unsupported"
    FAULT = "fault"


class Verdict(msgspec.Struct, frozen=True):
    """``remedy`` is what to do about it, with ``{file}`` left open."""

    sort: Sort
    remedy: str


_TO_MEND: Final = frozenset({Sort.UNSUPPORTED, Sort.FAULT})
_LACKS_OPTION: Final = "multiUser: the control daemon of this driver does not know it"
_BY_PHASE: Final = {
    Phase.STARTING: Sort.MOMENT,
    Phase.STOPPING: Sort.MOMENT,
    Phase.REFUSED: Sort.UNSUPPORTED,
}
_MOMENT: Final = Verdict(Sort.MOMENT, remedies.MPS[Phase.STARTING])
_ELSE: Final = Verdict(Sort.FAULT, remedies.MPS_ELSE)
_TABLE: Final = (
    ("not found", Verdict(Sort.FAULT, remedies.MPS_RUNTIME)),
    ("the driver is not there", Verdict(Sort.FAULT, remedies.MPS_RUNTIME)),
    ("cannot be mounted", Verdict(Sort.FAULT, remedies.MPS_PRIVILEGES)),
    ("compute mode is not changed", Verdict(Sort.UNSUPPORTED, remedies.MPS_PRIVILEGES)),
    ("ComputeMode", Verdict(Sort.UNSUPPORTED, remedies.MPS_PRIVILEGES)),
    ("sleeps in the driver", Verdict(Sort.FAULT, remedies.HANGS)),
    ("so that it gets", Verdict(Sort.FAULT, remedies.MPS_SILENT)),
    ("and is asked again", Verdict(Sort.FAULT, remedies.MPS_SILENT)),
    ("it ended while it started", Verdict(Sort.FAULT, remedies.MPS_START)),
    ("of its start", Verdict(Sort.FAULT, remedies.MPS_START)),
    ("still use it", Verdict(Sort.PODS, remedies.MPS[Phase.WAITING])),
    ("not free", Verdict(Sort.PODS, remedies.MPS[Phase.WAITING])),
    ("still served by another", Verdict(Sort.PODS, remedies.MPS[Phase.WAITING])),
    ("paused by", _MOMENT),
    ("its GPUs are looked at", _MOMENT),
    ("get their compute mode", _MOMENT),
    ("has not answered yet", _MOMENT),
    ("is not known yet", _MOMENT),
    ("is in force yet", _MOMENT),
    ("started anew with its new settings", _MOMENT),
    ("not counted by the driver", Verdict(Sort.FAULT, remedies.MPS_GPU)),
)
"""The first part that a sentence has counts: what somebody must mend comes before what passes."""


def judge_text(phase: Phase, text: str) -> Verdict:
    """The verdict on what a daemon in this phase says. One that says nothing has just begun."""
    text, _ = split_option(text)
    found = next((verdict for part, verdict in _TABLE if part in text), None)
    may_wait = phase in {Phase.WAITING, Phase.READY}
    if found is not None and (may_wait or (phase is Phase.FAILED and found.sort in _TO_MEND)):
        return found
    if phase is Phase.WAITING:
        return _ELSE if text else _MOMENT
    return Verdict(_BY_PHASE.get(phase, Sort.FAULT), remedies.MPS.get(phase, remedies.MPS_ELSE))


def is_orderly(phase: Phase, text: str) -> bool:
    """Whether a daemon that is not up waits only for what is as the file wants it, or passes."""
    return phase is Phase.WAITING and judge_text(phase, text).sort not in _TO_MEND


def is_out_of_order(phase: Phase, text: str) -> bool:
    """Whether a daemon is down, or not started, for something that is to be mended."""
    return phase in {Phase.FAILED, Phase.REFUSED} or (phase is Phase.WAITING and not is_orderly(phase, text))


def split_option(text: str) -> tuple[str, bool]:
    """The sentence without the word that the driver has no ``multiUser``, and whether it had that."""
    before, found, after = text.partition(_LACKS_OPTION)
    return (before + after).strip("; "), bool(found)

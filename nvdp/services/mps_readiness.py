"""Whether ``nvdp mps`` is ready: everything is known that it goes by, and all daemons are as wanted."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from nvdp.model.mps import DaemonReport, Phase
from nvdp.services.events import ConfigRead, GpusScanned
from nvdp.services.mps_events import GrantsRead

_UNHEARD: Mapping[type, str] = {
    ConfigRead: "the configuration was not read yet",
    GrantsRead: "it is not known yet what the plugin wants",
    GpusScanned: "the driver has not answered yet",
}


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """What the probes say: why it is not as wanted, or nothing; and all daemons."""

    problems: tuple[str, ...] = ("it has only begun",)
    daemons: Mapping[str, DaemonReport] = {}


def judge_readiness(
    *,
    unheard: Collection[type],
    needs_driver: bool,
    refused: str | None,
    problem: str,
    daemons: Mapping[str, DaemonReport],
) -> Readiness:
    """``unheard`` are the events that there were none of, ``refused`` is what is wrong with the file in force.

    ``problem`` is why nobody knows what is wanted.
    """
    missing = [kind for kind in _UNHEARD if kind in unheard and (needs_driver or kind is not GpusScanned)]
    problems = [_UNHEARD[kind] for kind in missing]
    problems += [text for text in (refused, "" if missing else problem) if text]
    others = {name: one for name, one in daemons.items() if one.phase is not Phase.READY}
    problems += [f"{name}: {one.text or one.phase.value}" for name, one in others.items()]
    return Readiness(problems=tuple(problems), daemons=daemons)

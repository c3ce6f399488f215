"""Control daemons that an earlier ``nvdp mps`` left alive, those too of which no report tells any more.

Pods may be using them, so that they are taken over and not ended. Without a report, one that is lost or of another
version, what they are is told by their environment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from nvdp.model.mps import DaemonReport, DaemonSpec, Phase
from nvdp.mps.control import ControlFailedError, ControlPipe
from nvdp.mps.places import Places
from nvdp.mps.process import DaemonProcess, adopt_daemon
from nvdp.mps.procfs import find_argv, find_environment, find_stat, list_pids
from nvdp.mps.program import FOREGROUND, LOG_DIRECTORY, MULTI_USER, VISIBLE_DEVICES

_ENDINGS: Final = ((FOREGROUND,), (MULTI_USER,))  # of the words that a daemon of ours is started with
_ALL_PERCENT: Final = 100
_MIB: Final = {"M": 1, "G": 1024}


class Adopted(msgspec.Struct, frozen=True):
    """A daemon that an earlier ``nvdp mps`` left alive: its process, and what that one reported of it.

    ``are_limits_known``: those that the report has are those that it was to get.
    """

    process: DaemonProcess
    report: DaemonReport
    are_limits_known: bool = True


def find_left(mps_dir: Path, reported: Mapping[str, DaemonReport]) -> dict[str, Adopted | None]:
    """What an earlier ``nvdp mps`` of this boot left, by resource: the daemon, or None if it has ended since.

    ``reported`` is what it said last, as far as that can be read; others that live are found all the same.
    """
    found: dict[str, Adopted | None] = {}
    for resource, report in reported.items():
        process = None
        if report.pid is not None and report.started is not None and report.running is not None:
            process = adopt_daemon(report.pid, report.started, Places(mps_dir, resource))
        found[resource] = Adopted(process, report) if process is not None else None
    pids = {adopted.process.pid for adopted in found.values() if adopted is not None}
    for adopted in find_unknown(mps_dir, pids):
        assert adopted.report.running is not None
        resource = adopted.report.running.resource
        if found.get(resource) is None:
            found[resource] = adopted
        else:
            adopted.process.close()
    return found


def find_unknown(mps_dir: Path, own_pids: Collection[int], *, wanted: str | None = None) -> Iterator[Adopted]:
    """All that live in our own directories, with the environment that ours have, and that are none of ``own_pids``.

    Of the resource ``wanted``, or of all. One for each: what else has its pipe is somebody else's.

    What their program is called does not matter. Their limits are not known yet. Does not block; some 20 µs for each
    process of the node.
    """
    found: set[str] = set()
    for pid in sorted(list_pids()):
        argv = find_argv(pid)
        if pid in own_pids or argv[-1:] not in _ENDINGS:
            continue
        stat, environment = find_stat(pid), find_environment(pid) or {}
        resource = _find_resource(mps_dir, environment.get(LOG_DIRECTORY, ""))
        if resource is None or resource in found or wanted not in {None, resource}:
            continue
        # One that leads no session is on its way to become the server of one that does.
        if VISIBLE_DEVICES not in environment or stat is None or stat.session != pid:
            continue
        process = adopt_daemon(pid, stat.started, Places(mps_dir, resource))
        if process is not None:
            found.add(resource)
            gpus = tuple(filter(None, environment[VISIBLE_DEVICES].split(",")))
            running = DaemonSpec(resource=resource, gpus=gpus, multi_user=argv[-1] == MULTI_USER)
            yield Adopted(process, DaemonReport(phase=Phase.STARTING, running=running), are_limits_known=False)


def ask_limits(pipe: ControlPipe, spec: DaemonSpec) -> DaemonSpec:
    """The daemon with the limits that it gives to its clients. HostError if it does not answer.

    Blocks for the limit of a question for each GPU and one more.
    """
    percent = round(pipe.find_thread_percent())
    memory = {gpu: mib for gpu in spec.gpus if (mib := _ask_memory_mib(pipe, gpu)) is not None}
    return msgspec.structs.replace(spec, thread_percent=percent if percent < _ALL_PERCENT else None, memory_mib=memory)


def _ask_memory_mib(pipe: ControlPipe, gpu: str) -> int | None:
    """None without a limit: what is said of that is not documented, and may be a refusal."""
    try:
        answer = pipe.ask(f"get_default_device_pinned_mem_limit {gpu}")
    except ControlFailedError:
        return None
    number, unit = answer[:-1], answer[-1:].upper()
    return int(number) * _MIB[unit] if number.isascii() and number.isdigit() and unit in _MIB else None


def _find_resource(mps_dir: Path, log_dir: str) -> str | None:
    """Whose log directory that is; None if it is nobody's."""
    try:
        resource = str(Path(log_dir).relative_to(mps_dir).parent)
    except ValueError:
        return None
    return resource if str(Places(mps_dir, resource).log_dir) == log_dir else None

"""How a control daemon is brought up, asked whether it answers, and ended: the steps, each with its limit.

No thread and no state: the actor of the resource (``services.mps_daemon``) takes these steps and waits meanwhile.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from nvdp.errors import HostError
from nvdp.model.mps import DaemonSpec
from nvdp.mps.control import COMMAND_LIMIT_S, ControlFailedError, ControlPipe, ControlTimeoutError
from nvdp.mps.places import Places
from nvdp.mps.process import DaemonProcess, start_daemon

LAST_LINES: Final = 5
"""How much of a daemon's log is shown when it has ended."""


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """All times of an actor, in seconds.

    ``question_s``: for one answer. ``up_s``: from a start to the first one. ``probe_s``: from one question to the next.
    ``second_try_s``: after one that failed. ``clients_s``: between questions for clients while nothing waits for their
    end. ``quit_s``, ``term_s``, ``kill_s``: for an end after a word, SIGTERM and SIGKILL. ``patience_s``: how long a
    daemon with clients may say nothing before it is replaced, which ends them. ``in_the_way_s``: until what was in the
    way is looked for again. ``steady_s``: after that long without a failure the next one counts as the first.
    ``waiting_s``: from when on a client that waits for the server of another user is told of. ``first_delay_s``,
    ``most_delay_s``: see ``find_delay_s``.
    """

    question_s: float = COMMAND_LIMIT_S
    up_s: float = 10.0
    probe_s: float = 1.0
    second_try_s: float = 0.2
    clients_s: float = 5.0
    quit_s: float = 5.0
    term_s: float = 2.0
    kill_s: float = 2.0
    patience_s: float = 30.0
    in_the_way_s: float = 10.0
    steady_s: float = 60.0
    waiting_s: float = 10.0
    first_delay_s: float = 1.0
    most_delay_s: float = 30.0

    def find_delay_s(self, failures: int) -> float:
        """How long to wait after that many failures in a row: not at all after the first, then 1, 2, 4 … seconds."""
        return 0.0 if failures <= 1 else min(self.most_delay_s, self.first_delay_s * 2.0 ** min(failures - 2, 10))


class NotUpError(HostError):
    """A daemon that was started does not answer. ``exit_code`` is None unless it has ended by itself."""

    def __init__(self, text: str, *, exit_code: int | None, last_lines: tuple[str, ...]) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.last_lines = last_lines


class StartCancelledError(HostError):
    """A daemon that was being started is not wanted any more."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """What all daemons of the node are started and asked with; ``label`` gives a pipe directory its SELinux context."""

    name: str
    label: Callable[[Path], None]


def bring_up(
    program: Program,
    spec: DaemonSpec,
    places: Places,
    *,
    on_process: Callable[[DaemonProcess, DaemonSpec], None],
    is_over: Callable[[], bool],
    times: Times,
) -> tuple[DaemonProcess, DaemonSpec]:
    """Start a daemon in fresh directories, wait until it answers, and give it its limits.

    One that ends at once with the option for several users, and works without, lacks that option: it is what it is as
    the second of the result says. ``on_process`` hears of a process at once: from then on it is on the node. By
    ``is_over`` it is given up. Raises HostError, NotUpError and StartCancelledError among them; then nothing runs.
    Blocks for twice ``up_s`` and the times of an end at most.
    """
    bring = partial(_try_to_bring_up, program, places=places, on_process=on_process, is_over=is_over, times=times)
    try:
        return bring(spec), spec
    except NotUpError as error:
        if not spec.multi_user or error.exit_code is None:
            raise
    simple = msgspec.structs.replace(spec, multi_user=False)
    return bring(simple), simple


def _try_to_bring_up(
    program: Program,
    spec: DaemonSpec,
    *,
    places: Places,
    on_process: Callable[[DaemonProcess, DaemonSpec], None],
    is_over: Callable[[], bool],
    times: Times,
) -> DaemonProcess:
    places.prepare()
    program.label(places.pipe_dir)
    places.clean()
    places.cut_logs()
    process = start_daemon(program.name, spec, places, multi_user=spec.multi_user)
    on_process(process, spec)
    pipe = ControlPipe(program.name, places.pipe_dir, limit_s=times.question_s)
    try:
        _wait_up(process, pipe, places, is_over=is_over, times=times)
        set_limits(pipe, spec)
    except HostError:
        process.kill()
        if process.wait(times.kill_s):
            process.close()
        raise
    return process


def _wait_up(
    process: DaemonProcess, pipe: ControlPipe, places: Places, *, is_over: Callable[[], bool], times: Times
) -> None:
    deadline = time.monotonic() + times.up_s
    problem = ""
    while time.monotonic() < deadline:
        if is_over():
            raise StartCancelledError("it is not wanted any more")
        try:
            pipe.find_thread_percent()
        except HostError as error:
            problem = str(error)
        else:
            return
        if process.wait(times.second_try_s / 2):
            lines = read_last_lines(places)
            said = f": {lines[-1]}" if lines else ""
            text = f"it ended while it started, {describe_exit(process.exit_code)}{said}"
            raise NotUpError(text, exit_code=process.exit_code, last_lines=lines)
    text = f"it does not answer within {times.up_s:g} s of its start: {problem}"
    raise NotUpError(text, exit_code=None, last_lines=read_last_lines(places))


def set_limits(pipe: ControlPipe, spec: DaemonSpec) -> None:
    """Give a daemon the limits of its clients: they count for servers that start later. HostError if it takes them not.

    Blocks for the limit of a question for each.
    """
    for uuid, mib in spec.memory_mib.items():
        pipe.set_memory_limit(uuid, mib)
    if spec.thread_percent is not None:
        pipe.set_thread_percent(spec.thread_percent)


def find_silence(pipe: ControlPipe, *, is_in_use: bool, times: Times) -> str:
    """Why the daemon does not answer; empty if it does. One failure may be a coincidence, a time-out is none.

    Unless it ``is_in_use``: then it is asked a second time after that, too. ControlUnaskableError says nothing of the
    daemon. Blocks for two limits of a question at most.
    """
    try:
        pipe.find_thread_percent()
    except ControlTimeoutError as error:
        if not is_in_use:
            return str(error)
    except ControlFailedError:
        time.sleep(times.second_try_s)
    else:
        return ""
    try:
        pipe.find_thread_percent()
    except (ControlTimeoutError, ControlFailedError) as error:
        return str(error)
    return ""


def count_clients(pipe: ControlPipe, servers: Mapping[int, str]) -> int:
    """How many clients these servers have. HostError if it is not told."""
    return sum(len(pipe.list_clients(server)) for server in servers)


def end_daemon(process: DaemonProcess, pipe: ControlPipe | None, *, times: Times) -> bool:
    """End a daemon and its servers: by a word through ``pipe``, then by SIGTERM, then by SIGKILL. Whether it is gone.

    None for one that does not listen. It is not gone if it sleeps in the driver. Blocks for the sum of the times, and
    the limit of a question.
    """
    ended = False
    if pipe is not None:
        with contextlib.suppress(HostError):  # it may end all the same, and if not, the signals follow
            pipe.quit()
        ended = process.wait(times.quit_s)
    if not ended:
        process.terminate()
        ended = process.wait(times.term_s)
    process.kill()  # also servers that outlived it: the next daemon could not use their GPUs
    return ended or process.wait(times.kill_s)


def is_power_of_two(count: int) -> bool:
    """Whether the count-th failure in a row is worth a line: the first, the second, the fourth …"""
    return count & (count - 1) == 0


def read_last_lines(places: Places) -> tuple[str, ...]:
    """The end of the daemon's log; none if it cannot be read."""
    try:
        return places.read_last_lines(LAST_LINES)
    except HostError:
        return ()


def describe_exit(exit_code: int | None) -> str:
    """``exit code 1``, ``signal 9``; of a daemon that an earlier process started nobody is told."""
    if exit_code is None:
        return "exit code unknown"
    return f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"

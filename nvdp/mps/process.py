"""One control daemon as a process: started in a session of its own, so that it outlives us, or found alive again."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
from pathlib import Path

from nvdp.errors import HostError
from nvdp.model.mps import DaemonSpec
from nvdp.mps.places import Places
from nvdp.mps.procfs import PROC, find_environment, find_stat, list_pids, owns_pipe
from nvdp.mps.program import (
    FOREGROUND,
    LOG_DIRECTORY,
    MULTI_USER,
    VISIBLE_DEVICES,
    build_environment,
    explain_start,
)


def start_daemon(program: str, spec: DaemonSpec, places: Places, *, multi_user: bool) -> DaemonProcess:
    """Start the control daemon of ``spec`` in ``places``, which are prepared and hold nothing of a former one.

    It is not up yet when this returns. ``multi_user`` is what is tried now, whatever ``spec`` wants. Raises HostError,
    in one line, if there is no such program or no log. Blocks for the start of a process.
    """
    command = [program, FOREGROUND, *([MULTI_USER] if multi_user else [])]
    environment = build_environment(
        places.pipe_dir,
        **{LOG_DIRECTORY: str(places.log_dir), VISIBLE_DEVICES: ",".join(spec.gpus)},
    )
    log = places.open_log(f"{' '.join(command)} for {spec.resource}")
    try:
        child = subprocess.Popen(  # noqa: S603 - the program that the options name, without a shell
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd="/",  # it would keep ours from being unmounted
            start_new_session=True,
        )
    except OSError as error:
        raise HostError(explain_start(program, error)) from error
    finally:
        os.close(log)
    _raise_file_limit(child.pid)
    stat = find_stat(child.pid)  # it is there until we ask for its exit code
    return DaemonProcess(child.pid, stat.started if stat is not None else 0, os.pidfd_open(child.pid), child)


def adopt_daemon(pid: int, started: int, places: Places, *, proc: Path = PROC) -> DaemonProcess | None:
    """The daemon of ``places`` that an earlier ``nvdp mps`` started and reported; None if it has ended.

    ``pid`` and ``started`` count within one boot only: ask not with those of another one. Does not block.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    stat = find_stat(pid, proc)  # after the descriptor: what is read now is of the process that it stands for
    environment = find_environment(pid, proc)
    if (
        stat is None
        or stat.has_ended
        or stat.started != started
        or (environment is not None and not owns_pipe(pid, environment, places.pipe_dir, proc))
    ):
        os.close(pidfd)
        return None
    return DaemonProcess(pid, started, pidfd, None)


class DaemonProcess:
    """A control daemon that ``start_daemon`` or ``adopt_daemon`` made. Any thread. ``close`` it once it has ended.

    ``pid`` is also the number of its session and of its process group, with its servers in them.
    """

    def __init__(self, pid: int, started: int, pidfd: int, child: subprocess.Popen[bytes] | None) -> None:
        self.pid = pid
        self.started = started
        self._pidfd = pidfd
        self._child = child

    @property
    def is_alive(self) -> bool:
        """Does not block."""
        return not self.wait(0.0)

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended, at once or within ``timeout_s``."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        ended = bool(poll.poll(timeout_s * 1000))
        if ended and self._child is not None:
            self._child.wait()  # at once now; a poll would leave it to another thread that is about it
        return ended

    @property
    def exit_code(self) -> int | None:
        """Once ``wait`` or ``is_alive`` has told its end; negative is a signal. None for one that was adopted: only the
        parent of a process learns it.
        """
        return self._child.returncode if self._child is not None else None

    def terminate(self) -> None:
        """Ask it to end, with SIGTERM. Nothing if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)

    def kill(self) -> None:
        """End it and all that is left of its session with SIGKILL: servers, also those that outlived the daemon.

        Their clients lose their work.
        """
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        for pid in self.list_rest():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def list_rest(self) -> tuple[int, ...]:
        """The other living processes of its session: its servers. They may outlive it."""
        leader = find_stat(self.pid)
        if leader is not None and leader.started != self.started:
            return ()  # the number is another process's by now
        found = (find_stat(pid) for pid in list_pids() if pid != self.pid)
        return tuple(
            stat.pid
            for stat in found
            if stat is not None and stat.session == self.pid and not stat.has_ended and stat.started >= self.started
        )

    def close(self) -> None:
        """Let go of it, alive or not. No other call afterwards. Idempotent."""
        pidfd, self._pidfd = self._pidfd, -1
        if pidfd >= 0:
            os.close(pidfd)
        if self._child is not None and self._child.poll() is None:
            self._child.returncode = 0  # left alone on purpose: subprocess would complain of it


def _raise_file_limit(pid: int) -> None:
    """As many files as it may have: each client costs several, and NVIDIA asks for 16384.

    From outside and after its start, for code between fork and exec is not safe beside other threads.
    """
    with contextlib.suppress(OSError, ValueError):  # it has ended, or we may not: it starts with what it has
        _soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))

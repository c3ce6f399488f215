"""What a control daemon that runs is asked every second: whether it answers, who its clients are, and who waits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from nvdp.errors import HostError
from nvdp.log import Log
from nvdp.model.mps import DaemonSpec
from nvdp.model.reasons import Reason
from nvdp.mps.control import ControlPipe
from nvdp.mps.places import DAEMON_LOG, Places
from nvdp.services.mps_running import Times, count_clients, find_silence
from nvdp.services.mps_users import WaitingUsers

_CONTROL_LOG: Final = "control.log"
_FAULT: Final = "fault"


class Clients(msgspec.Struct, frozen=True, kw_only=True):
    """How many clients there are, and the state of each server by PID."""

    count: int = 0
    servers: Mapping[str, str] = {}


class Asking:
    """Asks one daemon after the other of a resource. Used by one thread; calls block for the limits of questions.

    ``clients`` is what was told last, None before a daemon was asked. ``silent_since``: since when the daemon does not
    answer, None if it does, and ``silences`` how many times in a row it did not. ``answered_at``: when it answered
    last, whatever it was asked. Times are monotonic seconds.
    """

    def __init__(
        self,
        resource: str,
        places: Places,
        pipe: ControlPipe,
        *,
        log: Log,
        is_client_alive: Callable[[int], bool],
        times: Times,
        clock: Callable[[], float],
    ) -> None:
        self._resource = resource
        self._places = places
        self._pipe = pipe
        self._log = log
        self._times = times
        self._clock = clock
        logs = [places.log_dir / name for name in (DAEMON_LOG, _CONTROL_LOG)]
        self._users = WaitingUsers(resource, logs, log=log, is_alive=is_client_alive, waiting_s=times.waiting_s)
        self._clients_due_at = self.answered_at = clock()
        self.clients: Clients | None = None
        self.waiting_users: tuple[int, ...] = ()
        self.silent_since: float | None = None
        self.silences = 0

    def begin(self) -> None:
        """There is another daemon, or none any more."""
        self._clients_due_at = self.answered_at = self._clock()
        self.clients = self.silent_since = None
        self.silences = 0
        self.waiting_users = ()

    def find_silence(self) -> str:
        """Why it does not answer; empty if it does."""
        began_at = self._clock()
        silence = find_silence(self._pipe, times=self._times)
        if not silence:
            self.silent_since, self.silences, self.answered_at = None, 0, self._clock()
            return silence
        self.silences += 1
        if self.silent_since is None:
            self.silent_since = began_at
        return silence

    def look(self, running: DaemonSpec, *, at_clients: bool) -> None:
        """Look at clients if it is time, or if ``at_clients`` says so, and at the log."""
        now = self._clock()
        if at_clients or self._clients_due_at <= now:
            self.look_at_clients()
            self._clients_due_at = self._clock() + self._times.clients_s
        self.waiting_users = () if running.multi_user else self._users.look(now=now)
        try:
            self._places.cut_logs()
        except HostError as error:
            self._log(Reason.STATE_DAMAGED, str(error), resource=self._resource)

    def look_at_clients(self) -> None:
        """Ask for servers and clients. What is not told stays as it was: that a daemon is silent, others find out."""
        before = self.clients or Clients()
        with contextlib.suppress(HostError):
            servers = self._pipe.list_servers()
            self.answered_at = self._clock()
            told = Clients(
                count=count_clients(self._pipe, servers), servers={str(pid): state for pid, state in servers.items()}
            )
            self.clients, self.answered_at = told, self._clock()
            for pid, state in told.servers.items():
                if state == _FAULT and before.servers.get(pid) != state:
                    text = f"MPS server {pid} is in FAULT: no new client is served until those that it has are through"
                    self._log(Reason.MPS_DAEMON_FAILED, text, resource=self._resource)

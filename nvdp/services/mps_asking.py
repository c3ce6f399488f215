"""What a control daemon that runs is asked every second: whether it answers, who its clients are, and who waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from nvdp.errors import HostError
from nvdp.model.mps import DaemonSpec, Phase
from nvdp.model.reasons import Reason
from nvdp.mps.control import ControlPipe, ControlUnaskableError
from nvdp.mps.places import DAEMON_LOG, Places
from nvdp.services.mps_left import Adopted, ask_limits
from nvdp.services.mps_node import Node
from nvdp.services.mps_running import count_clients, find_silence, set_limits
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
    answer, None if it does, and ``silences`` how many times in a row it did not. ``unasked`` says why it could not even
    be asked last, which says nothing of it, and is empty if it was. ``answered_at``: when it answered last, whatever it
    was asked. Times are monotonic seconds.
    """

    def __init__(
        self, resource: str, places: Places, pipe: ControlPipe, node: Node, *, adopted: Adopted | None
    ) -> None:
        self._resource = resource
        self._pipe = pipe
        self._log = node.log
        self._times = node.times
        self._clock = node.clock
        logs = [places.log_dir / name for name in (DAEMON_LOG, _CONTROL_LOG)]
        self._users = WaitingUsers(
            resource, logs, log=node.log, is_alive=node.is_client_alive, waiting_s=node.times.waiting_s
        )
        self.begin(adopted)

    def begin(self, adopted: Adopted | None = None, *, owes_limits: bool = False) -> None:
        """There is another daemon, or none any more. One that was never ready may lack the limits that it is to get."""
        self._clients_due_at = self.answered_at = self._clock()
        self._are_limits_known = adopted is None or adopted.are_limits_known
        self._owes_limits = owes_limits
        if adopted is not None and adopted.are_limits_known and adopted.report.phase is not Phase.READY:
            self._owes_limits = True
        self.clients: Clients | None = None
        self.waiting_users: tuple[int, ...] = ()
        self.silent_since: float | None = None
        self.silences = 0
        self.unasked = ""

    @property
    def may_have_clients(self) -> bool:
        """For all that it has told. Before it told anything, nobody knows."""
        return self.clients is None or self.clients.count > 0

    def find_silence(self, *, is_in_use: bool) -> str:
        """Why it does not answer, or could not be asked; empty if it does. ``is_in_use``: see ``mps_running``."""
        began_at, self.unasked = self._clock(), ""
        try:
            silence = find_silence(self._pipe, is_in_use=is_in_use or self.may_have_clients, times=self._times)
        except ControlUnaskableError as error:
            self.unasked, self.silent_since, self.silences = str(error), None, 0
            return self.unasked
        if not silence:
            self.silent_since, self.silences, self.answered_at = None, 0, self._clock()
            return silence
        self.silences += 1
        if self.silent_since is None:
            self.silent_since = began_at
        return silence

    def has_been_silent(self, patience_s: float) -> bool:
        """Whether it did not answer for so long, and more than once."""
        since = self.silent_since
        return since is not None and self.silences > 1 and self._clock() - since >= patience_s

    def settle_limits(self, running: DaemonSpec) -> DaemonSpec:
        """What runs with its limits, once they are known and set. HostError if it does not answer."""
        if not self._are_limits_known:
            running = ask_limits(self._pipe, running)
            self._are_limits_known = True
        if self._owes_limits:
            set_limits(self._pipe, running)
            self._owes_limits = False
        return running

    def look(self, running: DaemonSpec, *, at_clients: bool) -> None:
        """Look at clients if it is time, or if ``at_clients`` says so, and at the log."""
        now = self._clock()
        if at_clients or self._clients_due_at <= now:
            self.look_at_clients()
            self._clients_due_at = self._clock() + self._times.clients_s
        self.waiting_users = () if running.multi_user else self._users.look(now=now)

    def look_at_clients(self) -> bool:
        """Ask for servers and clients; whether it told. If not, they stay as they were."""
        before = self.clients or Clients()
        try:
            servers = self._pipe.list_servers()
            self.answered_at = self._clock()
            told = Clients(
                count=count_clients(self._pipe, servers), servers={str(pid): state for pid, state in servers.items()}
            )
        except HostError:  # that it is silent, others find out
            return False
        self.clients, self.answered_at = told, self._clock()
        for pid, state in told.servers.items():
            if state == _FAULT and before.servers.get(pid) != state:
                text = f"MPS server {pid} is in FAULT: no new client is served until those that it has are through"
                self._log(Reason.MPS_DAEMON_FAILED, text, resource=self._resource)
        return True

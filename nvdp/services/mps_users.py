"""Whose clients wait for another user's server to end: found in the log of a control daemon, and told once.

A client that waits hangs without a word. Only a daemon that serves one user at a time makes any wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from nvdp.errors import HostError
from nvdp.log import Log
from nvdp.model.reasons import Reason
from nvdp.mps.control_log import ControlLog, LogFollower

_REMEDY = (
    "give all pods of this resource the same runAsUser, or let the file say multiUser: true with a driver whose "
    "control daemon knows it"
)


class WaitingUsers:
    """Follows the logs of one daemon. Used by one thread.

    ``is_alive`` tells whether a client still exists: where PIDs are another namespace's, all count as alive.
    """

    def __init__(
        self,
        resource: str,
        logs: Sequence[Path],
        *,
        log: Log,
        is_alive: Callable[[int], bool],
        waiting_s: float,
    ) -> None:
        self._resource = resource
        self._followers = tuple(map(LogFollower, logs))
        self._log = log
        self._is_alive = is_alive
        self._waiting_s = waiting_s
        self._state = ControlLog()
        self._told: tuple[int, ...] = ()

    def look(self, *, now: float) -> tuple[int, ...]:
        """The user IDs that have waited for long, in rising order; ``now`` is monotonic. Tells of a change once.

        Blocks for the disk.
        """
        try:
            for follower in self._followers:
                for line in follower.read_lines():
                    self._state.take(line, at=now)
        except HostError:
            return self._told  # the log is a hint: that it cannot be read is told by who needs it
        self._state.forget_gone(self._is_alive)
        late = (client for client in self._state.list_waiting() if now - client.since >= self._waiting_s)
        users = tuple(sorted({client.user for client in late}))
        if users and users != self._told:
            owner = self._state.server_user
            names = ", ".join(map(str, users))
            text = f"clients of user {names} wait until those of user {owner} have ended; {_REMEDY}"
            self._log(Reason.MPS_UNSUPPORTED, text, resource=self._resource, users=list(users))
        self._told = users
        return users

"""One node for random histories: the plugin between a model of the kubelet and one of the hardware.

Pods, streams, answers, edits, losses and restarts come in any order and at any time (``walks``). What must hold is
checked at every list that is given out (``list_checks``) and after every step (``promises``).
"""

from __future__ import annotations

import dataclasses

import msgspec

from nvdp.planning.ledger import restore
from nvdp.planning.presence import expire, find_next_expiry
from tests.planning.kubelet_model import Grant
from tests.planning.plugin_model import Plugin

ARRIVES_S = 0.4  # an Allocate reaches the plugin within this time of the kubelet's choice
ANSWER_S = 0.01


class Node(Plugin):
    """The node. All times are seconds of ``now``."""

    # -- the kubelet ------------------------------------------------------------------------------------------------

    def take_lists(self) -> None:
        """The kubelet reads what is in its streams."""
        for number in range(len(self.given)):
            self.take_list(number)

    def take_list(self, number: int, delay_s: float = 0.0, *, late: bool = False) -> None:
        """One stream takes its newest list; the kubelet has read it ``delay_s`` later.

        The plugin hears of it at once, or ``late``.
        """
        if self.kubelet.up and self.given:
            resource = sorted(self.given)[number % len(self.given)]
            given = self.given[resource]
            self.kubelet.send(resource, given.listed, self.now + delay_s)
            self.kubelet.read_sent(self.now)
            if late:
                self._reports.append((resource, given.version))
            else:
                self._note_taken(resource)
                self.turn()

    def choose(self, number: int, which: int, size: int) -> None:
        """A pod comes, and the kubelet picks devices for it that it believes free."""
        free = {resource: self.kubelet.find_free(resource) for resource in sorted(self.kubelet.lists)}
        enough = [resource for resource, ids in free.items() if len(ids) >= size]
        if enough:
            ids = free[resource := enough[number % len(enough)]]
            self.kubelet.choose(resource, [ids[(which + step) % len(ids)] for step in range(size)], self.now)

    def arrive(self, number: int) -> None:
        """Allocate reaches the plugin, which looks at its newest list."""
        if self.kubelet.chosen:
            _, call = self.kubelet.chosen.pop(number % len(self.kubelet.chosen))
            call = dataclasses.replace(call, mps=self.is_by_mps(call.resource))
            (self.kubelet.in_flight if self._allows(call) else self.kubelet.refused).append(call)

    def _allows(self, call: Grant) -> bool:
        listed = self.given[call.resource].listed.by_id if call.resource in self.given else {}
        return all(device_id in listed and listed[device_id].healthy for device_id in call.device_ids)

    def end_allocate(self, number: int) -> None:
        """The plugin has answered, and refused what it refuses."""
        self.kubelet.refused.clear()
        if self.kubelet.in_flight:
            self.kubelet.finish(number, self.now)
            self.turn()

    def request_holders(self) -> None:
        self.kubelet.request_holders(self.now)

    def answer_holders(self, *, late: bool) -> None:
        self._answer_at = None
        before, self.held = self.held, self.kubelet.answer_holders(self.held, self.now, late=late)
        if before.source is None:
            for resource, given in restore(self.held, names=self.ours, now=self.now).items():
                self.given.setdefault(resource, given)
        self.turn()

    def set_readable(self, *, readable: bool) -> None:
        self.kubelet.readable = readable

    def set_kubelet_up(self, *, up: bool) -> None:
        """Stop or start it. While it is down no stream is open, and whatever is listed is offered by nobody."""
        if up == self.kubelet.up:
            return
        if up:
            self.kubelet.up = True
        else:
            self.kubelet.stop()
            self.held = msgspec.structs.replace(self.held, unreadable_since=None)
            for resource in list(self.given):
                self._note_taken(resource)
        self.turn()

    # -- time -------------------------------------------------------------------------------------------------------

    def pass_time(self, seconds: float, how: str = "awake") -> None:
        """``busy``: the plugin comes to itself only at the end; ``awake``: whenever it wants to; ``asking``: and it
        asks for holders at once where that may change something, and every second while it waits for them.
        """
        end = self.now + seconds
        while self.kubelet.chosen and self.kubelet.chosen[0][0] + ARRIVES_S < end:
            self.arrive(0)
        while self.now < end:
            due = [end] if how == "busy" else [end, *(at for at in self._list_due(how) if at is not None)]
            self.now = max(self.now + 1e-6, min(due))  # a clock moves on
            self.kubelet.pass_time(self.now)
            self.kubelet.read_sent(self.now)
            self.keep_up()
            self._see(expire(self.presence, now=self.now, remove_after_s=self.config.devices.remove_after.seconds))
            self.turn()
            if how == "asking":
                self._ask()

    def _list_due(self, how: str) -> list[float | None]:
        """When something happens by itself."""
        assert self.plan is not None
        expiry = find_next_expiry(self.presence, remove_after_s=self.config.devices.remove_after.seconds)
        polls = [self._answer_at, self._asked_at + 1.0 if self._polls else None] if how == "asking" else []
        return [self.plan.check_at, self.kubelet.next_at, expiry, *polls]

    @property
    def _polls(self) -> bool:
        """Whether it asks again and again."""
        return self.held.source is None or (self.plan is not None and self.plan.waiting)

    def settle(self) -> None:
        """Pods end, the kubelet, its sources, all cards and ``nvdp mps`` are well, and all is quiet for a while."""
        self.disk_full = False
        self.keeper.set_up(self.told, up=True)
        self.set_kubelet_up(up=True)
        self.set_readable(readable=True)
        self.machine.heal()
        self.scan()
        while self.kubelet.chosen:
            self.arrive(0)
        while self.kubelet.in_flight or self.kubelet.refused:
            self.end_allocate(0)
        while self.kubelet.pods:
            self.kubelet.end_pod(0, self.now)
        for _ in range(8):
            self.take_lists()
            self.pass_time(3.0, "asking")
        self.take_lists()

    def black_out(self, text: str) -> None:
        """For longer than ``removeAfter`` nobody can say who holds what, and meanwhile the file is edited."""
        self.set_readable(readable=False)
        self.take_lists()
        self.pass_time(4.0, "asking")
        self.edit(text)
        for _ in range(4):
            self.take_lists()
            self.pass_time(4.0, "asking")

    def _ask(self) -> None:
        """As services/held.py does."""
        assert self.plan is not None
        if self._answer_at is not None and self._answer_at <= self.now:
            self.answer_holders(late=False)
        since = self.plan.ask_since
        is_missing = since is not None and since > self._asked_at
        if is_missing or (self._polls and self._asked_at + 1.0 <= self.now):
            self._asked_at = self.now
            self.request_holders()
            self._answer_at = self.now + ANSWER_S
